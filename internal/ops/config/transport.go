package config

import "github.com/spf13/pflag"

// Transport says how clients reach a server beside Host and Port.
type Transport struct {
	// UDS is the path of a unix socket to listen at in the place of Host and Port.
	UDS string
	// KeyFile and CertFile have the server's key and certificate, in PEM; "" is HTTP without TLS.
	KeyFile, CertFile string
	// CACerts has those who may sign the certificates of clients; CertReqs says whether clients
	// need one: 0 no, 1 only one that is shown must be valid, 2 yes.
	CACerts  string
	CertReqs int
}

// transportFlags defines the flags of Transport.
func (c *Config) transportFlags(f *pflag.FlagSet) {
	t := &c.Server.Transport
	f.StringVar(&t.UDS, "uds", "",
		"path of a unix socket to listen at, in the place of --host and --port; /dev/fd/N is one "+
			"that listens already")
	f.StringVar(&t.KeyFile, "ssl-keyfile", "",
		"file with the key for TLS, in PEM; read again when it changes")
	f.StringVar(&t.CertFile, "ssl-certfile", "",
		"file with the certificate for TLS and those above it, in PEM; read again when it changes")
	f.StringVar(&t.CACerts, "ssl-ca-certs", "", "file with those who sign certificates of clients")
	f.IntVar(&t.CertReqs, "ssl-cert-reqs", 0,
		"certificates of clients: 0 not wanted, 1 checked when shown, 2 needed")
	Choices(f, "ssl-cert-reqs", "0", "1", "2")
	Paths(f, PathFile, "uds", "ssl-keyfile", "ssl-certfile", "ssl-ca-certs")
}

// check refuses what does not go together.
func (t *Transport) check() error {
	switch {
	case (t.KeyFile == "") != (t.CertFile == ""):
		return usage("--ssl-keyfile %q with --ssl-certfile %q: TLS needs both", t.KeyFile,
			t.CertFile)
	case t.CertReqs < 0 || t.CertReqs > 2:
		return usage("--ssl-cert-reqs %d is not 0, 1 or 2", t.CertReqs)
	case t.CertReqs > 0 && t.CACerts == "":
		return usage("--ssl-cert-reqs %d needs --ssl-ca-certs", t.CertReqs)
	case t.CACerts != "" && t.KeyFile == "":
		return usage("--ssl-ca-certs needs --ssl-keyfile and --ssl-certfile")
	}
	return nil
}
