package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/doctor"
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
	if p.exit(); strings.Contains(p.out.String(), "  group ") {
		t.Errorf("workers were started: %s", p.out.String())
	}
	p = command(t, "", "doctor", "-tp", "0").start()
	if code := p.exit(); code != exitUsage || !strings.Contains(p.err.String(),
		"--tensor-parallel-size") {
		t.Errorf("exit code %d: %s", code, p.err.String())
	}
}

// TestDoctorNodes has a node examined by node 0, without Ray, and the ranks of both started.
func TestDoctorNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "-tp", "2", "--nnodes", "2")
	args := func(more ...string) []string {
		return append(append([]string{"doctor"}, c.args()[1:]...), more...)
	}
	other := command(t, "", args("--headless", "--node-rank", "1")...)
	other.shown = true
	other.start()
	zero := command(t, "", args("--port", "0", "--download-dir", t.TempDir())...).start()
	if code := zero.exit(); code != 0 {
		t.Errorf("exit code %d: %s", code, zero.err.String())
	}
	for _, want := range []string{"ok    nodes          2 of 2 answer: node 0; node 1",
		"ok    network        2 connections over TLS", "ok    group          2 ranks on 2 nodes"} {
		if !strings.Contains(zero.out.String(), want) {
			t.Errorf("no %q in\n%s", want, zero.out.String())
		}
	}
	other.ends(0, "ended: node 0 has ended")
	// Alone, node 0 says who has not come.
	zero = command(t, "", args("--port", "0", "--distributed-timeout-seconds", "0.05")...).start()
	if code := zero.exit(); code != exitError ||
		!strings.Contains(zero.out.String(),
			"fail  nodes          1 of 2 nodes answer; not node 1: it has not come") ||
		!strings.Contains(zero.out.String(), "warn  group          not started") {
		t.Errorf("exit code %d: %s", code, zero.out.String())
	}
}
