package ray_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
)

// TestEnvironment looks at the environment of workers on two nodes.
func TestEnvironment(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "ray_non_carry_over_env_vars.json"),
			[]byte(`["STAYS_AT_HOME"]`), 0o600); err != nil {
			t.Fatal(err)
		}
		sent := map[string]string{"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_test",
			"LMCACHE_CONFIG_FILE": "/etc/lmcache.yaml",
			"LMCACHE_LOCAL_CPU":   "True", "PYTHONHASHSEED": "123",
			"ANYTHING": "a value = with, all\tsorts", "ALLOWED_API_KEY": "k3y",
			"VLLM_LOGGING_LEVEL": "DEBUG"}
		home := map[string]string{"AWS_SECRET_ACCESS_KEY": "s3cret", "MY_TOKEN": "s3cret",
			"DATABASE_URL":  "postgres://me:s3cret@db/x",
			"STAYS_AT_HOME": "listed", "LOCAL_RANK": "9", "RANK": "9", "VLLM_HOST_IP": "192.0.2.1",
			"VLLM_HOST_PORT": "1", "HIP_VISIBLE_DEVICES": "7",
			"ROCR_VISIBLE_DEVICES": "7", "RAY_AUTH_TOKEN": "s3cret"}
		ofRuntime := map[string]string{"OF_THE_RUNTIME_ENV": "yes",
			"NCCL_SOCKET_IFNAME": "of the runtime"}
		env := append(slices.Clone(s.Env), "EAGLERAY_CONFIG_ROOT="+root,
			nodeVariable+"=of the driver", "CUDA_VISIBLE_DEVICES=7",
			"NCCL_SOCKET_IFNAME=of the driver")
		for _, vars := range []map[string]string{sent, home} {
			for name, value := range vars {
				env = append(env, name+"="+value)
			}
		}
		// The first of two entries of one name counts.
		env = slices.DeleteFunc(env, func(kv string) bool {
			return strings.HasPrefix(kv,
				nodeVariable+"="+nodeValue)
		})
		change := func(o *rayactor.Options) {
			o.Environ, o.EnvAllow = env,
				[]string{"ALLOWED_API_KEY"}
		}
		t.Run("sent", func(t *testing.T) {
			// Only the environment of a whole job may have a folder of the driver's machine.
			folder := t.TempDir()
			if err := os.WriteFile(filepath.Join(folder, "of_the_working_dir"), nil,
				0o600); err != nil {
				t.Fatal(err)
			}
			id := s.place(t, map[string]any{"bundles": bundles(2), "strategy": "STRICT_SPREAD"})
			g := s.start(t, 2, wish{ray: func(o *rayactor.Options) {
				change(o)
				o.PlacementGroup = id
				o.RuntimeEnv = `{"env_vars": {"OF_THE_RUNTIME_ENV": "yes", "NCCL_SOCKET_IFNAME": "of the runtime"}, "working_dir": "` + folder + `"}`
			}})
			g.works(t)
			nodes := g.nodes()
			if nodes[0] == nodes[1] {
				t.Fatalf("both ranks are on %s", nodes[0])
			}
			for rank, pid := range g.pids() {
				got := environ(t, pid)
				if _, err := os.Stat(fmt.Sprintf("/proc/%d/cwd/of_the_working_dir",
					pid)); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
				for _, vars := range []map[string]string{sent, ofRuntime,
					{nodeVariable: nodeValue, "CUDA_VISIBLE_DEVICES": "0"}} {
					for name, want := range vars {
						if got[name] != want {
							t.Errorf("rank %d has %s=%q, want %q", rank, name, got[name], want)
						}
					}
				}
				for name := range home {
					if value, there := got[name]; there {
						t.Errorf("rank %d has %s=%q", rank, name, value)
					}
				}
				if line := g.log.line("node " + nodes[rank] +
					" keeps its own value, which differs: "); !strings.Contains(line,
					nodeVariable) ||
					!strings.Contains(line, "NCCL_SOCKET_IFNAME") {
					t.Errorf("report of node %s: %q", nodes[rank], line)
				}
			}
			for _, want := range []string{"withheld, as they look secret", "AWS_SECRET_ACCESS_KEY",
				"MY_TOKEN", "DATABASE_URL", "STAYS_AT_HOME", "LOCAL_RANK"} {
				if g.log.line(want) == "" {
					t.Errorf("the log does not tell of %q", want)
				}
			}
			if strings.Contains(g.log.String(), "s3cret") {
				t.Errorf("%s\na secret is in the log", g.log)
			}
			g.end(t)
			s.clean(t)
		})
		t.Run("strict", func(t *testing.T) {
			err := s.refused(t, 2, wish{ray: func(o *rayactor.Options) {
				change(o)
				o.StrictEnv = true
			}})
			if want := "--strict-env: values on nodes differ from the driver's: node " + s.head() +
				": " + nodeVariable; !strings.Contains(err, want) {
				t.Errorf("error %q lacks %q", err, want)
			}
		})
	})
}
