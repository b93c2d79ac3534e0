package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/chaos"
)

// TestChaos disturbs a server under load with every kind of fault: no request is lost, none has
// another answer than undisturbed.
func TestChaos(t *testing.T) {
	t.Parallel()
	out, picture := filepath.Join(t.TempDir(), "chaos.json"), filepath.Join(t.TempDir(), "chaos.svg")
	kinds, count := []string{"kill", "loading", "segv", "pause", "driver", "log"}, "6"
	if !testing.Short() {
		kinds, count = chaos.Kinds(), "40"
	}
	p := command(t, "", "bench", "chaos", "--faults", strings.Join(kinds, ","), "--count", count,
		"--streams", "4", "--prompts", "6", "--tokens", "60", "--pause", "20ms", "--output-json", out,
		"--plot", picture).start()
	code := p.exit()
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
		if k.Injected == 0 || k.PauseMS.N != k.Injected {
			t.Errorf("%+v", k)
		}
	}
	if svg, err := os.ReadFile(picture); err != nil || !strings.Contains(string(svg), "faults, 0 of") {
		t.Errorf("picture %.200q, %v", svg, err)
	}
}
