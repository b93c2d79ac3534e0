package rlhf

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/rank/weights"
	"github.com/eagleray/eagleray/internal/sys/memfile"
)

// A trainer's process brings the bytes of weights over a connection of its own, beside the call of
// update_weights that says which they are. It begins with a line,
//
//	EAGLERAY-WEIGHTS/1 TOKEN STREAM\n
//
// where TOKEN is the session's secret and STREAM a name that it has chosen and that update_weights
// gives too. Then come, for each tensor in the order of that call, its bytes and their CRC-32
// (IEEE) in 4 bytes, little endian. Over a unix socket a descriptor of sealed memory may come along
// with the line (SCM_RIGHTS): then nothing follows it. Nothing but the line is read before
// update_weights has said what must come, so what a connection can make the server keep is that
// line.

const (
	greeting = "EAGLERAY-WEIGHTS/1 "
	// maxLine bounds the line, maxStreams the connections that wait for their update_weights.
	maxLine    = 256
	maxStreams = 16
	// lineTimeout bounds the line's way, dataTimeout that of 64 KiB; a connection may wait for its
	// update_weights, and that for it, for matchTimeout.
	lineTimeout  = 10 * time.Second
	dataTimeout  = 30 * time.Second
	matchTimeout = time.Minute
)

// receiver takes the connections of trainers in a session, from an init_weight_transfer_engine to
// the next one.
type receiver struct {
	token       string
	unix, tcp   net.Listener // tcp may be nil
	certificate []byte       // in PEM, of tcp
	work        sync.WaitGroup
	life        context.Context
	end         context.CancelFunc

	mu      sync.Mutex
	streams map[string]*arrival
	open    map[net.Conn]bool
}

// arrival is a connection that has said its name, or that is waited for.
type arrival struct {
	there chan struct{} // closed when come is set
	come  *incoming
}

// incoming is a connection of a trainer.
type incoming struct {
	conn net.Conn
	// memory is what came along with the line; nil for bytes that follow it.
	memory *os.File
}

func (i *incoming) close() {
	i.conn.Close()
	if i.memory != nil {
		i.memory.Close()
	}
}

// listen opens a session. host is the address for trainers on other machines, "" for none.
func listen(host string) (*receiver, error) {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	r := &receiver{token: hex.EncodeToString(random[:16]), streams: map[string]*arrival{},
		open: map[net.Conn]bool{}}
	r.life, r.end = context.WithCancel(context.Background())
	var err error
	r.unix, err = net.Listen("unix", "@eagleray-weights-"+hex.EncodeToString(random[16:]))
	if err != nil {
		return nil, fmt.Errorf("listen for weights: %w", err)
	}
	if host != "" {
		if err := r.listenTCP(host); err != nil {
			r.close()
			return nil, err
		}
	}
	r.work.Go(func() { r.accept(r.unix) })
	if r.tcp != nil {
		r.work.Go(func() { r.accept(r.tcp) })
	}
	return r, nil
}

// listenTCP listens under TLS 1.3, with a certificate that the answer to
// init_weight_transfer_engine carries.
func (r *receiver) listenTCP(host string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key for weights: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1),
		Subject:   pkix.Name{CommonName: "eagleray-weights"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.AddDate(10, 0, 0),
		DNSNames: []string{"eagleray-weights"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("make a certificate for weights: %w", err)
	}
	r.certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	plain, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return fmt.Errorf("listen for weights: %w", err)
	}
	r.tcp = tls.NewListener(plain, &tls.Config{MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	return nil
}

// close ends the session and everything that came in it.
func (r *receiver) close() {
	r.end()
	r.unix.Close()
	if r.tcp != nil {
		r.tcp.Close()
	}
	r.mu.Lock()
	for c := range r.open {
		c.Close()
	}
	r.mu.Unlock()
	r.work.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.streams {
		if a.come != nil {
			a.come.close()
		}
	}
	clear(r.streams)
}

func (r *receiver) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many files are open: others may close theirs
			select {
			case <-r.life.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		r.mu.Lock()
		full := len(r.open) >= maxStreams || r.life.Err() != nil
		if !full {
			r.open[c] = true
		}
		r.mu.Unlock()
		if full {
			c.Close()
			continue
		}
		r.work.Go(func() { r.greet(c) })
	}
}

