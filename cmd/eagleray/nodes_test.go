package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// cluster is what the nodes of a test have in common.
type cluster struct {
	t *testing.T
	// address and port are node 0's, token the file with the secret.
	address, port, token string
	// flags are the same on all nodes.
	flags []string
}

func newCluster(t *testing.T, flags ...string) *cluster {
	t.Helper()
	return &cluster{t: t, address: "127.0.0.1", port: freePort(t), token: tokenFile(t),
		flags: append([]string{"--kv-cache-memory-bytes", "64M", "--cpu-threads", "1"}, flags...)}
}

// args is the command line of a node.
func (c *cluster) args(more ...string) []string {
	all := append([]string{"serve", "--master-addr", c.address, "--master-port", c.port,
		"--cluster-token-file", c.token}, c.flags...)
	return append(all, more...)
}

// zero prepares node 0, node another one.
func (c *cluster) zero() *program {
	return command(c.t, "", c.args("--port", "0")...)
}

func (c *cluster) node(rank string) *program {
	p := command(c.t, "", c.args("--headless", "--node-rank", rank)...)
	p.shown = true
	return p
}

// says waits until a program has logged a text.
func (p *program) says(text string) {
	p.t.Helper()
	eventually(p.t, text, func() bool { return strings.Contains(p.err.String(), text) })
}

// ends wants a program to end with a code and a last line that has the text.
func (p *program) ends(code int, text string) {
	p.t.Helper()
	if got := p.exit(); got != code {
		p.t.Errorf("%q: exit code %d, want %d", p.cmd.Args[1:], got, code)
	}
	said := strings.TrimSpace(p.err.String())
	if last := said[strings.LastIndex(said, "\n")+1:]; !strings.Contains(last, text) {
		p.t.Errorf("the last line is %q, without %q", last, text)
	}
}

func client(url string) openai.Client {
	return openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("none"),
		option.WithMaxRetries(0))
}

// TestNodes serves with two nodes on one machine, the second of which comes first, with the answers
// of one process; at its end node 0 ends the other.
func TestNodes(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	want := askChat(t, client(url))
	c := newCluster(t, "-tp", "2", "--nnodes", "2")
	other := c.node("1").start()
	other.says("waiting for node 0")
	p, url := ready(t, c.zero())
	other.says("serving")
	if got := askChat(t, client(url)); got != want {
		t.Errorf("two nodes answer %q, one process %q", got, want)
	}
	ranks := workers(t, other.cmd.Process.Pid)
	if len(ranks) != 1 || ranks[1] == 0 {
		t.Errorf("workers of node 1: %v", ranks)
	}
	drains(t, p, url)
	other.ends(0, "ended: node 0 has ended, as it was asked to")
	workersEnd(t, ranks)
}

// TestNodesOnGPUs serves with two nodes that have a GPU each, for which a machine stands, by NCCL.
func TestNodesOnGPUs(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	want := askChat(t, client(url))
	c := newCluster(t, "-tp", "2", "--nnodes", "2", "--device", "cuda", "--max-model-len", "256")
	on := func(p *program) *program {
		p.cmd.Env = append(p.cmd.Env, queue.CUDADriverVariable+"=machine,apart,nccl")
		return p
	}
	other := on(c.node("1")).start()
	p, url := ready(t, on(c.zero()))
	if got := askChat(t, client(url)); got != want {
		t.Errorf("two nodes answer %q, one process %q", got, want)
	}
	for _, text := range []string{"CUDA: of unproven speed",
		"sums of ranks by NCCL 2.27.3: rank 0: "} {
		if !strings.Contains(p.err.String(), text) {
			t.Errorf("not said: %s", text)
		}
	}
	p.stops()
	other.ends(0, "ended: node 0 has ended, as it was asked to")
}

// TestCUDA has no program for GPUs attached to it, and says where there is one.
func TestCUDA(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"cuda", "probe"}, {"cuda"},
		{"serve", "--device", "cuda", "--port", "0"}} {
		command(t, "", args...).start().ends(exitError, "has no program for GPUs: neither is "+
			"eagleray-cuda attached to it, as in releases and by make build, nor is it beside it")
	}
}

