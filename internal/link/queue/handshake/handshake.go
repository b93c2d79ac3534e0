// Package handshake brings a driver and its workers together: one authenticated connection per
// worker, over an abstract unix socket on the driver's host and over TCP with TLS 1.3 from
// everywhere else.
//
// Both sides prove that they hold the engine's token without sending it. After an optional TLS
// handshake four frames cross:
//
//	worker → driver  hello      version, instance, rank, pid, binary hash, the session to resume,
//	                            a fresh nonce
//	driver → worker  challenge  version, instance, a fresh nonce
//	worker → driver  proof      HMAC-SHA256(token, "worker" ‖ transcript)
//	driver → worker  welcome    the session, HMAC-SHA256(token, "driver" ‖ transcript ‖ session)
//
// The transcript is SHA-256 over hello, challenge and the channel: with TLS the exporter of RFC
// 9266's kind (RFC 8446 §7.5), so that a proof is worth nothing on any other connection. The
// driver's TLS certificate is made when it starts to listen and pinned by its SHA-256 in the
// Endpoint: there is no authority and no name to trust. A worker that is refused learns why from a
// refuse frame, which carries an HMAC as soon as the worker has proved itself.
package handshake

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Version is the version of the protocol, of the handshake and of what follows it. The two ends
// must agree.
const Version = 1

// Token is the secret of one engine, handed to its workers when they are started.
type Token [32]byte

// NewToken returns a token from the system's random source.
func NewToken() Token {
	var t Token
	rand.Read(t[:])
	return t
}

// TokenOf derives a token from a secret that users share. A secret that can be guessed makes a
// token that can be guessed.
func TokenOf(secret []byte) Token {
	return Token(prove(Token{}, "eagleray token", sha256.Sum256(secret), nil))
}

// ParseToken reads what Reveal wrote. The error does not repeat the text.
func ParseToken(s string) (Token, error) {
	var t Token
	if hex.DecodedLen(len(s)) != len(t) {
		return Token{}, fmt.Errorf("token has %d characters, not %d", len(s),
			hex.EncodedLen(len(t)))
	}
	if _, err := hex.Decode(t[:], []byte(s)); err != nil {
		return Token{}, fmt.Errorf("token is not hexadecimal")
	}
	return t, nil
}

// Reveal returns the token in hexadecimal, for the start arguments of a worker.
func (t Token) Reveal() string { return hex.EncodeToString(t[:]) }

// String hides the token, so that it cannot slip into a log: see Reveal.
func (t Token) String() string { return "token(hidden)" }

// GoString hides the token.
func (t Token) GoString() string { return t.String() }

// MarshalText refuses, so that a token cannot slip into a JSON record.
func (t Token) MarshalText() ([]byte, error) {
	return nil, fmt.Errorf("a token is not marshalled: use Reveal")
}

// Instance is the random id of one engine.
type Instance string

// maxInstance bounds an Instance on the wire, in bytes.
const maxInstance = 64

// NewInstance returns a random id of 96 bits in hexadecimal.
func NewInstance() Instance {
	var b [12]byte
	rand.Read(b[:])
	return Instance(hex.EncodeToString(b[:]))
}

// Session names what a worker's connections have in common: the driver gives a new one to each
// worker that it admits, and the same again to a worker that resumes.
type Session [16]byte

// String returns the session in hexadecimal.
func (s Session) String() string { return hex.EncodeToString(s[:]) }

// Resume says which session a worker goes on with after its connection was cut.
type Resume struct {
	Session Session
	// Received is the sequence number of the last frame the worker has from the driver.
	Received uint64
	// Beside asks for one more connection, beside the one that the session has: Received is then
	// what the two agree on.
	Beside bool
}

// Identity is what a worker says of itself.
type Identity struct {
	Instance  Instance
	Rank, PID int
	// Binary is the SHA-256 of the worker's executable.
	Binary [32]byte
	// Resume is nil for a worker that starts.
	Resume *Resume
}

// Endpoint is where a driver listens. With the token it is all that a worker needs; it holds no
// secret.
type Endpoint struct {
	Instance Instance
	// Unix is the name of the abstract unix socket without its leading zero byte, "" for none.
	Unix string
	// TCP is the address, host:port, "" for none.
	TCP string
	// Fingerprint is the SHA-256 of the driver's certificate, for TCP.
	Fingerprint [32]byte
	// Unpinned says that the certificate is not known beforehand, because only the user has
	// told the peer where the driver is. Who is there is then known by the driver's proof alone,
	// which is bound to this connection: no peer without the token can give it, or pass on
	// another's. It is not part of the JSON form.
	Unpinned bool
}

type endpointJSON struct {
	Instance    Instance `json:"instance"`
	Unix        string   `json:"unix,omitempty"`
	TCP         string   `json:"tcp,omitempty"`
	Fingerprint string   `json:"fingerprint,omitempty"`
}

// MarshalJSON writes the fingerprint in hexadecimal.
func (e Endpoint) MarshalJSON() ([]byte, error) {
	j := endpointJSON{Instance: e.Instance, Unix: e.Unix, TCP: e.TCP}
	if e.TCP != "" {
		j.Fingerprint = hex.EncodeToString(e.Fingerprint[:])
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote and refuses an endpoint that cannot be dialled.
func (e *Endpoint) UnmarshalJSON(b []byte) error {
	var j endpointJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	if j.Unix == "" && j.TCP == "" {
		return fmt.Errorf("endpoint has neither a unix socket nor a TCP address")
	}
	if j.Instance == "" || len(j.Instance) > maxInstance {
		return fmt.Errorf("endpoint's instance has %d bytes, not 1 to %d", len(j.Instance),
			maxInstance)
	}
	out := Endpoint{Instance: j.Instance, Unix: j.Unix, TCP: j.TCP}
	if j.TCP != "" {
		if hex.DecodedLen(len(j.Fingerprint)) != len(out.Fingerprint) {
			return fmt.Errorf("endpoint's fingerprint has %d characters, not %d",
				len(j.Fingerprint), hex.EncodedLen(len(out.Fingerprint)))
		}
		if _, err := hex.Decode(out.Fingerprint[:], []byte(j.Fingerprint)); err != nil {
			return fmt.Errorf("endpoint's fingerprint %q: %w", j.Fingerprint, err)
		}
	}
	*e = out
	return nil
}
