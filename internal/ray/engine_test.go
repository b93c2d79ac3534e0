package ray_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// engineRole names the part that this binary plays as an engine of its own; engineArgs are its settings, in JSON.
const (
	engineRole = "EAGLERAY_TEST_ENGINE"
	engineArgs = "EAGLERAY_TEST_ENGINE_ARGS"
)

// leashed is a worker that ends at the end of its standard input, as ours do: cat - leashedMark.
const (
	leashed     = "/bin/cat"
	leashedMark = "eagleray-test-worker"
)

type engineSettings struct {
	Python, Address, NodeIP string
}

func engineMain(role string) int {
	roles := map[string]func(context.Context, engineSettings) error{"hold": engineHold, "local": engineLocal}
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
	if _, err := c.Connect(ctx, ray.ConnectOptions{Address: s.Address, NodeIP: s.NodeIP}); err != nil {
		return err
	}
	id, err := c.CreateGroup(ctx, ray.GroupSpec{Bundles: gpus(1)})
	if err != nil {
		return err
	}
	if err := c.CreateActors(ctx, []ray.ActorSpec{{Group: id, GPUs: 1}}); err != nil {
		return err
	}
	if _, err := c.StartWorkers(ctx, starts([]int{0}, leashed, "-", leashedMark)); err != nil {
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
	options.LocalResources = ray.LocalResources{NumCPUs: &two, NumGPUs: &zero, Resources: map[string]float64{"NPU": 3}}
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
		if r := nodes[0].Resources; len(nodes) != 1 || r["CPU"] != 2 || r["GPU"] != 0 || r["NPU"] != 3 {
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

// engineCommand is this binary in a role.
func engineCommand(t *testing.T, role string, s engineSettings, env []string, before ...string) *exec.Cmd {
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
		cmd := engineCommand(t, "hold", engineSettings{Python: cl.Ray.Python, Address: cl.Address, NodeIP: cl.Nodes[0].IP}, cl.Env)
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
	cl.NoneLeft(t, leashedMark)
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
func TestRealLocalCluster(t *testing.T) {
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
		cmd := engineCommand(t, "local", engineSettings{Python: r.Python}, append(raytest.PlainEnv(), "HOME="+dir, "RAY_TMPDIR="+dir,
			"RAY_USAGE_STATS_ENABLED=0"), "unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
		var out bytes.Buffer
		cmd.Stdout = &out
		cmd.WaitDelay = time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "fine") {
			t.Errorf("%v: %s", err, out.String())
		}
	})
}
