package ray_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// hosts are namespaces of this machine that share nothing but a bridge between their networks:
// each has its own processes, /dev/shm and /tmp/ray, as a machine of its own would.
type hosts struct {
	t      *testing.T
	prefix string
	inits  []int // by host, the pid of its first process
}

// newHosts makes n hosts, 10.77.0.1 and on. The addresses exist inside the namespaces only.
func newHosts(t *testing.T, n int) *hosts {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("hosts in namespaces need root")
	}
	for _, tool := range []string{"ip", "nsenter", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("hosts in namespaces need %s", tool)
		}
	}
	h := &hosts{t: t, prefix: fmt.Sprintf("er%d", os.Getpid()%100000)}
	br := h.prefix + "b"
	if out, err := exec.Command("ip", "link", "add", br, "type",
		"bridge").CombinedOutput(); err != nil {
		t.Skipf("no bridges between namespaces here: %s", out)
	}
	t.Cleanup(func() { h.ip("link", "del", br) })
	h.ip("link", "set", br, "up")
	for i := 1; i <= n; i++ {
		ns, veth := h.namespace(i), h.veth(i)
		h.ip("netns", "add", ns)
		t.Cleanup(func() { h.ip("netns", "del", ns) })
		h.ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", ns)
		h.ip("link", "set", veth, "master", br, "up")
		h.ip("-n", ns, "addr", "add", h.address(i)+"/24", "dev", "eth0")
		h.ip("-n", ns, "link", "set", "eth0", "up")
		h.ip("-n", ns, "link", "set", "lo", "up")
		h.boot(ns)
	}
	return h
}

// boot starts the first process of a host, with which all others end.
func (h *hosts) boot(ns string) {
	h.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", ns, "unshare", "--mount", "--pid", "--fork",
		"--kill-child", "--mount-proc", "sh", "-c",
		"mount -t tmpfs -o size=1g tmpfs /dev/shm; mkdir -p /tmp/ray; mount -t tmpfs tmpfs "+
			"/tmp/ray; exec sleep 100000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	var first int
	eventually(h.t, "the first process of "+ns, func() bool {
		for _, pid := range children(cmd.Process.Pid) {
			if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil &&
				strings.HasPrefix(string(args), "sleep") {
				first = pid
			}
		}
		return first != 0
	})
	h.inits = append(h.inits, first)
	h.t.Cleanup(func() {
		_ = syscall.Kill(first, syscall.SIGKILL)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

func (h *hosts) namespace(i int) string { return h.prefix + "h" + strconv.Itoa(i) }
func (h *hosts) veth(i int) string      { return h.prefix + "v" + strconv.Itoa(i) }
func (h *hosts) address(i int) string   { return "10.77.0." + strconv.Itoa(i) }

func (h *hosts) ip(args ...string) {
	h.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		h.t.Errorf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// command is a command on a host.
func (h *hosts) command(i int, env []string, argv ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(h.inits[i-1]), "-m", "-p",
		"-n"}, argv...)...)
	cmd.Env = env
	return cmd
}

// processes are the command lines on a host that contain text, which none but the searched has.
func (h *hosts) processes(i int, text string) (lines []string) {
	h.t.Helper()
	ours, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", h.inits[i-1]))
	if err != nil {
		h.t.Fatal(err)
	}
	// The pattern is well formed.
	all, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, link := range all {
		if ns, err := os.Readlink(link); err != nil || ns != ours {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(link)), "cmdline"))
		if line := strings.ReplaceAll(string(raw), "\x00", " "); err == nil &&
			strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// get reads a URL from a host's own loopback.
func (h *hosts) get(i int, r *raytest.Ray, url, body string) (string, error) {
	script := "import sys, urllib.request as u\n" +
		"q = u.Request(sys.argv[1], sys.argv[2].encode() or None, {'Content-Type': " +
		"'application/json'})\nsys.stdout.write(u.urlopen(q, timeout=60).read().decode())"
	out, err := h.command(i, os.Environ(), r.Python, "-c", script, url, body).CombinedOutput()
	return string(out), err
}

// rayStart starts a node of Ray on a host.
func (h *hosts) rayStart(i int, r *raytest.Ray, env []string, args ...string) {
	h.t.Helper()
	argv := append([]string{r.Python, filepath.Join(filepath.Dir(r.Python), "ray"), "start",
		"--node-ip-address=" + h.address(i),
		"--object-store-memory=80000000", "--disable-usage-stats"}, args...)
	// a pipe would be held open by what ray start leaves behind
	log, err := os.Create(filepath.Join(h.t.TempDir(), "ray.log"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	cmd := h.command(i, env, argv...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		out, _ := os.ReadFile(log.Name())
		h.t.Fatalf("ray start on host %d: %v: %s", i, err, out)
	}
}

// TestHosts runs a driver and four ranks on three hosts that share no memory, once per run: on
// the newest Ray. The driver's host holds no bundle. Then a host falls silent: the engine ends
// with that as the cause, long before Ray notices, and when the network is whole again nothing of
// ours is left on the lost host.
func TestHosts(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		if r.Version == "2.35.0" {
			t.Skip("once per run is enough")
		}
		h := newHosts(t, 3)
		env := append(os.Environ(), "RAY_USAGE_STATS_ENABLED=0", "RAY_AUTH_MODE=disabled",
			"RAY_memory_monitor_refresh_ms=0", "HOME="+t.TempDir(),
			// Ray gives a lost node up after some seven seconds instead of a minute: later than
			// we do, and soon enough to see what it leaves there.
			"RAY_health_check_initial_delay_ms=1000", "RAY_health_check_period_ms=500",
			"RAY_health_check_timeout_ms=1000",
			"RAY_health_check_failure_threshold=5")
		h.rayStart(1, r, env, "--head", "--port=6379", "--num-cpus=0", "--num-gpus=0",
			"--include-dashboard=false")
		for i := 2; i <= 3; i++ {
			h.rayStart(i, r, env, "--address="+h.address(1)+":6379", "--num-cpus=0", "--num-gpus=2")
		}
		log, done := &tail{}, make(chan struct{})
		server := h.command(1, env, program(t), "serve", "--port", "8000", "-tp", "4",
			"--on-failure", "exit", "--distributed-executor-backend", "ray", "--ray-address",
			h.address(1)+":6379", "--ray-python", r.Python, "--ray-device-key", "GPU",
			"--kv-cache-memory-bytes", "64M")
		server.Stderr = log
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = server.Wait()
			close(done)
		}()
		defer func() {
			_ = server.Process.Kill()
			if t.Failed() {
				t.Logf("log of the server:\n%s", log)
			}
		}()
		eventually(t, "the server to be ready", func() bool {
			select {
			case <-done:
				t.Fatal("the server ended")
			default:
			}
			return log.line("msg=ready") != ""
		})
		h.serves(t, r, log)
		h.cut(t, r, log, done)
	})
}

