package queuebench

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"sync"
	"time"
)

// tlsFloor is a round trip over bare TLS 1.3 connections on loopback: as many bytes to every reader
// as a record has, and as many back from the first as its reply has. Nothing is framed, numbered or
// kept. Large payloads go to all readers at the same time.
type tlsFloor struct {
	listener net.Listener
	file     *os.File
	readers  int
	there    []byte
	back     []byte
	large    []byte // a reader's, for large payloads
	trips    uint64
	at       address // a reader's way to the driver

	mu    sync.Mutex
	conns []net.Conn
	gone  bool
}

// address is what a reader needs to connect.
type address struct {
	Address     string
	Certificate []byte
}

func (linkTransport) newFloor(o Options) (floor, error) {
	certificate, err := selfSigned()
	if err != nil {
		return nil, err
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})
	if err != nil {
		return nil, err
	}
	f, err := memoryFile("eagleray-floor", address{l.Addr().String(), certificate.Certificate[0]})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &tlsFloor{listener: l, file: f, readers: o.Readers, there: make([]byte, o.Size),
		back: make([]byte, o.ReplySize)}, nil
}

func (linkTransport) openFloor(given *os.File, replySize, size int) (floor, error) {
	var a address
	if err := readMemoryFile(given, &a); err != nil {
		return nil, err
	}
	return &tlsFloor{there: make([]byte, size), back: make([]byte, replySize), at: a}, nil
}

// connection is a reader's. It is dialled when it is first needed: the driver accepts no sooner.
// The first byte says whether it is the one of the reader that replies.
func (f *tlsFloor) connection(reply bool) (net.Conn, error) {
	if len(f.conns) > 0 { // only this goroutine adds
		return f.conns[0], nil
	}
	if err := f.dial(); err != nil {
		return nil, err
	}
	hello := []byte{0}
	if reply {
		hello[0] = 1
	}
	_, err := f.conns[0].Write(hello)
	return f.conns[0], err
}

func (f *tlsFloor) dial() error {
	certificate, err := x509.ParseCertificate(f.at.Certificate)
	if err != nil {
		return err
	}
	known := x509.NewCertPool()
	known.AddCert(certificate)
	c, err := tls.Dial("tcp", f.at.Address, &tls.Config{RootCAs: known, ServerName: "127.0.0.1",
		MinVersion: tls.VersionTLS13})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = []net.Conn{c}
	if f.gone {
		return errors.Join(errFloor, c.Close())
	}
	return nil
}

// selfSigned makes a certificate for this run.
func selfSigned() (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour),
		NotAfter:    now.Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, nil
}

func (f *tlsFloor) given() *os.File { return f.file }

func (f *tlsFloor) made() uint64 { return f.trips }

// connected are the readers' connections. The first reader is the one that says so with its first
// byte.
func (f *tlsFloor) connected() ([]net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.conns) < f.readers {
		if f.gone {
			return nil, errFloor
		}
		f.mu.Unlock()
		c, err := f.listener.Accept()
		f.mu.Lock()
		if err != nil {
			return nil, err
		}
		var first [1]byte
		if _, err := io.ReadFull(c, first[:]); err != nil {
			return nil, err
		}
		f.conns = append(f.conns, c)
		if last := len(f.conns) - 1; first[0] == 1 {
			f.conns[0], f.conns[last] = f.conns[last], f.conns[0]
		}
	}
	return f.conns, nil
}

func (f *tlsFloor) trip() (time.Duration, error) {
	conns, err := f.connected()
	if err != nil {
		return 0, fmt.Errorf("floor: %w", err)
	}
	f.trips++
	began := time.Now()
	for _, c := range conns {
		if _, err := c.Write(f.there); err != nil {
			return 0, fmt.Errorf("floor: %w", err)
		}
	}
	if _, err := io.ReadFull(conns[0], f.back); err != nil {
		return 0, fmt.Errorf("floor: %w", err)
	}
	return time.Since(began), nil
}

func (f *tlsFloor) answer(end uint64, reply bool) error {
	c, err := f.connection(reply)
	if err != nil {
		return err
	}
	for ; f.trips < end; f.trips++ {
		if _, err := io.ReadFull(c, f.there); err != nil {
			return err
		}
		if !reply {
			continue
		}
		if _, err := c.Write(f.back); err != nil {
			return err
		}
	}
	return nil
}

func (f *tlsFloor) push(payload []byte, n int) (time.Duration, error) {
	conns, err := f.connected()
	if err != nil {
		return 0, fmt.Errorf("floor: %w", err)
	}
	errs := make([]error, len(conns))
	began := time.Now()
	var pushing sync.WaitGroup
	for i, c := range conns {
		pushing.Go(func() {
			for range n {
				if _, err := c.Write(payload); err != nil {
					errs[i] = fmt.Errorf("floor: %w", err)
					return
				}
			}
			var all [1]byte
			if _, err := io.ReadFull(c, all[:]); err != nil {
				errs[i] = fmt.Errorf("floor: %w", err)
			}
		})
	}
	pushing.Wait()
	return time.Since(began), errors.Join(errs...)
}

func (f *tlsFloor) absorb(n uint64, reply bool) error {
	c, err := f.connection(reply)
	if err != nil {
		return err
	}
	if f.large == nil {
		f.large = make([]byte, largePayload)
	}
	for range n {
		if _, err := io.ReadFull(c, f.large); err != nil {
			return err
		}
	}
	_, err = c.Write([]byte{1})
	return err
}

func (f *tlsFloor) fail() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
	for _, c := range f.conns {
		_ = c.Close() // waits end; there is nothing to lose
	}
	if f.listener != nil {
		_ = f.listener.Close()
	}
}

func (f *tlsFloor) close() error {
	f.fail()
	if f.file != nil {
		return f.file.Close()
	}
	return nil
}

var (
	_ floor  = (*tlsFloor)(nil)
	_ stream = (*tlsFloor)(nil)
)
