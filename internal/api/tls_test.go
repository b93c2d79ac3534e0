package api

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true,
		BasicConstraintsValid: true, Subject: pkix.Name{CommonName: "authority"},
		NotAfter: time.Now().Add(time.Hour)}
	a.key = newKey(t)
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(raw); err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign makes a certificate for localhost and its key.
func (a *authority) sign(name string) (cert, key []byte) {
	a.t.Helper()
	own := newKey(a.t)
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2),
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotAfter: time.Now().Add(time.Hour)}, a.cert, &own.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

func put(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTLS serves over TLS, reads a certificate again that was replaced, keeps the one it has while
// the files are wrong, and asks clients for theirs.
func TestTLS(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	c := config.Transport{CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key"),
		CACerts: filepath.Join(dir, "ca"), CertReqs: 2}
	replace := func(name string) {
		cert, key := a.sign(name)
		put(t, c.KeyFile, key)
		put(t, c.CertFile, cert)
	}
	replace("first")
	put(t, c.CACerts, a.pem)
	s := newServer(t, func(o *Options) { o.Config.Server.MaxConnections = 4 })
	secure, err := server.TLS(&c, slog.New(slog.NewTextHandler(s.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	l, err := server.Listen("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	server := s.HTTPServer(l.Addr().String())
	done := make(chan error, 1)
	go func() { done <- server.Serve(tls.NewListener(s.Limit(l), secure)) }()
	defer func() {
		server.Close()
		<-done
	}()
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	cert, key := a.sign("client")
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(certificates ...tls.Certificate) (name string, err error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
			ServerName:   "localhost",
			Certificates: certificates}}
		defer transport.CloseIdleConnections()
		r := newRequest("GET", "https://"+l.Addr().String()+"/v1/models", "")
		r.RequestURI = ""
		resp, err := transport.RoundTrip(r)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("answered %s", resp.Status)
		}
		return resp.TLS.PeerCertificates[0].Subject.CommonName, nil
	}
	if name, err := ask(own); err != nil || name != "first" {
		t.Fatalf("%q, %v", name, err)
	}
	if _, err := ask(); err == nil {
		t.Error("a client without a certificate is answered")
	}
	put(t, c.CertFile, []byte("half of a cert"))
	eventually(t, "a warning", func() bool {
		time.Sleep(20 * time.Millisecond) // each asks for a handshake
		name, err := ask(own)
		return err == nil && name == "first" && strings.Contains(s.log.String(),
			"the one before stays")
	})
	replace("second")
	eventually(t, "the second certificate", func() bool {
		time.Sleep(20 * time.Millisecond)
		name, err := ask(own)
		return err == nil && name == "second"
	})
	// HTTP without TLS is told so, and a client that says nothing is not waited for.
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.0\r\n\r\n")
	line, _ := bufio.NewReader(conn).ReadString('\n')
	if !strings.Contains(line, "400") {
		t.Errorf("HTTP is answered %q", line)
	}
}

// TestTLSRefused: files that are no certificate end the start, with the flag's name.
func TestTLSRefused(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	cert, key := a.sign("first")
	_, foreign := a.sign("other")
	put(t, path("cert"), cert)
	put(t, path("key"), key)
	put(t, path("foreign"), foreign)
	put(t, path("empty"), nil)
	for want, c := range map[string]config.Transport{
		"no such file":       {CertFile: path("none"), KeyFile: path("key")},
		"does not match":     {CertFile: path("cert"), KeyFile: path("foreign")},
		"failed to find any": {CertFile: path("empty"), KeyFile: path("key")},
		"--ssl-ca-certs: ": {CertFile: path("cert"), KeyFile: path("key"), CACerts: path("empty"),
			CertReqs: 1},
	} {
		_, err := server.TLS(&c, nil)
		var mistake *config.UsageError
		if !errors.As(err, &mistake) || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "--ssl-") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if c, err := server.TLS(&config.Transport{}, nil); c != nil || err != nil {
		t.Errorf("without files: %v, %v", c, err)
	}
}

// TestUDS serves at a unix socket, also where a server has left one behind, but not in the place of
// one that runs, or of another file.
func TestUDS(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	at := func(path string) (net.Listener, error) {
		return server.ListenAt(&config.Server{Transport: config.Transport{UDS: path}})
	}
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	l, err := at(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := at(path); err == nil || !strings.Contains(err.Error(),
		"another server listens there") {
		t.Errorf("a socket in use: %v", err)
	}
	file := filepath.Join(t.TempDir(), "f")
	put(t, file, nil)
	if _, err := at(file); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
	for _, path := range []string{"/dev/fd/x", "/dev/fd/0", "/dev/fd/1000000"} {
		if _, err := at(path); err == nil || !strings.HasPrefix(err.Error(), "--uds "+path+": ") {
			t.Errorf("%s: %v", path, err)
		}
	}
	s := newServer(t)
	server := s.HTTPServer(l.Addr().String())
	done := make(chan error, 1)
	go func() { done <- server.Serve(s.Limit(l)) }()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{` + hi + `}`
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: any.name\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\nConnection: close\r\n\r\n%s", completionsPath, len(body), body)
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		t.Errorf("%s %v", answer, err)
	}
	server.Close()
	<-done
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left behind")
	}
}

// TestUDSHandedOver serves at a socket that has no name any more when the server gets it.
func TestUDSHandedOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	before, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	file, err := before.File()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	before.Close() // and its name goes
	fd, err := syscall.Dup(int(file.Fd()))
	if file.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := server.ListenAt(
		&config.Server{Transport: config.Transport{UDS: fmt.Sprintf("/dev/fd/%d", fd)}})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	server := s.HTTPServer(l.Addr().String())
	done := make(chan error, 1)
	go func() { done <- server.Serve(s.Limit(l)) }()
	fmt.Fprint(conn, "GET /livez HTTP/1.1\r\nHost: any.name\r\nConnection: close\r\n\r\n")
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		t.Errorf("%s %v", answer, err)
	}
	server.Close()
	<-done
}
