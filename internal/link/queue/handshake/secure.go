package handshake

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// Certificate makes a self-signed one that lives as long as the process. Neither side checks its
// name or dates: workers know its SHA-256, which is returned beside it.
func Certificate(i Instance) (tls.Certificate, [32]byte, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, [32]byte{}, fmt.Errorf("make certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, [32]byte{}, fmt.Errorf("make certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: string(i)},
		NotBefore:    now.Add(-24 * time.Hour),
		NotAfter:     now.AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return tls.Certificate{}, [32]byte{}, fmt.Errorf("make certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, sha256.Sum256(der), nil
}

// ServerTLS is TLS 1.3 alone. Records are not kept small at the start of a connection: a step is a
// few KB, and each record is a system call.
func ServerTLS(c tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates:                []tls.Certificate{c},
		MinVersion:                  tls.VersionTLS13,
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
	}
}

// ClientTLS accepts the one certificate that the endpoint names, or any if that is not pinned.
func ClientTLS(e Endpoint) *tls.Config {
	c := &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		DynamicRecordSizingDisabled: true,
		// The chain and the name say nothing here: the certificate itself is known, and checked
		// below.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return refuse(Insecure, "driver showed no certificate")
			}
			if got := sha256.Sum256(s.PeerCertificates[0].Raw); got != e.Fingerprint {
				return refuse(Insecure, "driver's certificate has fingerprint %x, not %x", got,
					e.Fingerprint)
			}
			return nil
		},
	}
	if e.Unpinned {
		c.VerifyConnection = nil
	}
	return c
}

// secure completes the TLS handshake, whichever side c is, and returns the keying material that
// binds proofs to this connection. The deadline is c's.
func secure(c *tls.Conn) ([]byte, error) {
	if err := c.HandshakeContext(context.Background()); err != nil {
		var r *Refused
		var n net.Error
		switch {
		case errors.As(err, &r):
			return nil, r
		case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &n) && n.Timeout():
			return nil, refuse(Timeout, "TLS: %v", err)
		}
		return nil, refuse(Insecure, "TLS: %v", err)
	}
	state := c.ConnectionState()
	binding, err := state.ExportKeyingMaterial(exporterLabel, nil, 32)
	if err != nil {
		return nil, refuse(Insecure, "TLS exporter: %v", err)
	}
	return binding, nil
}
