package ray_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// TestDoctor examines a cluster of three hosts that share no memory: all is well. Then one host has
// no model, and what comes to another one's ports is dropped: both are named.
func TestDoctor(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		if r.Version == "2.35.0" {
			t.Skip("once per run is enough")
		}
		h := newHosts(t, 3)
		model := filepath.Join(t.TempDir(), "model")
		if err := os.CopyFS(model, os.DirFS("../../testdata/models/go-std-tiny")); err != nil {
			t.Fatal(err)
		}
		env := append(os.Environ(), "RAY_USAGE_STATS_ENABLED=0", "RAY_AUTH_MODE=disabled",
			"RAY_memory_monitor_refresh_ms=0", "HOME="+t.TempDir())
		h.rayStart(1, r, env, "--head", "--port=6379", "--num-cpus=1", "--include-dashboard=false")
		for i := 2; i <= 3; i++ {
			h.rayStart(i, r, env, "--address="+h.address(1)+":6379", "--num-cpus=1")
		}
		examine := func(python string, want ...string) {
			t.Helper()
			c := h.command(1, env, program(t), "doctor", model, "-tp", "2", "--cpu-threads", "1",
				"--distributed-executor-backend", "ray", "--ray-address", h.address(1)+":6379",
				"--ray-python", python, "--kv-cache-memory-bytes", "64M", "--port", "0")
			out, err := c.Output()
			t.Logf("%v\n%s", err, out)
			for _, w := range want {
				if !strings.Contains(string(out), w) {
					t.Errorf("the doctor does not say %q", w)
				}
			}
		}
		examine(r.Python, "ok    nodes          3 of 3 answer: 10.77.0.1 (here); 10.77.0.",
			"ok    network        6 connections over TLS", "ok    model bytes ",
			"ok    group          2 ranks on 2 nodes", ", 0 failed,")
		// A driver with another Ray than the cluster's.
		venvs := filepath.Dir(filepath.Dir(filepath.Dir(r.Python)))
		if old, _ := filepath.Glob(filepath.Join(venvs, "ray-2.35.0-*", "bin",
			"python")); old != nil {
			examine(old[0], "fail  nodes ", "2.35.0", "2.60.0", "warn  group          not started")
		}
		for i, command := range map[int][]string{
			3: {"mount", "-t", "tmpfs", "tmpfs", model},
			2: {"iptables", "-A", "INPUT", "-p", "tcp", "--syn", "-s", h.address(3), "-j", "DROP"},
		} {
			if out, err := h.command(i, env, command...).CombinedOutput(); err != nil {
				t.Skipf("%s: %v: %s", command, err, out)
			}
		}
		examine(r.Python, "fail  network        1 of 6 connections: 10.77.0.3 → 10.77.0.2: no "+
			"answer within 5s (the other direction works)",
			"fail  model bytes    10.77.0.3 "+model+" has no file of a model",
			"warn  group          not started", ", 2 failed, ")
	})
}
