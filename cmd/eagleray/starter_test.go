package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/parent"
)

// TestStarter has a program as the only client of a server whose environment is for others: it
// needs no key, waits as long as it likes, and is refused what says where the server listens.
func TestStarter(t *testing.T) {
	var none *starter
	if limits := none.limits(); none.private() || limits != (wire.Limits{}) {
		t.Errorf("no program: private, or limits %+v", limits)
	}
	t.Setenv(parent.Variable, strconv.Itoa(os.Getpid()))
	if s := newStarter(); s == nil || s.private() {
		t.Errorf("without a socket: %+v", s)
	}
	t.Setenv(socketVariable, "5")
	s := newStarter()
	cfg := config.Default()
	cfg.Server.APIKeys, cfg.Server.Host = []string{"secret"}, "0.0.0.0"
	cfg.Server.RootPath, cfg.Server.Transport.CertFile = "/x", "x.pem"
	s.configure(&cfg)
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	c := cfg.Server
	if len(c.APIKeys) > 0 || c.RootPath != "" || c.Transport.CertFile != "" ||
		c.Transport.UDS != "/dev/fd/5" || !c.EnableRLHF {
		t.Errorf("%+v", c)
	}
	if l := s.limits(); l.BodyWait < 365*24*time.Hour || l.WriteTimeout != l.BodyWait {
		t.Errorf("limits %+v", l)
	}
	root := rootFor(new(bool), nil)
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Flags().Parse([]string{"--port", "80"}); err != nil {
		t.Fatal(err)
	}
	if err := s.refuse(serve.Flags()); err == nil ||
		!strings.Contains(err.Error(), "--port is for") {
		t.Errorf("--port: %v", err)
	}
}

// TestStarterIsTold has a server tell once why it ends, and whose fault that is.
func TestStarterIsTold(t *testing.T) {
	for args, want := range map[string]string{
		"--no-such":     `{"failed":{"message":"unknown flag: --no-such","usage":true}}`,
		"--port 99999":  `{"failed":{"message":"--port 99999 is not a port","usage":true}}`,
		"/no/such/path": `"usage":true}}`,
	} {
		p := command(t, "", append([]string{"serve"}, strings.Fields(args)...)...)
		p.cmd.Env = append(p.cmd.Env, parent.Variable+"="+strconv.Itoa(os.Getpid()))
		p.cmd.Stdin = nil
		if _, err := p.cmd.StdinPipe(); err != nil { // its end is the server's
			t.Fatal(err)
		}
		_ = p.cmd.Run()
		if got := p.out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}
