package ray_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// start starts a bridge with a cluster's environment.
func start(t *testing.T, r *raytest.Ray, env []string) *ray.Client {
	t.Helper()
	c, err := ray.Start(within(t), ray.Options{Python: r.Python, Env: env})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(within(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// join starts a bridge and connects it to the cluster, at its second node and in its own namespace.
func join(t *testing.T, cl *raytest.Cluster) *ray.Client {
	t.Helper()
	c := start(t, cl.Ray, cl.Env)
	if _, err := c.Connect(within(t), ray.ConnectOptions{Address: cl.Address,
		NodeIP: cl.Nodes[1].IP, Namespace: t.Name()}); err != nil {
		t.Fatalf("connect: %v", err)
	}
	return c
}

// onRay runs f on the shared cluster of each installed version, joined.
func onRay(t *testing.T, f func(t *testing.T, cl *raytest.Cluster, c *ray.Client)) {
	t.Helper()
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		cl := raytest.Shared(t, r)
		f(t, cl, join(t, cl))
	})
}

// class is the class of the *ray.Error in err.
func class(err error) string {
	var e *ray.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Class
}

func TestRealNotInstalled(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		// Without site-packages the same interpreter has no Ray.
		python := filepath.Join(t.TempDir(), "python")
		script := "#!/bin/sh\nexec " + r.Python + ` -S "$@"` + "\n"
		if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := ray.Start(within(t), ray.Options{Python: python})
		if !errors.Is(err, ray.ErrNotInstalled) || !strings.Contains(err.Error(), python) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
	})
}

func TestNoBridge(t *testing.T) {
	script := func(text string) string {
		path := filepath.Join(t.TempDir(), "python")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct{ python, want string }{
		"nowhere": {"/nonexistent/python", "/nonexistent/python"},
		"fails": {script("echo this is no python >&2; exit 9\n"),
			"exit status 9; last output: this is no python"},
		"says nothing": {script("exec sleep 1000\n"), "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			if name == "says nothing" {
				var cancel func()
				ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
			}
			if _, err := ray.Start(ctx, ray.Options{Python: test.python}); err == nil ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// The dashboard's address is taken for what it is, and that of RAY_ADDRESS is used where no other
// is given.
func TestRealAddress(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		cl := raytest.Shared(t, r)
		c := start(t, r, append(slices.Clone(cl.Env), "RAY_ADDRESS="+cl.Address))
		_, err := c.Connect(within(t), ray.ConnectOptions{Address: cl.Dashboard})
		if class(err) != "ValueError" || !strings.Contains(err.Error(), "is a web server") {
			t.Errorf("dashboard: %v", err)
		}
		got, err := c.Connect(within(t), ray.ConnectOptions{NodeIP: cl.Nodes[2].IP})
		if err != nil || got.GCSAddress != cl.Address || got.DashboardURL != cl.Dashboard ||
			got.Started {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

// A cluster that has TLS where this program has none, or the other way round, is told from one that
// is not there: Ray itself waits for minutes, and gives no reason.
func TestRealTLS(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		for name, gcs := range map[string]struct{ variable, says, class, want string }{
			"wanted":     {"RAY_USE_TLS=0", "", "Unreachable", "closes connections without TLS"},
			"not wanted": {"RAY_USE_TLS=1", "\x00\x00\x00\x04\x00", "ValueError", "has no TLS"},
		} {
			t.Run(name, func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				go func() {
					for {
						conn, err := l.Accept()
						if err != nil {
							return
						}
						_, _ = conn.Read(make([]byte, 100))
						_, _ = io.WriteString(conn, gcs.says)
						conn.Close()
					}
				}()
				c := start(t, r, append(os.Environ(), gcs.variable))
				_, err = c.Connect(within(t), ray.ConnectOptions{Address: l.Addr().String()})
				if class(err) != gcs.class || !strings.Contains(err.Error(), gcs.want) ||
					!strings.Contains(err.Error(), "RAY_USE_TLS") {
					t.Errorf("got %v", err)
				}
			})
		}
	})
}

// Waiting for a group that has no place costs the bridge next to nothing.
func TestRealWaitIsIdle(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		bridges := childrenOf(t, os.Getpid())
		id, err := c.CreateGroup(within(t),
			ray.GroupSpec{Bundles: []map[string]float64{{"GPU": 3}}})
		if err != nil {
			t.Fatal(err)
		}
		before := processorTime(t, bridges)
		began := time.Now()
		if ready, err := c.WaitGroup(within(t), id, 3*time.Second); ready || err != nil {
			t.Fatal(ready, err)
		}
		waited, used := time.Since(began), processorTime(t, bridges)-before
		t.Logf("waited %v, used %v", waited, used)
		if waited < 3*time.Second || used > waited/6 {
			t.Errorf("waited %v for three seconds, used %v of them", waited, used)
		}
		if err := c.RemoveGroup(within(t), id); err != nil {
			t.Fatal(err)
		}
	})
}

// processorTime is what the bridges among the processes have used so far.
func processorTime(t *testing.T, pids []int) time.Duration {
	t.Helper()
	var ticks int
	for _, pid := range pids {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.Contains(string(name), "/proc/self/fd/") {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		// After the name in parentheses: state, and utime and stime as the 12th and 13th.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, field := range fields[11:13] {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			ticks += n
		}
	}
	if ticks == 0 {
		t.Fatalf("no bridge among %v", pids)
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
