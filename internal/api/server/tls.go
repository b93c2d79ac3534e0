package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/eagleray/eagleray/internal/ops/config"
)

// ListenAt listens where the flags say: at a unix socket, else at an address (Listen).
func ListenAt(c *config.Server) (net.Listener, error) {
	path := c.Transport.UDS
	if path == "" {
		l, err := Listen(c.Host, c.Port)
		if err != nil {
			return nil, fmt.Errorf("--host %s --port %d: %w", c.Host, c.Port, err)
		}
		return l, nil
	}
	l, err := listenUnix(path)
	if err != nil {
		return nil, fmt.Errorf("--uds %s: %w", path, err)
	}
	return l, nil
}

// listenUnix listens at a path; /dev/fd/N is a socket that this process was started with, which
// listens already.
func listenUnix(path string) (net.Listener, error) {
	if name, ok := strings.CutPrefix(path, "/dev/fd/"); ok {
		fd, err := strconv.Atoi(name)
		if err != nil || fd < firstInherited {
			return nil, errors.New("it is not the number of a descriptor that was handed over")
		}
		syscall.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), path)
		defer f.Close()
		return net.FileListener(f) // a duplicate
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

// removeStale removes a socket that a server left behind which has not ended by itself: no process
// listens there any more.
func removeStale(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return errors.New("there is a file that is no socket")
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
		return errors.New("another server listens there")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// TLS is how connections are encrypted, nil when they are not. The certificate is read again when
// its files change, for connections that come after that.
func TLS(t *config.Transport, log *slog.Logger) (*tls.Config, error) {
	if t.KeyFile == "" {
		return nil, nil
	}
	p := &keyPair{cert: t.CertFile, key: t.KeyFile, log: log}
	if err := p.load(); err != nil {
		return nil, &config.UsageError{Err: fmt.Errorf("--ssl-certfile, --ssl-keyfile: %w", err)}
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: p.get}
	if t.CACerts == "" {
		return c, nil
	}
	text, err := os.ReadFile(t.CACerts)
	if err != nil {
		return nil, &config.UsageError{Err: fmt.Errorf("--ssl-ca-certs: %w", err)}
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, &config.UsageError{Err: fmt.Errorf("--ssl-ca-certs: %s has no certificate",
			t.CACerts)}
	}
	c.ClientAuth = []tls.ClientAuthType{tls.NoClientCert, tls.VerifyClientCertIfGiven,
		tls.RequireAndVerifyClientCert}[t.CertReqs]
	return c, nil
}

// keyPair is a certificate and its key, which are replaced when their files are.
type keyPair struct {
	cert, key string
	log       *slog.Logger

	mu sync.Mutex
	// looked is when the files were looked at, seen what they were like then.
	looked  time.Time
	seen    [2]fileState
	current *tls.Certificate
}

// fileState tells a file that was changed or replaced from what it was.
type fileState struct {
	changed time.Time
	size    int64
	file    uint64
}

func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}
	}
	s := fileState{changed: info.ModTime(), size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.file = sys.Ino
	}
	return s
}

// lookEvery is how often connections look at the files.
const lookEvery = time.Second

// get implements tls.Config.GetCertificate.
func (p *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.looked) < lookEvery {
		return p.current, nil
	}
	if err := p.load(); err != nil {
		// One of the two files may be replaced in a moment.
		p.log.Warn("the certificate cannot be read: the one before stays", "error", err)
	}
	return p.current, nil
}

// load reads the files if they have changed since they were looked at.
func (p *keyPair) load() error {
	state := [2]fileState{stateOf(p.cert), stateOf(p.key)}
	p.looked = time.Now()
	if state == p.seen && p.current != nil {
		return nil
	}
	p.seen = state
	pair, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return err
	}
	if p.current != nil {
		p.log.Info("the certificate was read again", "not_after", pair.Leaf.NotAfter)
	}
	p.current = &pair
	return nil
}
