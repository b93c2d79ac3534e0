package api

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/openapi"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
)

var parameter = regexp.MustCompile(`{\w+(\.\.\.)?}`)

// TestRouterWalk: without a key every route but the short public list is 401, whatever the method;
// with one none is.
func TestRouterWalk(t *testing.T) {
	keys := func(o *Options) { o.Config.Server.APIKeys = []string{"sk-one", "", "sk-two"} }
	s := newServer(t, keys)
	// Of the routes that steer a server none is called: there is no key.
	steered := newServer(t, keys, func(o *Options) {
		o.Elastic, o.Trainer, o.Config.Server.EnableRLHF = &fakeElastic{}, &rlhf.Control{}, true
	})
	if n := len(steered.Routes()) - len(s.Routes()); n < 20 {
		t.Errorf("only %d routes steer a server", n)
	}
	walkWithoutKey(t, s)
	walkWithoutKey(t, steered)
	for _, r := range s.Routes() {
		path := parameter.ReplaceAllString(r.Path, "tiny")
		if rec := s.do(r.Method, path, "", "Authorization",
			"Bearer sk-two"); rec.Code == http.StatusUnauthorized {
			t.Errorf("%s %s refused a good key", r.Method, path)
		}
	}
	// Paths that look like routes.
	for _, path := range []string{"/", "/v1", "/v1/", "//v1/models", "/v1/models/", "/V1/models",
		"/v1/models/..", "/v1/completions/", "/invocations", "/v1//completions", "/metrics/",
		"/health/../metrics"} {
		if rec := s.do("GET", path, ""); rec.Code != http.StatusUnauthorized {
			t.Errorf("%s without a key answered %d", path, rec.Code)
		}
	}
	if len(s.engine.requests) != 0 {
		t.Error("a request without a key reached the engine")
	}
}

// walkWithoutKey asks every route with every method.
func walkWithoutKey(t *testing.T, s *testServer) {
	t.Helper()
	public := []string{"/health", "/livez", "/ping", "/readyz", "/version",
		openapi.DocumentPath, openapi.PagePath}
	routes := s.Routes()
	if len(routes) < 12 {
		t.Fatalf("only %d routes", len(routes))
	}
	for _, r := range routes {
		path := parameter.ReplaceAllString(r.Path, "tiny")
		if r.Public != slices.Contains(public, r.Path) {
			t.Errorf("%s %s is public: %v", r.Method, r.Path, r.Public)
		}
		for _, method := range []string{r.Method, "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
			"BREW"} {
			rec := s.do(method, path, "")
			if r.Public {
				if rec.Code == http.StatusUnauthorized {
					t.Errorf("%s %s needs a key", method, path)
				}
				continue
			}
			if rec.Code != http.StatusUnauthorized || rec.Header().Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s without a key answered %d", method, path, rec.Code)
			}
			if method != "HEAD" {
				e := at(t, object(t, rec.Body.Bytes()), "error").(map[string]any)
				if strings.HasPrefix(r.Path, anthropic.MessagesPath) {
					if e["message"] != "Unauthorized" || e["type"] != "authentication_error" {
						t.Errorf("%s %s: body %v", method, path, e)
					}
				} else if e["message"] != "Unauthorized" || e["type"] != "AuthenticationError" ||
					e["code"] != 401.0 {
					t.Errorf("%s %s: body %v", method, path, e)
				}
			}
		}
	}
}

