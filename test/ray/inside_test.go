package ray_test

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// hosted is what an actor tells of the engine that it started.
type hosted struct {
	Lines      []string
	PID, Actor int
	Node       string
}

// TestInsideActor starts the program from an actor in a bundle of a group that the actor's own
// job has made, with what the actor knows in the environment. It serves from the other bundles,
// and ends with the actor or with its job.
func TestInsideActor(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		for _, c := range []struct {
			name  string
			group []map[string]float64
			env   map[string]string
			// order is which bundles the ranks must get.
			order string
			end   func(w *observer, host string, h hosted) error
			state string
		}{
			{"bundle skipped", bundles(3), map[string]string{"EAGLERAY_RAY_SKIP_BUNDLE": "0"},
				"1,2",
				func(w *observer, host string, _ hosted) error {
					return w.do("host_end", map[string]any{"name": host}, nil)
				}, "CREATED"},
			{"actor killed", bundles(3), map[string]string{"EAGLERAY_RAY_SKIP_BUNDLE": "1"}, "0,2",
				func(_ *observer, _ string, h hosted) error {
					return syscall.Kill(h.Actor,
						syscall.SIGKILL)
				}, "CREATED"},
			{"bundles named", append([]map[string]float64{{"CPU": 1}}, bundles(3)...),
				map[string]string{"EAGLERAY_BUNDLE_INDICES": "3,1"}, "3,1",
				func(w *observer, _ string, _ hosted) error { w.end(); return nil }, "REMOVED"},
		} {
			t.Run(c.name, func(t *testing.T) {
				w := startObserver(t, s.Cluster)
				defer w.end()
				var group, host string
				w.must(t, "group", map[string]any{"bundles": c.group}, &group)
				argv := []string{program(t), "serve", "--port", "0", "-tp", "2",
					"--distributed-executor-backend", "ray",
					"--ray-python", s.Ray.Python, "--ray-device-key", "GPU",
					"--kv-cache-memory-bytes", "64M"}
				w.must(t, "host", map[string]any{"group": group, "bundle": 0, "argv": argv,
					"env": c.env}, &host)
				var h hosted
				w.must(t, "host_lines", map[string]any{"name": host, "until": "msg=ready"}, &h)
				log := &tail{text: []byte(strings.Join(h.Lines, "\n"))}
				if log.line("msg=ready") == "" {
					t.Fatalf("%s\nit did not start", log)
				}
				if got := attribute(log.line(`msg="ray place"`), "group"); got != group {
					t.Errorf("group %s, want the actor's %s", got, group)
				}
				if got := attribute(log.line(`msg="ray order"`), "bundles"); got != c.order {
					t.Errorf("bundles %s, want %s", got, c.order)
				}
				if got := attribute(log.line(`msg="ray connect"`), "node"); got != h.Node {
					t.Errorf("the driver is on %s, its actor on %s", got, h.Node)
				}
				text, err := complete(t, attribute(log.line("msg=ready"), "url"), 16)
				if err != nil || text == "" {
					t.Errorf("answer %q, %v", text, err)
				}
				processes := []int{h.PID, h.Actor}
				for pid := range strings.SplitSeq(attribute(log.line(`msg="ray init"`), "pids"),
					",") {
					n, err := strconv.Atoi(pid)
					if err != nil {
						t.Fatal(err)
					}
					processes = append(processes, n)
				}
				if err := c.end(w, host, h); err != nil {
					t.Error(err)
				}
				took := eventually(t, "the end of the engine", func() bool {
					return !slices.ContainsFunc(processes, func(pid int) bool { return !gone(pid) })
				})
				s.clean(t)
				t.Logf("engine and ranks ended after %v", took)
				eventually(t, "the group to be "+c.state,
					func() bool { return s.find(t, group).State == c.state })
			})
		}
	})
}
