package handshake

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// exporterLabel names this protocol's keying material among all exporters of a TLS connection.
const exporterLabel = "EXPORTER-eagleray-queue-handshake"

// transcript is what both sides prove to have seen.
func transcript(helloFrame, challengeFrame, binding []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(helloFrame) // frames carry their own length
	h.Write(challengeFrame)
	h.Write(binding)
	return [sha256.Size]byte(h.Sum(nil))
}

// prove computes the HMAC of one side over the transcript; label keeps the sides and frames apart,
// and extra is what the frame says besides.
func prove(t Token, label string, transcript [sha256.Size]byte, extra []byte) [macSize]byte {
	m := hmac.New(sha256.New, t[:])
	m.Write([]byte(label))
	m.Write([]byte{0})
	m.Write(transcript[:])
	m.Write(extra)
	return [macSize]byte(m.Sum(nil))
}

// The labels of the three proofs.
const (
	labelWorker = "eagleray worker"
	labelDriver = "eagleray driver"
	labelRefuse = "eagleray refuse"
)

// gate has the properties that a driver requires of a worker.
type gate struct {
	instance Instance
	token    Token
	world    int
	binary   [32]byte
	// register enters the worker's rank, after all other checks.
	register func(Identity) (Session, error)
}

// serve runs the driver's half over c, whose deadline the caller has set. A *Refused has been sent
// to the peer if the peer speaks this protocol. id has the fields of the peer's hello that were
// read, for the log.
func serve(c net.Conn, binding []byte, g *gate) (id Identity, s Session, err error) {
	k, helloFrame, err := readFrame(c)
	if err != nil {
		err = named(err)
		if errors.Is(err, VersionMismatch) {
			reject(c, err, [macSize]byte{})
		}
		return id, s, err
	}
	if k != kindHello {
		return id, s, reject(c, refuse(Malformed, "%s instead of hello", k), [macSize]byte{})
	}
	h, err := parseHello(helloFrame[prefixSize:])
	if err != nil {
		return id, s, reject(c, err, [macSize]byte{})
	}
	id = h.id
	if id.Instance != g.instance {
		return id, s, reject(c, refuse(OtherInstance, "worker belongs to instance %q, this is %q",
			id.Instance, g.instance), [macSize]byte{})
	}

	ours := challenge{instance: g.instance}
	rand.Read(ours.nonce[:])
	challengeFrame := appendFrame(nil, kindChallenge, ours.append(nil))
	if _, err := c.Write(challengeFrame); err != nil {
		return id, s, named(fmt.Errorf("write challenge: %w", err))
	}
	k, proofFrame, err := readFrame(c)
	if err != nil {
		return id, s, named(err)
	}
	if k != kindProof {
		return id, s, reject(c, refuse(Malformed, "%s instead of proof", k), [macSize]byte{})
	}
	proof, err := parseProof(proofFrame[prefixSize:])
	if err != nil {
		return id, s, reject(c, err, [macSize]byte{})
	}
	seen := transcript(helloFrame, challengeFrame, binding)
	want := prove(g.token, labelWorker, seen, nil)
	if !hmac.Equal(proof[:], want[:]) {
		return id, s, reject(c, refuse(BadToken, "worker's proof does not match the token"),
			[macSize]byte{})
	}

	// From here on the peer is one of ours: a refusal is signed and therefore final.
	if s, err = g.admit(id); err != nil {
		var r *Refused
		if !errors.As(err, &r) {
			return id, s, err
		}
		r.Detail = r.Detail[:min(len(r.Detail), maxDetail)]
		return id, s, reject(c, r, prove(g.token, labelRefuse, seen,
			append([]byte{byte(r.Reason)}, r.Detail...)))
	}
	mac := prove(g.token, labelDriver, seen, s[:])
	if _, err := c.Write(appendFrame(nil, kindWelcome, append(s[:], mac[:]...))); err != nil {
		return id, s, named(fmt.Errorf("write welcome: %w", err))
	}
	return id, s, nil
}

// admit checks the identity of an authenticated worker and registers its rank.
func (g *gate) admit(id Identity) (Session, error) {
	if id.Rank < 0 || id.Rank >= g.world {
		return Session{}, refuse(RankOutOfRange, "rank %d, world size %d", id.Rank, g.world)
	}
	if g.binary != [32]byte{} && id.Binary != g.binary {
		return Session{}, refuse(BinaryMismatch,
			"rank %d runs a binary with SHA-256 %x, the driver %x", id.Rank, id.Binary, g.binary)
	}
	return g.register(id)
}

// reject sends err to the peer if it is a *Refused, and returns err.
func reject(c net.Conn, err error, mac [macSize]byte) error {
	var r *Refused
	if !errors.As(err, &r) {
		return err
	}
	c.Write(appendFrame(nil, kindRefuse, appendRefusal(nil, r.Reason, mac, r.Detail)))
	return err
}

// join runs the worker's half over c, whose deadline the caller has set.
func join(c net.Conn, binding []byte, t Token, id Identity) (Session, error) {
	mine := hello{id: id}
	rand.Read(mine.nonce[:])
	helloFrame := appendFrame(nil, kindHello, mine.append(nil))
	if _, err := c.Write(helloFrame); err != nil {
		return Session{}, named(fmt.Errorf("write hello: %w", err))
	}
	k, challengeFrame, err := readFrame(c)
	if err != nil {
		return Session{}, named(err)
	}
	if k == kindRefuse {
		return Session{}, refused(challengeFrame, nil)
	}
	if k != kindChallenge {
		return Session{}, refuse(Malformed, "%s instead of challenge", k)
	}
	theirs, err := parseChallenge(challengeFrame[prefixSize:])
	if err != nil {
		return Session{}, err
	}
	if theirs.instance != id.Instance {
		return Session{}, refuse(OtherInstance, "driver is instance %q, not %q", theirs.instance,
			id.Instance)
	}

	seen := transcript(helloFrame, challengeFrame, binding)
	proof := prove(t, labelWorker, seen, nil)
	if _, err := c.Write(appendFrame(nil, kindProof, proof[:])); err != nil {
		return Session{}, named(fmt.Errorf("write proof: %w", err))
	}
	k, frame, err := readFrame(c)
	if err != nil {
		return Session{}, named(err)
	}
	if k == kindRefuse {
		return Session{}, refused(frame, func(reason Reason, detail string) [macSize]byte {
			return prove(t, labelRefuse, seen, append([]byte{byte(reason)}, detail...))
		})
	}
	if k != kindWelcome {
		return Session{}, refuse(Malformed, "%s instead of welcome", k)
	}
	session, mac, err := parseWelcome(frame[prefixSize:])
	if err != nil {
		return Session{}, err
	}
	if want := prove(t, labelDriver, seen, session[:]); !hmac.Equal(mac[:], want[:]) {
		return Session{}, refuse(BadToken, "driver's proof does not match the token")
	}
	return session, nil
}

// refused turns a refuse frame into the error it carries; sign computes the HMAC that makes it
// final, nil before the driver can have made one.
func refused(frame []byte, sign func(Reason, string) [macSize]byte) error {
	reason, mac, detail, err := parseRefusal(frame[prefixSize:])
	if err != nil {
		return err
	}
	r := &Refused{Reason: reason, Detail: fmt.Sprintf("%.*q", maxDetail, detail)}
	if sign == nil {
		return r
	}
	if want := sign(reason, detail); hmac.Equal(mac[:], want[:]) {
		r.Detail, r.Final = detail, true
	}
	return r
}

// named gives the errors of a connection their reason.
func named(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(Timeout, "%v", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("peer hung up: %w", err)
	}
	return err
}
