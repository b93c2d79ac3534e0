package ray_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// TestServeRecovers takes workers, actors, the group and the bridge from a server under load, by
// turns: each request has the answer that it has undisturbed.
func TestServeRecovers(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		disturbed(t, s.Ray, s.Env, []string{"kill", "actor", "ray-kill", "placement-group",
			"bridge", "stop"}, "--", "--distributed-executor-backend", "ray", "--ray-address",
			s.Address, "--ray-python", s.Ray.Python, "--ray-namespace", namespace, "--node-ip",
			s.head(), "--ray-device-key", "GPU", "--kv-cache-memory-bytes", "64M", "-tp", "2")
		s.clean(t)
	})
}

// TestServeLosesNodes does so with all kinds of faults, on a cluster of the tool's own whose nodes
// crash and fall silent, too.
func TestServeLosesNodes(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		disturbed(t, r, nil, []string{"raylet", "ray-node", "kill-all", "kill-forward",
			"kill-collective", "kill-recv", "kill-sample", "kill-send", "kill-idle", "term",
			"abort", "segv", "pause", "slow", "driver", "log", "files", "disk", "kill", "actor",
			"ray-kill", "placement-group", "bridge", "stop"}, "--ray-python", r.Python)
	})
}

// TestExpertsLoseNodes does so with places that share experts, on three nodes of such a cluster.
func TestExpertsLoseNodes(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		disturbed(t, r, nil, []string{"raylet", "kill-collective", "ray-node", "kill-forward",
			"actor", "placement-group", "bridge"}, "--ray-python", r.Python, "--",
			"../../testdata/models/qwen3moe-tiny", "--skip-tokenizer-init", "-dp", "2", "-tp", "2",
			"-ep")
	})
}

// disturbed injects each of the faults once into a server under load. The environment is this
// process's when env is nil.
func disturbed(t *testing.T, ray *raytest.Ray, env, faults []string, args ...string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "chaos.json")
	// What hangs the tool ends itself, by patience of its own.
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	c := exec.CommandContext(ctx, program(t), append([]string{"bench", "chaos", "--streams",
		"4", "--tokens", "200", "--prompts", "8", "--seconds", "600", "--count",
		strconv.Itoa(len(faults)), "--faults", strings.Join(faults, ","), "--output-json", out,
		"--verbose"}, args...)...)
	c.Env = env
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	printed, err := c.CombinedOutput()
	raw, readErr := os.ReadFile(out)
	if readErr != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	var r struct {
		Asked, Answered, Lost, Duplicated, Different int
		Kinds                                        []struct {
			Name     string
			Injected int
			Pause    struct{ P50 float64 } `json:"pause_ms"`
		}
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Kinds) != len(faults) || r.Asked == 0 || r.Answered != r.Asked {
		t.Errorf("%s\n%s", raw, printed)
	}
	for _, k := range r.Kinds {
		t.Logf("%s, %s: %d injected, a pause of %.0f ms", ray.Version, k.Name, k.Injected,
			k.Pause.P50)
	}
}