// TestNodesRefused starts nodes that cannot be.
func TestNodesRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "-tp", "2", "--nnodes", "2")
	for _, x := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"serve", "-tp", "2", "--nnodes", "2"}, exitUsage, "--master-addr"},
		{c.args("--headless"), exitUsage, "--headless on node 0"},
		{c.args("--headless", "--node-rank", "2"), exitUsage, "--node-rank 2 is outside of 0 to 1"},
		{c.args("--cluster-token-file", "/no/such/file"), exitUsage,
			"--cluster-token-file: open /no"},
		{c.args("--node-rank", "1", "--headless", "--distributed-timeout-seconds", "0.01"),
			exitError, "node 0 was not reached at " + c.address + ":" + c.port},
		{c.args("--distributed-timeout-seconds", "0.01", "--port", "0"), exitError,
			"node 1 has not come to " + c.address + ":" + c.port},
	} {
		p := command(t, "", x.args...).start()
		p.ends(x.code, x.want)
	}
	taken, err := net.Listen("tcp", c.address+":"+c.port)
	if err != nil {
		t.Fatal(err)
	}
	command(t, "", c.args("--port", "0")...).start().ends(exitError,
		"--master-addr "+c.address+" --master-port "+c.port+": ")
	taken.Close()

	zero := c.zero().start()
	zero.says("waiting for other nodes")
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte(" secret \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "", c.args("--headless", "--node-rank", "1", "--cluster-token-file",
		short)...).start().ends(exitUsage, short+" has a secret of 6 characters, of at least 16")
	folder, err := filepath.Abs(filepath.Join("..", "..", "testdata", "models", "llama-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	command(t, "", c.args("--headless", "--node-rank", "1", "--dtype", "float32", "--max-model-len",
		"1k", "--block-size", "32", folder)...).start().ends(exitError, "refuses this node: "+
		"the model is go-std-tiny at node 0, "+folder+" at node 1; --block-size is 16 at node 0, "+
		"32 at node 1; --dtype is auto at node 0, float32 at node 1; --max-model-len is not set "+
		"at node 0, 1000 at node 1; SHA-256 of its config.json is unknown at node 0, ")
	zero.signal(syscall.SIGTERM)
	zero.ends(0, "stopped before it was ready")

	// Places that share experts are one group.
	c = newCluster(t, append([]string{"-dp", "2", "-ep", "--nnodes", "2"}, mixture...)...)
	zero = c.zero().start()
	zero.says("waiting for other nodes")
	command(t, "", c.args("--headless", "--node-rank", "1", "--enable-eplb",
		"--num-redundant-experts", "2", "--quantization", "int8")...).start().ends(exitError,
		"refuses this node: --enable-eplb is false at node 0, true at node 1; "+
			"--num-redundant-experts is 0 at node 0, 2 at node 1; --quantization is not set at "+
			"node 0, int8_per_channel_weight_only at node 1")
	zero.signal(syscall.SIGTERM)
	zero.ends(0, "stopped before it was ready")
}

// TestNodesRecover kills a rank of the other node, and then that node, which is started again: a
// stream pauses each time, and goes on.
func TestNodesRecover(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "-tp", "2", "--nnodes", "2")
	other := c.node("1").start()
	zero, url := ready(t, c.zero())
	for i, victim := range []string{"rank", "node"} {
		other.says("serving")
		const tokens = 300
		events := longStream(t, url, tokens)
		pid := other.cmd.Process.Pid
		if victim == "rank" {
			pid = workers(t, pid)[1]
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if victim == "node" {
			other.exit()
			zero.says("waiting for other nodes")
			other = c.node("1").start()
		}
		rest, err := io.ReadAll(events)
		if err != nil || !bytes.Contains(rest, fmt.Appendf(nil, `"completion_tokens":%d`, tokens)) {
			t.Errorf("%s: the stream ends with %q, %v", victim, rest[max(0, len(rest)-300):], err)
		}
		// The stream may have been over before.
		eventually(t, fmt.Sprint(i, " nodes gone: ", victim), func() bool {
			return strings.Count(zero.err.String(), "is gone") == i
		})
	}
	zero.stops()
	other.ends(0, "ended: node 0 has ended")
}

