package api

import (
	"net/http"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/compat"
)

// TestCompat holds the list of routes to those of a server that has every flag that adds some.
func TestCompat(t *testing.T) {
	s := everyRoute(t)
	want := map[string]bool{}
	for _, r := range s.Routes() {
		if r.Method != http.MethodHead {
			want[r.Method+" "+r.Path] = true
		}
	}
	for _, e := range Compat() {
		if answers := e.Status != compat.Refused; answers != want[e.Name] {
			t.Errorf("%s is %s, and a route: %v", e.Name, e.Status, want[e.Name])
		}
		delete(want, e.Name)
	}
	for name := range want {
		t.Errorf("%s is not listed", name)
	}
}
