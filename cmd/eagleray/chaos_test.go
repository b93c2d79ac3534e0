package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/chaos"
)

// TestChaos disturbs a server under load with every kind of fault: no request is lost, none has
// another answer than undisturbed. With -short the kinds that have a test of their own are left
// out: TestRankCannotBeKilled, TestSlowLayer, TestDrainStopped, TestOutOfMemory.
func TestChaos(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		short  []string
		server []string
	}{
		{"memory", []string{"kill", "loading", "kill-collective", "pause", "driver", "log", "disk",
			"replace"}, []string{"-tp", "2"}},
		{"links", []string{"cut", "kill"}, []string{"-tp", "2", "--queue-transport", "link"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			kinds, times := c.short, 1
			possible := chaos.Possible(chaos.Options{Args: c.server})
			if !testing.Short() {
				kinds, times = possible, 3
			}
			kinds = slices.DeleteFunc(kinds,
				func(kind string) bool { return !slices.Contains(possible, kind) })
			disturbed(t, kinds, times, c.server)
		})
	}
}

// disturbed injects each of the faults so many times into a server with the arguments.
func disturbed(t *testing.T, kinds []string, times int, server []string) {
	t.Helper()
	out, picture := filepath.Join(t.TempDir(), "chaos.json"), filepath.Join(t.TempDir(),
		"chaos.svg")
	view := filepath.Join(t.TempDir(), "view.txt")
	p := command(t, "", append([]string{"bench", "chaos", "--faults", strings.Join(kinds, ","),
		"--count", strconv.Itoa(times * len(kinds)), "--streams", "2", "--prompts", "6", "--tokens",
		"60", "--pause", "20ms", "--output-json", out, "--plot", picture, "--client-view", view,
		"--"}, server...)...).start()
	code := p.exitWithin(5 * time.Minute)
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, p.err.String())
	}
	var r chaos.Report
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	if r.Lost+r.Duplicated+r.Different > 0 || r.Answered != r.Asked || r.Asked == 0 {
		t.Errorf("%s", p.out.String())
	}
	// A busy machine may keep a healthy server from a token for longer than the oracle allows.
	if right := r.Health.Disagreed == 0; right != (code == 0) {
		t.Errorf("exit code %d with %d disagreements", code, r.Health.Disagreed)
	}
	for _, k := range r.Kinds {
		if k.Injected != times || k.PauseMS.N != k.Injected {
			t.Errorf("%+v", k)
		}
	}
	seen, err := os.ReadFile(view)
	if err != nil || strings.Count(string(seen), "fault: ") != times*len(kinds) {
		t.Errorf("view %s, %v", seen, err)
	}
	if svg, err := os.ReadFile(picture); err != nil || !strings.Contains(string(svg),
		"faults, 0 of") {
		t.Errorf("picture %.200q, %v", svg, err)
	}
}