// serves checks the answer, and that it came over links.
func (h *hosts) serves(t *testing.T, r *raytest.Ray, log *tail) {
	t.Helper()
	answer, err := h.get(1, r, "http://127.0.0.1:8000/v1/chat/completions",
		`{"messages":[{"role":"user","content":"What does strings.Index do?"}],"temperature":0}`)
	if want := "Index returns the index of the first instance of substr in s"; err != nil ||
		!strings.Contains(answer, want) {
		t.Fatalf("answer %q (%v), want %q", answer, err, want)
	}
	figures, err := h.get(1, r, "http://127.0.0.1:8000/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(figures, "\neagleray:link_round_trip_seconds{"); got != 4 {
		t.Errorf("%d links, want one per rank", got)
	}
	if line := log.line(`msg="ray ship"`); attribute(line, "nodes") != "2" {
		t.Errorf("%q, want two nodes", line)
	}
	for i := 2; i <= 3; i++ {
		if got := h.processes(i, "worker --actor"); len(got) != 2 {
			t.Errorf("workers on host %d: %q, want two", i, got)
		}
	}
}

// cut takes the third host off the network and puts it back.
func (h *hosts) cut(t *testing.T, r *raytest.Ray, log *tail, done <-chan struct{}) {
	t.Helper()
	begun := time.Now()
	h.ip("link", "set", h.veth(3), "down")
	eventually(t, "the engine to fail",
		func() bool { return log.line(`msg="workers failed"`) != "" })
	t.Logf("%s: silent host known after %v", r.Version, time.Since(begun).Round(time.Millisecond))
	if line := log.line(`msg="workers failed"`); !strings.Contains(line, h.address(3)) ||
		!strings.Contains(line, "silent") {
		t.Errorf("failure %q does not name the host and its silence", line)
	}
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the server does not end")
	}
	eventually(t, "the workers of the lost host to end by themselves",
		func() bool { return len(h.processes(3, "worker --actor")) == 0 })
	t.Logf("no worker on the lost host %v after the cut", time.Since(begun).Round(time.Millisecond))
	// Ray gives the node up meanwhile, and leaves its actors alone.
	time.Sleep(max(0, 10*time.Second-time.Since(begun)))
	h.ip("link", "set", h.veth(3), "up")
	eventually(t, "the actors of the lost host to end",
		func() bool { return len(h.processes(3, "ray::Worker")) == 0 })
	t.Logf("no actor on the lost host %v after the cut", time.Since(begun).Round(time.Millisecond))
	if left := h.processes(2, "ray::Worker"); len(left) > 0 {
		t.Errorf("actors on the host that was not cut: %q", left)
	}
}
