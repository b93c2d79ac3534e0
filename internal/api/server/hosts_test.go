package server

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/ops/config"
)

// fakeMachine is called box.example.com, and has an address in a local network.
func fakeMachine() *machineNames {
	return &machineNames{names: []string{"box.example.com", "box", "box.local"},
		addresses: func() []netip.Addr {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"),
				netip.MustParseAddr("192.168.1.5"), netip.MustParseAddr("fe80::1")}
		}}
}

// TestHostsAndOrigins walks what browsers send, to servers bound to loopback and to all addresses.
func TestHostsAndOrigins(t *testing.T) {
	const (
		loop  = "127.0.0.1:8000"
		loop6 = "[::1]:8000"
		all   = "0.0.0.0:8000"
		lan   = "192.168.1.5:8000"
	)
	const ok, foreignHost, foreignOrigin = 200, http.StatusMisdirectedRequest, http.StatusForbidden
	for _, c := range []struct {
		bound, host, origin string
		status              int
	}{
		// Names of this machine, no page.
		{loop, "localhost:8000", "", ok},
		{loop, "127.0.0.1:8000", "", ok},
		{loop, "[::1]:8000", "", ok},
		{loop, "[::1]", "", ok},
		{loop, "0.0.0.0:8000", "", ok},
		{loop, "0.0.0.0", "", ok},
		{loop, "[::]:8000", "", ok},
		{loop, "[::ffff:127.0.0.1]:8000", "", ok},
		{loop, "box:8000", "", ok},
		{loop, "BOX.local:8000", "", ok},
		{loop, "box.example.com", "", ok},
		{loop, "box.example.com.", "", ok},
		{loop, "192.168.1.5:8000", "", ok},
		{loop, "[fe80::1%eth0]:8000", "", ok},
		{loop6, "localhost:8000", "", ok},
		{loop6, "127.0.0.1:8000", "", ok},
		{all, "0.0.0.0:8000", "", ok},
		{all, "192.168.1.5:8000", "", ok},
		{all, "llm.internal:8000", "", ok},
		{lan, "192.168.1.5:8000", "", ok},

		// DNS rebinding: names that others own, and addresses of others.
		{loop, "evil.com", "", foreignHost},
		{loop, "evil.com:8000", "http://evil.com:8000", foreignHost},
		{loop, "evil.com:8000", "http://localhost:3000", foreignHost},
		{loop, "localhost.evil.com:8000", "", foreignHost},
		{loop, "127.0.0.1.evil.com", "", foreignHost},
		{loop, "127.0.0.1.nip.io", "", foreignHost},
		{loop, "0.0.0.0.evil.com", "", foreignHost},
		{loop, "box.evil.com", "", foreignHost},
		{loop, "box.example.com.evil.com", "", foreignHost},
		{loop, "notlocalhost", "", foreignHost},
		{loop, "10.0.0.5:8000", "", foreignHost},
		{loop, "[2001:db8::1]:8000", "", foreignHost},
		{loop, "2130706433:8000", "", foreignHost},
		{loop6, "evil.com", "", foreignHost},

		// A page of this machine, from another port.
		{loop, "localhost:8000", "http://localhost:3000", ok},
		{loop, "127.0.0.1:8000", "http://localhost:3000", ok},
		{loop, "localhost:8000", "https://localhost:5173", ok},
		{loop, "localhost:8000", "http://127.0.0.1:3000", ok},
		{loop, "localhost:8000", "http://[::1]:3000", ok},
		{loop, "localhost:8000", "http://0.0.0.0:3000", ok},
		{loop, "localhost:8000", "http://app.localhost", ok},
		{loop, "box:8000", "http://localhost:3000", ok},
		{loop6, "[::1]:8000", "http://localhost:3000", ok},
		{all, "localhost:8000", "http://localhost:3000", ok},
		{all, "0.0.0.0:8000", "http://localhost:3000", ok},
		{loop, "localhost:8000", "http://localhost:8000", ok},
		{lan, "192.168.1.5:8000", "http://192.168.1.5:8000", ok},

		// Pages of others.
		{loop, "localhost:8000", "http://evil.com", foreignOrigin},
		{loop, "localhost:8000", "http://localhost.evil.com:3000", foreignOrigin},
		{loop, "localhost:8000", "http://localhost:3000@evil.com", foreignOrigin},
		{loop, "localhost:8000", "http://evil.com#localhost", foreignOrigin},
		{loop, "localhost:8000", "http://box:3000", foreignOrigin},
		{loop, "localhost:8000", "http://192.168.1.9:3000", foreignOrigin},
		{loop, "localhost:8000", "null", foreignOrigin},
		{loop, "localhost:8000", "file://", foreignOrigin},
		{loop, "localhost:8000", "chrome-extension://localhost", foreignOrigin},
		{loop, "localhost:8000", "localhost:3000", foreignOrigin},
		{loop, "localhost:8000", "http://", foreignOrigin},
		{loop, "localhost:8000", "https://[::1", foreignOrigin},
		{all, "192.168.1.5:8000", "http://localhost:3000", foreignOrigin},
		{all, "localhost:8000", "http://evil.com", foreignOrigin},
		{lan, "192.168.1.5:8000", "http://localhost:3000", foreignOrigin},
	} {
		s := newServer(t)
		guard := s.guard(isLoopbackAddr(c.bound))
		guard.machine = fakeMachine()
		do := func(method, path string, headers ...string) *httptest.ResponseRecorder {
			r := newRequest(method, path, "")
			r.Host = c.host
			r.Header.Set("Origin", c.origin)
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			rec := httptest.NewRecorder()
			s.serve(rec, s.newRequest(r), guard)
			return rec
		}
		rec := do("GET", "/v1/models")
		if rec.Code != c.status {
			t.Errorf("on %s, host %s, origin %q answered %d, want %d", c.bound, c.host, c.origin,
				rec.Code, c.status)
		}
		readable := rec.Header().Get("Access-Control-Allow-Origin")
		preflight := do("OPTIONS", "/v1/completions", "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "content-type")
		cross := c.origin != "" && c.origin != "http://"+c.host
		if c.status == ok && cross {
			if readable != c.origin || preflight.Code != 204 ||
				preflight.Header().Get("Access-Control-Allow-Origin") != c.origin ||
				preflight.Header().Get("Access-Control-Allow-Headers") != "content-type" {
				t.Errorf("on %s, a page of %s may read %q, its preflight got %d %v", c.bound,
					c.origin, readable, preflight.Code, preflight.Header())
			}
			continue
		}
		if readable != "" || preflight.Code == 204 {
			t.Errorf("on %s, host %s, a page of %q may read %q, its preflight got %d", c.bound,
				c.host, c.origin, readable, preflight.Code)
		}
	}
}

// TestOwnNames: the machine's own host name and addresses are among its names.
func TestOwnNames(t *testing.T) {
	m := thisMachine("Llm.Internal")
	if !m.has("llm.internal") {
		t.Error("the name that --host gives is not known")
	}
	addresses := interfaceAddresses()
	if len(addresses) == 0 {
		t.Fatal("the machine has no address")
	}
	for _, a := range addresses {
		if !m.has(a.String()) {
			t.Errorf("the machine's own address %s is not known", a)
		}
	}
	if m.has("evil.com") || m.has("203.0.113.7") {
		t.Error("a name of others passes for the machine's")
	}
}

// TestCredentialsAreForListedOrigins: a page of this machine may call, without credentials.
func TestCredentialsAreForListedOrigins(t *testing.T) {
	s := newServer(t, func(o *Options) {
		o.Config.AllowedOrigins = []string{"https://app.example"}
		o.Config.AllowCredentials = true
	})
	h := s.do("GET", "/v1/models", "", "Origin", "http://localhost:3000").Header()
	if h.Get("Access-Control-Allow-Origin") != "http://localhost:3000" ||
		h.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("a page of this machine got %v", h)
	}
	h = s.do("GET", "/v1/models", "", "Origin", "https://app.example").Header()
	if h.Get("Access-Control-Allow-Credentials") != "true" {
		t.Errorf("a listed origin got %v", h)
	}
}

