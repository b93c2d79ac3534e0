package ray_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// engineRole names the part that this binary plays as an engine of its own; engineArgs are its
// settings, in JSON.
const (
	engineRole = "EAGLERAY_TEST_ENGINE"
	engineArgs = "EAGLERAY_TEST_ENGINE_ARGS"
)

// waitingWorker is a worker that ends at the end of its standard input, as ours do: cat -
// workerMark.
const (
	waitingWorker = "/bin/cat"
	workerMark    = "eagleray-test-worker"
)

type engineSettings struct {
	Python, Address, NodeIP string
}

func engineMain(role string) int {
	roles := map[string]func(context.Context, engineSettings) error{"hold": engineHold,
		"local":     engineLocal,
		"holdLocal": engineHoldLocal, "killLocal": engineKillLocal}
	var s engineSettings
	err := json.Unmarshal([]byte(os.Getenv(engineArgs)), &s)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*hang)
		defer cancel()
		err = roles[role](ctx, s)
	}
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	return 0
}

// engineHold starts a worker under an actor in a group, says so, and waits to be killed.
func engineHold(ctx context.Context, s engineSettings) error {
	c, err := ray.Start(ctx, ray.Options{Python: s.Python})
	if err != nil {
		return err
	}
	if _, err := c.Connect(ctx, ray.ConnectOptions{Address: s.Address,
		NodeIP: s.NodeIP}); err != nil {
		return err
	}
	id, err := c.CreateGroup(ctx, ray.GroupSpec{Bundles: gpus(1)})
	if err != nil {
		return err
	}
	if err := c.CreateActors(ctx, []ray.ActorSpec{{Group: id, GPUs: 1}}); err != nil {
		return err
	}
	if _, err := c.StartWorkers(ctx, starts([]int{0}, waitingWorker, "-", workerMark)); err != nil {
		return err
	}
	fmt.Println(id)
	<-ctx.Done()
	return ctx.Err()
}

// engineLocal starts a cluster because there is none, and finds the one that it started.
func engineLocal(ctx context.Context, s engineSettings) error {
	options := ray.ConnectOptions{}
	two, zero := 2.0, 0.0
	options.LocalResources = ray.LocalResources{NumCPUs: &two, NumGPUs: &zero,
		Resources: map[string]float64{"NPU": 3}}
	var clients []*ray.Client
	for _, started := range []bool{true, false} {
		c, err := ray.Start(ctx, ray.Options{Python: s.Python})
		if err != nil {
			return err
		}
		clients = append(clients, c)
		got, err := c.Connect(ctx, options)
		if err != nil {
			return err
		}
		if got.Started != started {
			return fmt.Errorf("started: %+v", got)
		}
		nodes, err := c.Nodes(ctx)
		if err != nil {
			return err
		}
		if r := nodes[0].Resources; len(nodes) != 1 || r["CPU"] != 2 || r["GPU"] != 0 ||
			r["NPU"] != 3 {
			return fmt.Errorf("nodes: %+v", nodes)
		}
	}
	for i := range clients {
		if err := clients[len(clients)-1-i].Close(ctx); err != nil {
			return err
		}
	}
	fmt.Println("fine")
	return nil
}