func TestKeys(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Config.Server.APIKeys = []string{"sk-one", "sk-two"} })
	for header, want := range map[string]int{
		"Bearer sk-one": 200, "bearer sk-two": 200, "BEARER sk-one": 200, "Bearer  sk-one": 200,
		"": 401, "Bearer": 401, "Bearer ": 401, "Bearer sk-on": 401, "Bearer sk-onee": 401,
		"Bearer SK-ONE": 401,
		"Basic sk-one":  401, "sk-one": 401, "Bearer sk-one,sk-two": 401, "Token sk-one": 401,
	} {
		rec := s.do("GET", "/v1/models", "", "Authorization", header)
		if rec.Code != want {
			t.Errorf("%q answered %d, want %d", header, rec.Code, want)
		}
	}
	for _, c := range []struct {
		code    int
		headers []string
	}{
		{200, []string{"X-Api-Key", "sk-one"}},
		{200, []string{"X-Api-Key", "sk-wrong", "Authorization", "Bearer sk-one"}},
		{401, []string{"X-Api-Key", "sk-one", "Authorization", "Bearer sk-wrong"}},
		{401, []string{"X-Api-Key", "sk-one", "X-Api-Key", "sk-one"}},
		{401, []string{"X-Api-Key", "sk-on"}},
		{401, []string{"X-Api-Key", ""}},
	} {
		if rec := s.do("GET", "/v1/models", "", c.headers...); rec.Code != c.code {
			t.Errorf("%q answered %d, want %d", c.headers, rec.Code, c.code)
		}
	}
	if rec := s.do("GET", "/v1/models", "", "Authorization", "Bearer sk-one", "Authorization",
		"Bearer sk-one"); rec.Code != 401 {
		t.Errorf("two headers answered %d", rec.Code)
	}
	if rec := s.do("GET", "/v1/models?api_key=sk-one", ""); rec.Code != 401 {
		t.Errorf("a key in the query answered %d", rec.Code)
	}
	open := newServer(t, func(o *Options) { o.Config.Server.APIKeys = []string{""} })
	if rec := open.do("GET", "/v1/models", ""); rec.Code != 200 {
		t.Errorf("empty keys: %d", rec.Code)
	}
}

func TestMethodsAndPaths(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Config.Server.RootPath = "/api/" })
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", completionsPath, 405, "POST"},
		{"PUT", completionsPath, 405, "POST"},
		{"OPTIONS", completionsPath, 405, "POST"},
		{"HEAD", completionsPath, 405, "POST"},
		{"DELETE", "/v1/models", 405, "GET, HEAD"},
		{"POST", "/health", 405, "GET, HEAD"},
		{"DELETE", "/ping", 405, "GET, HEAD, POST"},
		{"HEAD", "/health", 200, ""},
		{"POST", "/ping", 200, ""},
		{"GET", "/v1/completions/", 404, ""},
		{"GET", "//v1/models", 404, ""},
		{"GET", "/v1/models/", 404, ""},
		{"GET", "/nowhere", 404, ""},
		{"GET", "/v1/models/alias/tiny", 200, ""},
		{"GET", "/v1/models/alias%2Ftiny", 200, ""},
		{"GET", "/v1/models/other", 404, ""},
		{"GET", "/api/v1/models", 200, ""},
		{"GET", "/apiv1/models", 404, ""},
		{"GET", "/api", 404, ""},
		{"GET", "/v1%2Fmodels", 200, ""},
	} {
		rec := s.do(c.method, c.path, "")
		if rec.Code != c.status || rec.Header().Get("Allow") != c.allow {
			t.Errorf("%s %s answered %d, Allow %q; want %d, %q", c.method, c.path, rec.Code,
				rec.Header().Get("Allow"), c.status, c.allow)
		}
		if rec.Code >= 400 && c.method != "HEAD" {
			at(t, object(t, rec.Body.Bytes()), "error", "message")
		}
		if rec.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s lacks nosniff", c.method, c.path)
		}
	}
}

func TestHosts(t *testing.T) {
	for _, c := range []struct {
		addr    string
		allowed []string
		host    string
		want    bool
	}{
		{"127.0.0.1:8000", nil, "localhost", true},
		{"127.0.0.1:8000", nil, "localhost:8000", true},
		{"127.0.0.1:8000", nil, "LOCALHOST.:8000", true},
		{"127.0.0.1:8000", nil, "app.localhost", true},
		{"127.0.0.1:8000", nil, "127.0.0.1:8000", true},
		{"127.0.0.1:8000", nil, "127.9.9.9", true},
		{"[::1]:8000", nil, "[::1]:8000", true},
		{"[::1]:8000", nil, "[::1]", true},
		{"localhost:8000", nil, "evil.com", false},
		{"127.0.0.1:8000", nil, "evil.com:8000", false},
		{"127.0.0.1:8000", nil, "localhost.evil.com", false},
		{"127.0.0.1:8000", nil, "10.0.0.5", false},
		{"127.0.0.1:8000", nil, "127.0.0.1.evil.com", false},
		{"127.0.0.1:8000", []string{"llm.example"}, "llm.example:80", true},
		{"127.0.0.1:8000", []string{"llm.example"}, "LLM.example", true},
		{"127.0.0.1:8000", []string{"llm.example"}, "evil.com", false},
		{"127.0.0.1:8000", []string{"*"}, "evil.com", true},
		{"0.0.0.0:8000", nil, "anything.example", true},
		{":8000", nil, "anything.example", true},
		{"10.0.0.5:8000", nil, "anything.example", true},
		{"10.0.0.5:8000", []string{"llm.example"}, "anything.example", false},
		{"10.0.0.5:8000", []string{"llm.example"}, "localhost", true},
	} {
		s := newServer(t, func(o *Options) { o.Config.Server.AllowedHosts = c.allowed })
		r := newRequest("GET", "/health", "")
		r.Host = c.host
		rec := newRecorder()
		s.HTTPServer(c.addr).Handler.ServeHTTP(rec, r)
		if got := rec.Code == 200; got != c.want {
			t.Errorf("on %s with %v, host %s answered %d", c.addr, c.allowed, c.host, rec.Code)
		}
		if !c.want && rec.Code != http.StatusMisdirectedRequest {
			t.Errorf("host %s answered %d", c.host, rec.Code)
		}
	}
}

