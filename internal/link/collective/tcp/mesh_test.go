package tcp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// A link makes the two ends of a connection.
type link func(t testing.TB) (net.Conn, net.Conn)

func links() map[string]link {
	return map[string]link{"tcp": tcpPair, "tls": tlsPair, "slow": slowPair, "pipe": pipePair}
}

func tcpPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

var certificate = sync.OnceValues(func() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1),
		Subject:   pkix.Name{CommonName: "rank"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
})

func tlsPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	a, b := tcpPair(t)
	return secure(t, a, b)
}

func secure(t testing.TB, a, b net.Conn) (net.Conn, net.Conn) {
	t.Helper()
	cert, err := certificate()
	if err != nil {
		t.Fatal(err)
	}
	client, server := tlsEnd(a, cert, false), tlsEnd(b, cert, true)
	done := make(chan error, 1)
	go func() { done <- client.Handshake() }()
	if err := errors.Join(server.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// tlsEnd trusts every peer: admission is not this package's matter.
func tlsEnd(c net.Conn, cert tls.Certificate, server bool) *tls.Conn {
	config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
		DynamicRecordSizingDisabled: true,
		Certificates:                []tls.Certificate{cert}}
	if server {
		return tls.Server(c, config)
	}
	return tls.Client(c, config)
}

// slowConn reads and writes in short pieces, and sometimes late. It is no TCP connection to the
// group.
type slowConn struct {
	net.Conn
	mu sync.Mutex
	r  *mathrand.Rand
}

func (c *slowConn) piece(b []byte) []byte {
	c.mu.Lock()
	n, delay := 1+c.r.IntN(1<<c.r.IntN(17)), c.r.IntN(200) == 0
	c.mu.Unlock()
	if delay {
		time.Sleep(time.Millisecond)
	}
	return b[:min(n, len(b))]
}

func (c *slowConn) Read(b []byte) (int, error) { return c.Conn.Read(c.piece(b)) }

func (c *slowConn) Write(b []byte) (done int, err error) {
	for done < len(b) {
		n, err := c.Conn.Write(c.piece(b[done:]))
		if done += n; err != nil {
			return done, err
		}
	}
	return done, nil
}

func slowPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	a, b := tcpPair(t)
	return &slowConn{Conn: a, r: mathrand.New(mathrand.NewPCG(1, 1))}, &slowConn{Conn: b,
		r: mathrand.New(mathrand.NewPCG(1, 2))}
}

// pipePair has no buffer at all: a write lasts until it is read.
func pipePair(testing.TB) (net.Conn, net.Conn) { return net.Pipe() }

// mesh connects every pair of ranks.
func mesh(t testing.TB, ranks int, l link) [][]net.Conn {
	t.Helper()
	conns := make([][]net.Conn, ranks)
	for r := range conns {
		conns[r] = make([]net.Conn, ranks)
	}
	for a := range ranks {
		for b := range a {
			conns[a][b], conns[b][a] = l(t)
		}
	}
	return conns
}

// group joins all ranks in this process.
func group(t testing.TB, ranks int, l link, o Options) []*Group {
	t.Helper()
	gs := make([]*Group, ranks)
	for r, conns := range mesh(t, ranks, l) {
		g, err := Join(conns, r, o)
		if err != nil {
			t.Fatal(err)
		}
		gs[r] = g
	}
	t.Cleanup(func() {
		for _, err := range collectivetest.Each(gs, (*Group).Close) {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return gs
}