// TestNodesReplicas serves with two engines, each on a node of its own, with the bits of one
// process. A rank of the second one is killed, and then its node: streams of both engines go on,
// and the first engine notices nothing.
func TestNodesReplicas(t *testing.T) {
	t.Parallel()
	want := onePiece(t)
	c := newCluster(t, "-tp", "2", "--data-parallel-size", "2", "--data-parallel-size-local", "1",
		"--nnodes", "2")
	other := c.node("1").start()
	zero, url := ready(t, c.zero())
	other.says("serving")
	for range 2 { // by turns
		resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(drawn))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := choices(t, string(answer)); got != want {
			t.Errorf("two nodes answer\n%s\none process\n%s", got, want)
		}
	}
	first := workers(t, zero.cmd.Process.Pid)
	for _, victim := range []string{"rank", "node"} {
		const tokens = 300
		streams := []io.Reader{longStream(t, url, tokens), longStream(t, url, tokens)}
		pid := other.cmd.Process.Pid
		second := workers(t, pid)
		if len(first) != 2 || len(second) != 2 {
			t.Fatalf("workers of node 0 %v, of node 1 %v", first, second)
		}
		if victim == "rank" {
			pid = second[1]
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if victim == "node" {
			other.exit()
			zero.says("a node has gone")
			other = c.node("1").start()
		}
		for i, events := range streams {
			rest, err := io.ReadAll(events)
			if err != nil || !bytes.Contains(rest, fmt.Appendf(nil, `"completion_tokens":%d`,
				tokens)) {
				t.Errorf("%s: stream %d ends with %q, %v", victim, i, rest[max(0, len(rest)-300):],
					err)
			}
		}
	}
	log := zero.err.String()
	failures := strings.Count(log, "workers failed")
	if n := strings.Count(log, "engine=1"); failures != 2 || n == 0 {
		t.Errorf("%d failures: %s", failures, log)
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, "workers failed") && !strings.Contains(line, "engine=1") {
			t.Errorf("the first engine has failed: %s", line)
		}
	}
	if now := workers(t, zero.cmd.Process.Pid); !maps.Equal(now, first) {
		t.Errorf("the first engine's ranks are %v, before %v", now, first)
	}
	zero.stops()
	other.ends(0, "ended: node 0 has ended")
}

// TestNodesDie kills one program after the other where nothing is to start again: what is left ends
// at once, with its reason.
func TestNodesDie(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		victim, signal      string
		zero, other         int
		zeroLast, otherLast string
	}{
		{"rank", "kill", exitError, exitError, "rank 1 on node 1 at 127.0.0.1 (pid ",
			"has ended: engine failed: rank 1 on node 1 at 127.0.0.1 (pid "},
		{"node 1", "kill", exitError, -1, "rank 1 on node 1 at 127.0.0.1 (pid ", ""},
		{"node 1", "term", exitError, 0, "is gone: it was asked to end",
			"ending: this node was asked to"},
		{"node 0", "kill", -1, exitError, "", "is gone: "},
	} {
		t.Run(x.victim+" "+x.signal, func(t *testing.T) {
			c := newCluster(t, "-tp", "2", "--nnodes", "2", "--on-failure", "exit")
			other := c.node("1").start()
			zero, _ := ready(t, c.zero())
			other.says("serving")
			ranks := workers(t, other.cmd.Process.Pid)
			maps.Copy(ranks, workers(t, zero.cmd.Process.Pid))
			if len(ranks) != 2 {
				t.Fatalf("workers %v", ranks)
			}
			s := map[string]syscall.Signal{"kill": syscall.SIGKILL,
				"term": syscall.SIGTERM}[x.signal]
			pid := map[string]int{"rank": ranks[1], "node 1": other.cmd.Process.Pid,
				"node 0": zero.cmd.Process.Pid}[x.victim]
			if err := syscall.Kill(pid, s); err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			zero.ends(x.zero, x.zeroLast)
			other.ends(x.other, x.otherLast)
			t.Logf("all ended after %v", time.Since(started))
			workersEnd(t, ranks)
			if x.victim != "node 0" {
				return
			}
			// What supervises the programs starts them again: they meet at the same port.
			other = c.node("1").start()
			zero, url := ready(t, c.zero())
			drains(t, zero, url)
			other.ends(0, "ended: node 0")
		})
	}
}
