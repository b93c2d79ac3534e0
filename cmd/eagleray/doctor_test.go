package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/doctor"
)

// TestDoctor checks this machine with two workers, and one that cannot be: the exit code tells.
func TestDoctor(t *testing.T) {
	t.Parallel()
	args := []string{"doctor", "-tp", "2", "--port", "0", "--kv-cache-memory-bytes", "16M",
		"--download-dir", t.TempDir()}
	p := command(t, "", append(args, "--json")...).start()
	code := p.exit()
	var results []doctor.Result
	if err := json.Unmarshal([]byte(p.out.String()), &results); err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, p.err.String())
	}
	found := map[string]doctor.Result{}
	for _, r := range results {
		found[r.Check] = r
	}
	for _, name := range []string{"group", "clocks", "kernels"} {
		if found[name].State != doctor.OK {
			t.Errorf("%s: %+v", name, found[name])
		}
	}
	if !strings.Contains(found["group"].Found, "2 ranks on 1 nodes") {
		t.Errorf("%+v", found["group"])
	}
	p = command(t, "", append(args, "/no/such/model")...).start()
	if code := p.exit(); code != exitError || !strings.Contains(p.out.String(), "fail  group") ||
		!strings.Contains(p.out.String(), "no such file") {
		t.Errorf("exit code %d: %s", code, p.out.String())
	}
	p = command(t, "", append(args, "--no-start")...).start()
	if p.exit(); strings.Contains(p.out.String(), "group") {
		t.Errorf("workers were started: %s", p.out.String())
	}
	p = command(t, "", "doctor", "-tp", "0").start()
	if code := p.exit(); code != exitUsage || !strings.Contains(p.err.String(), "--tensor-parallel-size") {
		t.Errorf("exit code %d: %s", code, p.err.String())
	}
}