// engineHoldLocal starts a cluster because it is told to, and a worker there, says so, and waits
// to be killed.
func engineHoldLocal(ctx context.Context, s engineSettings) error {
	c, err := ray.Start(ctx, ray.Options{Python: s.Python})
	if err != nil {
		return err
	}
	two := 2.0
	got, err := c.Connect(ctx, ray.ConnectOptions{Address: "local",
		LocalResources: ray.LocalResources{NumCPUs: &two,
			Resources: map[string]float64{"NPU": 3}}})
	if err != nil {
		return err
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	if r := nodes[0].Resources; !got.Started || r["CPU"] != 2 || r["NPU"] != 3 {
		return fmt.Errorf("%+v with nodes %+v", got, nodes)
	}
	id, err := c.CreateGroup(ctx, ray.GroupSpec{Bundles: []map[string]float64{{"NPU": 1}}})
	if err != nil {
		return err
	}
	if err := c.CreateActors(ctx, []ray.ActorSpec{{Group: id,
		Resources: map[string]float64{"NPU": 1}}}); err != nil {
		return err
	}
	if _, err := c.StartWorkers(ctx, starts([]int{0}, waitingWorker, "-", workerMark)); err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	return ctx.Err()
}

// lingering is how long processes of a local cluster may outlive the engine that was killed.
const lingering = 15 * time.Second

// engineKillLocal is the first process of a PID namespace. It kills an engine that has started a
// cluster, and waits until it is the only process that is left.
func engineKillLocal(ctx context.Context, s engineSettings) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), engineRole+"=holdLocal")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		return fmt.Errorf("the engine said %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		return err
	}
	began := time.Now()
	for {
		// What loses its parent is ours to reap.
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		left, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return err
		}
		if len(left) == 1 {
			fmt.Printf("fine after %d ms\n", time.Since(began).Milliseconds())
			return nil
		}
		if time.Since(began) > lingering {
			var names []string
			for _, file := range left {
				name, _ := os.ReadFile(file) // it may end just now
				names = append(names, fmt.Sprintf("%.100q", name))
			}
			return fmt.Errorf("left after %v: %s", lingering, strings.Join(names, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// engineCommand is this binary in a role.
func engineCommand(t *testing.T, role string, s engineSettings, env []string,
	before ...string) *exec.Cmd {
	t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append(before, self)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(append([]string{}, env...), engineRole+"="+role, engineArgs+"="+string(raw))
	cmd.Stderr = os.Stderr
	return cmd
}

// The engine is killed: the bridge sees the end of its socket, and everything goes.
func TestRealEngineKilled(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		cmd := engineCommand(t, "hold", engineSettings{Python: cl.Ray.Python, Address: cl.Address,
			NodeIP: cl.Nodes[0].IP}, cl.Env)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || strings.HasPrefix(line, "failed") {
			t.Fatalf("the engine said %q, %v", line, err)
		}
		group := strings.TrimSpace(line)
		bridges := childrenOf(t, cmd.Process.Pid)
		if len(bridges) != 1 {
			t.Fatalf("children of the engine: %v", bridges)
		}
		if _, err := c.AdoptGroup(within(t), group); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		// Its error is that it was killed.
		_ = cmd.Wait()
		checkGone(t, cl, c, group)
		eventually(t, "the bridge ended", func() bool { return syscall.Kill(bridges[0], 0) != nil })
	})
}

// checkGone checks that the group, the actors and the workers of a job that ended are gone.
func checkGone(t *testing.T, cl *raytest.Cluster, c *ray.Client, group string) {
	t.Helper()
	eventually(t, "the group is removed", func() bool {
		g, err := c.Group(within(t), group)
		return err == nil && g.State == ray.GroupRemoved || class(err) == "PlacementGroupRemoved"
	})
	cl.NoneLeft(t, "ray::Worker")
	cl.NoneLeft(t, workerMark)
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hang); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", hang, what)
		}
	}
}

func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	var all []int
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		// A thread may end meanwhile.
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		for _, word := range strings.Fields(string(data)) {
			var child int
			if _, err := fmt.Sscan(word, &child); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// In a PID namespace of its own the engine sees no Ray, starts one, and finds it again.
func TestRealLocalCluster(t *testing.T) { inNamespace(t, "local") }

// A cluster that the engine has started ends with it, also when it is killed.
func TestRealLocalEngineKilled(t *testing.T) { inNamespace(t, "killLocal") }

// inNamespace runs a role as the first process of a PID namespace, on each installed version.
func inNamespace(t *testing.T, role string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a PID namespace of its own, where no Ray runs, needs root")
	}
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		// Short, because Ray's sockets lie below it.
		dir, err := os.MkdirTemp("/tmp", "er")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		cmd := engineCommand(t, role, engineSettings{Python: r.Python},
			append(raytest.PlainEnv(), "HOME="+dir, "RAY_TMPDIR="+dir,
				"RAY_USAGE_STATS_ENABLED=0"), "unshare", "--pid", "--fork", "--mount-proc",
			"--kill-child")
		var out bytes.Buffer
		cmd.Stdout = &out
		cmd.WaitDelay = time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "fine") {
			t.Errorf("%v: %s", err, out.String())
		}
		t.Log(strings.TrimSpace(out.String()))
	})
}
