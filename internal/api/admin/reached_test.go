package admin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/eagleray/eagleray/internal/api/server"
)

// A trainer is told the address at which it has reached the server, if it listens at all.
func TestReachedAt(t *testing.T) {
	for _, c := range []struct{ listens, reached, want string }{
		{"10.0.0.1:4000", "10.0.0.2:8000", "10.0.0.1:4000"},
		{"0.0.0.0:4000", "10.0.0.2:8000", "10.0.0.2:4000"},
		{"[::]:4000", "[::ffff:10.0.0.2]:8000", "10.0.0.2:4000"},
		{"[::]:4000", "[fd00::1]:8000", "[fd00::1]:4000"},
		{"[::]:4000", "", "[::]:4000"},
		{"", "10.0.0.2:8000", ""},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
		if c.reached != "" {
			at, err := net.ResolveTCPAddr("tcp", c.reached)
			if err != nil {
				t.Fatal(err)
			}
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, at))
		}
		if got := reachedAt(&server.Request{Request: r}, c.listens); got != c.want {
			t.Errorf("%s, reached at %q: %s, want %s", c.listens, c.reached, got, c.want)
		}
	}
}
