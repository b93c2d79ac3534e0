package api

import (
	"net/http"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/ops/compat"
)

// TestCompat holds the list of routes to those of a server that has every flag that adds some.
func TestCompat(t *testing.T) {
	page, err := dashboard.New(dashboard.Options{Engine: stillEngine{},
		Events: &dashboard.Events{}, Measure: measureNothing})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, func(o *Options) {
		o.Dashboard, o.Elastic, o.Trainer = page, &fakeElastic{}, &rlhf.Control{}
		o.Config.Server.EnableRLHF, o.Config.Server.Answers.TokenizerInfo = true, true
		o.Ranks = func() any { return nil }
	})
	want := map[string]bool{}
	for _, r := range s.Routes() {
		file := r.Path != "/" && slices.Contains(page.Paths(), r.Path)
		if r.Method != http.MethodHead && !file {
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