// greet reads the line of a connection and has it wait for its update_weights.
func (r *receiver) greet(c net.Conn) {
	i := &incoming{conn: c}
	stream, err := r.line(i)
	r.mu.Lock()
	delete(r.open, c)
	if err == nil && r.life.Err() != nil {
		err = net.ErrClosed
	}
	var a *arrival
	if err == nil {
		if a = r.streams[stream]; a == nil && len(r.streams) < maxStreams {
			a = &arrival{there: make(chan struct{})}
			r.streams[stream] = a
		}
		if a == nil || a.come != nil {
			err = errors.New("too many streams, or a second one of this name")
		}
	}
	if err != nil {
		r.mu.Unlock()
		i.close()
		return
	}
	a.come = i
	close(a.there)
	r.mu.Unlock()
	r.work.Go(func() { // it may never be asked for
		select {
		case <-r.life.Done():
		case <-time.After(matchTimeout):
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.streams[stream] == a {
			delete(r.streams, stream)
			i.close()
		}
	})
}

// line reads the line of a connection, byte by byte, and what came along with it. It returns the
// stream's name.
func (r *receiver) line(i *incoming) (stream string, err error) {
	if err := i.conn.SetDeadline(time.Now().Add(lineTimeout)); err != nil {
		return "", err
	}
	var text []byte
	one, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	for len(text) < maxLine {
		if u, ok := i.conn.(*net.UnixConn); ok && i.memory == nil {
			n, oob, _, _, err := u.ReadMsgUnix(one, control)
			if err != nil {
				return "", err
			}
			if n == 0 {
				return "", io.ErrUnexpectedEOF
			}
			i.adopt(control[:oob])
		} else if _, err := io.ReadFull(i.conn, one); err != nil {
			return "", err
		}
		if one[0] == '\n' {
			break
		}
		text = append(text, one[0])
	}
	rest, ok := strings.CutPrefix(string(text), greeting)
	token, stream, named := strings.Cut(rest, " ")
	if !ok || !named || stream == "" ||
		subtle.ConstantTimeCompare([]byte(token), []byte(r.token)) != 1 {
		return "", errors.New("not a trainer of this session")
	}
	return stream, nil
}

// adopt keeps a descriptor that came along.
func (i *incoming) adopt(control []byte) {
	for _, fd := range memfile.Passed(control) {
		f := os.NewFile(uintptr(fd), "weights")
		if i.memory != nil {
			f.Close()
			continue
		}
		i.memory = f
	}
}

// await returns the connection of a stream, which is the caller's from then on.
func (r *receiver) await(ctx context.Context, stream string) (*incoming, error) {
	r.mu.Lock()
	a := r.streams[stream]
	if a == nil {
		if len(r.streams) >= maxStreams {
			r.mu.Unlock()
			return nil, errors.New("too many streams wait")
		}
		a = &arrival{there: make(chan struct{})}
		r.streams[stream] = a
	}
	r.mu.Unlock()
	late := time.NewTimer(matchTimeout)
	defer late.Stop()
	var err error
	select {
	case <-a.there:
	case <-late.C:
		err = fmt.Errorf("no connection has brought stream %q within %v", stream, matchTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	case <-r.life.Done():
		err = errors.New("the session of the weight transfer has ended")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams[stream] == a {
		delete(r.streams, stream)
	} else if err == nil {
		err = fmt.Errorf("stream %q has waited for more than %v", stream, matchTimeout)
	}
	if err != nil {
		if a.come != nil {
			a.come.close()
		}
		return nil, err
	}
	return a.come, nil
}

// receive takes in the pieces that a connection brings, in their order; those that pass are read
// and forgotten. It closes the connection.
func receive(ctx context.Context, c net.Conn, b *weights.Builder, pieces []weights.Piece,
	passing func(name string) bool) error {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	defer c.Close()
	r := patient{c}
	for k := range pieces {
		p := &pieces[k]
		passes := passing(p.Name)
		take := b.Receive
		if passes {
			take = weights.Discard
		}
		crc, err := take(r, p)
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		var sent [4]byte
		if _, err := io.ReadFull(r, sent[:]); err != nil {
			return fmt.Errorf("checksum of tensor %q: %w", p.Name, err)
		}
		if want := binary.LittleEndian.Uint32(sent[:]); want != crc {
			return fmt.Errorf("tensor %q: %w: its CRC-32 is %08x, %08x was sent", p.Name,
				weights.ErrChecksum, crc, want)
		}
		if !passes {
			b.Done(p)
		}
	}
	return nil
}

// patient reads from a connection whose other end must not rest for long.
type patient struct{ net.Conn }

// Read implements io.Reader.
func (p patient) Read(b []byte) (int, error) {
	if err := p.SetReadDeadline(time.Now().Add(dataTimeout)); err != nil {
		return 0, err
	}
	return p.Conn.Read(b)
}