func TestOrigins(t *testing.T) {
	closed := newServer(t)
	listed := newServer(t, func(o *Options) {
		o.Config.Server.AllowedOrigins = []string{"https://app.example"}
		o.Config.Server.AllowCredentials = true
	})
	anyone := newServer(t, func(o *Options) { o.Config.Server.AllowedOrigins = []string{"*"} })
	for _, c := range []struct {
		s      *testServer
		origin string
		status int
		allow  string
	}{
		{closed, "", 200, ""},
		{closed, "http://localhost:8000", 200, ""},
		{closed, "http://localhost:3000", 200, "http://localhost:3000"},
		{closed, "http://localhost.evil.com", 403, ""},
		{closed, "https://evil.com", 403, ""},
		{closed, "null", 403, ""},
		{closed, "not a url", 403, ""},
		{listed, "https://app.example", 200, "https://app.example"},
		{listed, "https://app.example.evil.com", 403, ""},
		{listed, "http://app.example", 403, ""},
		{anyone, "https://evil.com", 200, "*"},
		{anyone, "null", 200, "*"},
	} {
		for _, method := range []string{"POST", "GET"} {
			path, body := completionsPath, `{`+hi+`}`
			if method == "GET" {
				path, body = "/v1/models", ""
			}
			rec := c.s.do(method, path, body, "Origin", c.origin)
			if rec.Code != c.status || rec.Header().Get("Access-Control-Allow-Origin") != c.allow {
				t.Errorf("%s from %q answered %d, allows %q; want %d, %q", method, c.origin,
					rec.Code, rec.Header().Get("Access-Control-Allow-Origin"), c.status, c.allow)
			}
		}
	}
	for _, method := range []string{"DELETE", "PUT", "PATCH"} {
		if rec := closed.do(method, completionsPath, "", "Origin",
			"https://evil.com"); rec.Code != 403 {
			t.Errorf("%s across sites answered %d", method, rec.Code)
		}
	}
}

func TestPreflight(t *testing.T) {
	s := newServer(t, func(o *Options) {
		o.Config.Server.APIKeys, o.Config.Server.AllowedOrigins,
			o.Config.Server.AllowedHeaders = []string{"k"}, []string{"https://app.example"},
			[]string{"Authorization"}
	})
	rec := s.do("OPTIONS", completionsPath, "", "Origin", "https://app.example",
		"Access-Control-Request-Method", "POST")
	h := rec.Header()
	if rec.Code != 204 || h.Get("Access-Control-Allow-Origin") != "https://app.example" ||
		h.Get("Access-Control-Allow-Methods") == "" ||
		h.Get("Access-Control-Allow-Headers") != "Authorization" || h.Get("Vary") != "Origin" {
		t.Errorf("preflight answered %d %v", rec.Code, h)
	}
	if rec := s.do("OPTIONS", completionsPath, "", "Origin", "https://evil.com",
		"Access-Control-Request-Method", "POST"); rec.Code != 403 {
		t.Errorf("preflight of another site answered %d", rec.Code)
	}
	if rec := newServer(t).do("OPTIONS", completionsPath, "", "Origin", "http://localhost:8000",
		"Access-Control-Request-Method", "POST"); rec.Code != 405 {
		t.Errorf("preflight without CORS answered %d", rec.Code)
	}
}

