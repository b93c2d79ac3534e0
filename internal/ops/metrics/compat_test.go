package metrics

import (
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/compat"
)

// TestCompat wants every series of ours listed, and no note or beginning of a name without one.
func TestCompat(t *testing.T) {
	list, err := Compat()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]compat.Entry{}
	for _, e := range list {
		got[e.Name] = e
	}
	for line := range strings.Lines(scrape(t, exercised())) {
		name, found := strings.CutPrefix(line, "# TYPE "+prefix)
		name, _, _ = strings.Cut(name, " ")
		if found && got[name].Name == "" {
			t.Errorf("%s is not listed", name)
		}
	}
	for name := range notes {
		if got[name].Status != compat.Same {
			t.Errorf("the note of %s is on %+v", name, got[name])
		}
	}
	for _, begin := range own {
		if !slices.ContainsFunc(list, func(e compat.Entry) bool {
			return strings.HasPrefix(e.Name, begin) && e.Status == compat.Ours
		}) {
			t.Errorf("no series begins with %s", begin)
		}
	}
}