// TestRefusalsNameTheFlag: a refused host or origin is answered by a server with the flag that the
// refusal names, and as it writes it.
func TestRefusalsNameTheFlag(t *testing.T) {
	for _, c := range []struct{ host, origin, flag string }{
		{"localhost:8000", "null", "--allowed-origins null"},
		{"localhost:8000", "http://host.docker.internal:3000",
			"--allowed-origins http://host.docker.internal:3000"},
		{"localhost:8000", "file://", "--allowed-origins file://"},
		{"host.docker.internal:8000", "", "--allowed-hosts host.docker.internal"},
	} {
		ask := func(args ...string) *httptest.ResponseRecorder {
			cfg := config.Default()
			f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			cfg.ServerFlags(f)
			if err := f.Parse(args); err != nil {
				t.Fatal(err)
			}
			s := newServer(t, func(o *Options) { o.Config = cfg.Server })
			r := newRequest("GET", "/v1/models", "")
			r.Host = c.host
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			rec := httptest.NewRecorder()
			s.Handler().ServeHTTP(rec, r)
			return rec
		}
		refused := ask()
		if refused.Code < 400 || !strings.Contains(refused.Body.String(), c.flag+" ") {
			t.Errorf("%+v: %d %s", c, refused.Code, refused.Body)
		}
		rec := ask(strings.Fields(c.flag)...)
		if rec.Code != 200 || rec.Header().Get("Access-Control-Allow-Origin") != c.origin {
			t.Errorf("%+v with the flag: %d %v", c, rec.Code, rec.Header())
		}
	}
}
