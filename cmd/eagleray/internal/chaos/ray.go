package chaos

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/eagleray/eagleray/internal/ray/loopback"
)

// script is the driver of another Ray job, which takes actors and groups away.
//
//go:embed ray.py
var script string

// cluster is the Ray that the server's ranks are on.
type cluster struct {
	// own is nil for one that was there before; spare is what a node has that joins it in the place
	// of a lost one.
	own   *loopback.Cluster
	spare loopback.NodeSpec
	// helper is the process of the script.
	helper  *exec.Cmd
	orders  io.WriteCloser
	answers *bufio.Reader
	errors  bytes.Buffer
}

// spread are the nodes of a cluster of our own for so many ranks, with a device for each: they are
// on three nodes, or on as many as there are ranks; one more is spare, and has what any of them
// has but the first, which is the server's.
func spread(ranks int) []loopback.NodeSpec {
	used := min(3, ranks)
	nodes := make([]loopback.NodeSpec, used, used+1)
	for i := range nodes {
		nodes[i] = loopback.NodeSpec{CPUs: 1, GPUs: float64((ranks + used - 1 - i) / used)}
	}
	return append(nodes, nodes[min(1, used-1)])
}

// newCluster starts a cluster of our own if that is wanted, and adds what the server needs to know
// of it to the arguments; else it is of the server's cluster. It is nil without Ray.
func newCluster(o *Options) (*cluster, error) {
	if !onRay(*o) {
		return nil, nil
	}
	p := settings(o.Args).Parallel
	c, python, address, ip, env := &cluster{}, p.Ray.Python, p.Ray.Address, p.Ray.NodeIP,
		os.Environ()
	if o.RayPython != "" {
		var err error
		nodes := spread(p.Layout().World() * p.Engines())
		c.spare = nodes[len(nodes)-1]
		c.own, err = loopback.Start(&loopback.Ray{Python: o.RayPython},
			loopback.Options{Nodes: nodes, FastFailure: true})
		if err != nil {
			return nil, fmt.Errorf("start a cluster of Ray: %w", err)
		}
		python, address, ip, env = o.RayPython, c.own.Address, c.own.Nodes[0].IP, c.own.Env
		o.Args = append(slices.Clone(o.Args), "--distributed-executor-backend", "ray",
			"--ray-python", python, "--ray-address", address, "--node-ip", ip,
			"--ray-device-key", "GPU")
	}
	if python == "" || address == "" {
		return nil, errors.New("faults on Ray need --ray-address and --ray-python of the server")
	}
	c.helper = exec.Command(python, "-u", "-c", script, address, ip)
	c.helper.Env, c.helper.Stderr = env, &c.errors
	c.helper.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	in, err := c.helper.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, c.stop())
	}
	out, err := c.helper.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, c.stop())
	}
	c.orders, c.answers = in, bufio.NewReader(out)
	if err := c.helper.Start(); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// stop ends what newCluster started. A nil cluster has nothing.
func (c *cluster) stop() (err error) {
	if c == nil {
		return nil
	}
	if c.helper.Process != nil {
		c.orders.Close()
		stuck := time.AfterFunc(patience, func() { _ = c.helper.Process.Kill() })
		// How it ends is of no interest.
		_ = c.helper.Wait()
		stuck.Stop()
	}
	if c.own != nil {
		err = c.own.Stop()
	}
	return err
}

// do asks the helper.
func (c *cluster) do(op string, pid int) error {
	if err := json.NewEncoder(c.orders).Encode(map[string]any{"op": op, "pid": pid}); err != nil {
		return fmt.Errorf("the helper on Ray: %w: %s", err, c.errors.String())
	}
	line, err := c.answers.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the helper on Ray: %w: %s", err, c.errors.String())
	}
	var answer struct{ Error string }
	if err := json.Unmarshal(line, &answer); err != nil {
		return fmt.Errorf("the helper on Ray: %w", err)
	}
	if answer.Error != "" {
		return fmt.Errorf("%s: %s", op, answer.Error)
	}
	return nil
}

// killActor kills the process of an actor, of which a rank is the child.
func killActor(_ *victim, actor int) error { return send(actor, syscall.SIGKILL) }

// helped has the helper do something to an actor, or its group.
func helped(op string) func(v *victim, actor int) error {
	return func(v *victim, actor int) error { return v.s.cluster.do(op, actor) }
}

// onActor does something to a rank's actor.
func onActor(do func(v *victim, actor int) error) func(v *victim) error {
	return func(v *victim) error {
		rank, err := v.one()
		if err != nil {
			return err
		}
		actor, err := parentOf(rank)
		if err != nil {
			return err
		}
		v.s.expectExit(rank)
		return do(v, actor)
	}
}

// killBridge kills the server's child that speaks with Ray.
func killBridge(v *victim) error {
	ranks, err := v.s.ranks(v.ctx)
	if err != nil {
		return err
	}
	for _, pid := range v.s.children() {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !bytes.Contains(args, []byte("/proc/self/fd/")) {
			continue
		}
		for _, r := range ranks {
			v.s.expectExit(r.PID)
		}
		return send(pid, syscall.SIGKILL)
	}
	return errors.New("the server has no bridge to Ray")
}

// remote is a node with a rank, but not the one of the server, and the rank there.
func (v *victim) remote() (*loopback.Node, int, error) {
	ranks, err := v.s.ranks(v.ctx)
	if err != nil {
		return nil, 0, err
	}
	nodes := v.s.cluster.own.Nodes
	for _, r := range ranks {
		for _, n := range nodes[1:] {
			if n.IP == r.Node {
				return n, r.PID, nil
			}
		}
	}
	return nil, 0, fmt.Errorf("no rank of %v is on a node beside the server's", ranks)
}

// killRaylet ends a node as a crash of its raylet does. Another node joins the cluster then.
func killRaylet(v *victim) error {
	n, rank, err := v.remote()
	if err != nil {
		return err
	}
	own := v.s.cluster.own
	own.Remove(n)
	v.s.expectExit(rank)
	if err := send(n.Raylet, syscall.SIGKILL); err != nil {
		return err
	}
	_, err = own.Join(v.s.cluster.spare)
	return err
}

// silence is how long a node that was cut off stays silent at most. Ray, which takes seconds to
// miss it, may give it to the next group, and then waits for it until its connections end: 2.35.0
// did so also when it knew that the node was dead.
const silence = 15 * time.Second

// cutNode stops all processes of a node: nothing is heard of it any more, and no connection to it
// ends. When the server goes on without it, or it was silent for long, it is gone for good, and
// another one joins.
func cutNode(v *victim) error {
	n, rank, err := v.remote()
	if err != nil {
		return err
	}
	own := v.s.cluster.own
	v.s.expectExit(rank)
	if err := own.Silence(n); err != nil {
		return err
	}
	for until := time.Now().Add(silence); !v.s.replaced(v.ctx) && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := own.Crash(n); err != nil {
		return err
	}
	_, err = own.Join(v.s.cluster.spare)
	return err
}

// parentOf is the process that started another.
func parentOf(pid int) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold anything.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return strconv.Atoi(fields[1])
}