func TestRequestIDHeader(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Config.Server.EnableRequestIDHeaders = true })
	rec := s.do("POST", completionsPath, `{`+hi+`,"request_id":"field"}`, "X-Request-Id", "header")
	if rec.Header().Get("X-Request-Id") != "header" || object(t,
		rec.Body.Bytes())["id"] != "cmpl-header" {
		t.Errorf("header %q, body %s", rec.Header().Get("X-Request-Id"), rec.Body)
	}
	rec = s.do("POST", completionsPath, `{`+hi+`}`)
	if id := rec.Header().Get("X-Request-Id"); len(id) != 32 || object(t,
		rec.Body.Bytes())["id"] != "cmpl-"+id {
		t.Errorf("made-up id %q, body %s", id, rec.Body)
	}
	rooted := newServer(t, func(o *Options) { o.Config.Server.RootPath = "/api" })
	if id := rooted.ok(t, "/api"+openai.ChatPath,
		`{`+hiChat+`}`)["id"].(string); !strings.HasPrefix(id, "chatcmpl-") {
		t.Errorf("id %q below a root path", id)
	}
	for _, bad := range []string{strings.Repeat("x", 200), "a b", "é"} {
		if got := s.do("GET", "/health", "", "X-Request-Id",
			bad).Header().Get("X-Request-Id"); got == bad {
			t.Errorf("the id %q was echoed", bad)
		}
	}
	if id := newServer(t).do("GET", "/health", "", "X-Request-Id",
		"x").Header().Get("X-Request-Id"); id != "" {
		t.Errorf("the header is sent without being enabled: %q", id)
	}
}

func TestServerLimits(t *testing.T) {
	h := newServer(t).HTTPServer("127.0.0.1:0")
	if h.ReadHeaderTimeout <= 0 || h.IdleTimeout <= 0 || h.MaxHeaderBytes <= 0 {
		t.Errorf("server without limits: %+v", h)
	}
	if h.WriteTimeout != 0 || h.ReadTimeout != 0 {
		t.Error("a limit on the whole exchange would cut long streams")
	}
}

// TestClients: the engine learns whose a request is: a key's, or without keys an address's.
func TestClients(t *testing.T) {
	open := newServer(t)
	keys := newServer(t, func(o *Options) {
		o.Config.Server.APIKeys = []string{"sk-one",
			"sk-two"}
	})
	for _, c := range []struct {
		s                 *testServer
		from, key, client string
	}{
		{open, "192.0.2.1:1000", "", "192.0.2.1"},
		{open, "192.0.2.1:1001", "Bearer whatever", "192.0.2.1"},
		{open, "[2001:db8::1]:1000", "", "2001:db8::1"},
		{open, "@", "", "@"}, // a listener without addresses
		{keys, "192.0.2.1:1000", "Bearer sk-one", "key 0"},
		{keys, "192.0.2.2:1000", "bearer sk-one", "key 0"},
		{keys, "192.0.2.1:1000", "Bearer sk-two", "key 1"},
	} {
		r := newRequest("POST", openai.CompletionPath, `{"prompt":"a","max_tokens":1}`)
		r.RemoteAddr = c.from
		r.Header.Set("Authorization", c.key)
		if rec := c.s.serveRequest(r); rec.Code != 200 {
			t.Fatalf("%+v: %d %s", c, rec.Code, rec.Body)
		}
		if got := c.s.engine.last(t).Client; got != c.client {
			t.Errorf("%s with %q is client %q, want %q", c.from, c.key, got, c.client)
		}
	}
}

// TestNoPatternsOverlap holds what finding a route relies on: of two patterns with parameters, no
// path is both's.
func TestNoPatternsOverlap(t *testing.T) {
	pattern := func(path string) *regexp.Regexp {
		path = regexp.MustCompile(`\{\w+\.\.\.\}`).ReplaceAllString(path, ".+")
		return regexp.MustCompile("^" + parameter.ReplaceAllString(path, "[^/]+") + "$")
	}
	routes := newServer(t).Routes()
	for _, a := range routes {
		for _, b := range routes {
			if a.Path == b.Path || !strings.Contains(a.Path, "{") || !strings.Contains(b.Path,
				"{") {
				continue
			}
			if path := parameter.ReplaceAllString(b.Path, "x"); pattern(a.Path).MatchString(path) {
				t.Errorf("%s is a path of %s and of %s", path, a.Path, b.Path)
			}
		}
	}
}
