package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/inproc"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/synctext"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// roleVariable makes the test binary a node of its own, to be killed: "driver ADDRESS" is node 0 of
// two, "agent ADDRESS" node 1.
const roleVariable = "EAGLERAY_NODES_TEST"

// TestMain lets the test binary be its own worker process, and a node.
func TestMain(m *testing.M) {
	role, address, _ := strings.Cut(os.Getenv(roleVariable), " ")
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if role != "" && len(os.Args) == 1 {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(3) // the test is gone
		}()
	}
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == launch.Verb:
		err = invited.Main(os.Args[2:], nil)
	case role == "agent":
		o := agentOptions(1, address, log)
		o.Silence = 4 * heldFor
		err = Serve(context.Background(), o)
	case role == "driver":
		err = beDriver(address, log)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// beDriver is a node 0 that waits to be killed.
func beDriver(address string, log *slog.Logger) error {
	c, err := Listen(zeroOptions(2, address, log))
	if err != nil {
		return err
	}
	l := c.Launcher(only(2, 2))
	if _, err := executor.Start(context.Background(), groupOptions(l, 2)); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "the group is there")
	select {}
}

// heldFor is how long a node is silent until node 0 takes it for gone, in tests that hold one. It
// beats four times in that time.
const heldFor = 2 * time.Second

// limit is for what takes milliseconds on an idle machine.
const limit = time.Minute

var (
	token    = handshake.TokenOf([]byte("a secret of these tests"))
	settings = []config.Setting{{Name: "version", Value: "1"}, {Name: "--dtype", Value: "float32"}}
)

func zeroOptions(nodes int, address string, log *slog.Logger) Options {
	return Options{Nodes: nodes, Address: address, Token: token, Settings: settings, Timeout: limit,
		Output: launch.Print(os.Stderr), Log: log}
}

func agentOptions(node int, address string, log *slog.Logger) AgentOptions {
	return AgentOptions{Node: node, Address: address, Token: token, Settings: settings,
		Timeout: limit, Output: launch.Print(os.Stderr), Log: log}
}

// only is the one group of so many nodes.
func only(nodes, ranks int) Group { return Group{Slots: ranks, Share: ranks / nodes} }

func groupOptions(l executor.Launcher, ranks int) executor.Options {
	return executor.Options{Launcher: l, Address: "127.0.0.1",
		Init: queue.Init{Layout: layout.Layout{TP: ranks}, LoadFormat: "auto", DType: "float32",
			Threads: 1, Blocks: 64, BlockSize: 16, MaxSeqs: 4, MaxModelLen: 256}}
}

// journal is a log that a test reads.
type journal struct{ synctext.Buffer }

func (j *journal) log() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }

// waitFor waits until the log has the text.
func (j *journal) waitFor(t *testing.T, text string) {
	t.Helper()
	eventually(t, text, func() bool { return strings.Contains(j.String(), text) })
}

func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	for started := time.Now(); !check(); time.Sleep(2 * time.Millisecond) {
		if time.Since(started) > limit {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// zero is a node 0 at a free port, which ends with the test.
func zero(t *testing.T, nodes int, log *journal) *Cluster {
	t.Helper()
	c, err := Listen(zeroOptions(nodes, "127.0.0.1:0", log.log()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopCluster(t, c, nil) })
	return c
}

func stopCluster(t *testing.T, c *Cluster, cause error) {
	t.Helper()
	if err := c.Stop(context.Background(), cause); err != nil {
		t.Error(err)
	}
}

// serving runs a node in this process; its end comes over the channel.
func serving(ctx context.Context, o AgentOptions) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, o) }()
	return ended
}

// node runs node 1 as a process, which ends with the test.
func node(t *testing.T, role, address string) (*exec.Cmd, *journal) {
	t.Helper()
	c, j := exec.Command(os.Args[0]), &journal{}
	c.Env = append(os.Environ(), roleVariable+"="+role+" "+address)
	c.Stderr = j
	// Its end, rather than a parent-death signal, ends the node: threads of this process end with
	// the launchers that have locked them, and may be the very ones that a node was started from.
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Logf("%s: %s", role, j)
		}
	})
	return c, j
}

// start starts a group that ends with the test.
func start(t *testing.T, o executor.Options) *executor.Executor {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	e, err := executor.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shutdown(t, e) })
	return e
}

func shutdown(t *testing.T, e *executor.Executor) {
	t.Helper()
	if err := e.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

// tokens computes a prompt and some tokens.
func tokens(t *testing.T, e *executor.Executor) (all []int32) {
	t.Helper()
	p := step.Plan{Free: []uint32{0}, New: []step.NewRequest{{PromptLen: 3, Tokens: []int32{5, 6,
		7},
		Params: sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
			PromptLogprobs: sample.NoLogprobs, MaxTokens: 10, EOS: -1}}},
		Rows: []step.Row{{Count: 3, Blocks: 1, Sample: true}}, Blocks: []uint32{3}}
	for id := range uint64(5) {
		p.ID = id + 1
		f, err := e.Execute(&p)
		if err != nil {
			t.Fatal(err)
		}
		r, err := f.Wait()
		if err != nil || len(r.Token) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		all = append(all, r.Token...)
		p = step.Plan{Rows: []step.Row{{Start: uint32(2 + len(all)), Count: 1, Sample: true,
			Source: step.FromPlan, Last: r.Token[0]}}}
	}
	return all
}

// end waits for the end of a node.
func end(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		t.Fatal("the node goes on")
		return nil
	}
}

// TestGroup serves with two ranks, and then with four, on two nodes of which one comes late: with
// the tokens of one rank. The end of node 0 ends the other without an error.
func TestGroup(t *testing.T) {
	one := groupOptions(inproc.New(machine.Place{}), 1)
	one.InProcess = true
	want := tokens(t, start(t, one))
	var log, other journal
	c := zero(t, 2, &log)
	ended := make(chan error, 1)
	go func() {
		for !strings.Contains(log.String(), "waiting for other nodes") {
			time.Sleep(time.Millisecond)
		}
		ended <- Serve(t.Context(), agentOptions(1, c.Address(), other.log()))
	}()
	for _, ranks := range []int{2, 4} {
		l := c.Launcher(only(2, ranks))
		e := start(t, groupOptions(l, ranks))
		l.Serving()
		if got := tokens(t, e); !slices.Equal(got, want) {
			t.Errorf("tokens %v, one rank has %v", got, want)
		}
		for _, r := range e.Ranks() {
			if testchild.Gone(r.PID) {
				t.Errorf("%+v", r)
			}
		}
		shutdown(t, e)
		for _, r := range e.Ranks() {
			if !testchild.Gone(r.PID) {
				t.Errorf("rank %d is left", r.Rank)
			}
		}
	}
	other.waitFor(t, "loaded\" engine=0 ranks=1\n")
	other.waitFor(t, "loaded\" engine=0 ranks=2,3\n")
	stopCluster(t, c, nil)
	if err := end(t, ended); err != nil {
		t.Error(err)
	}
	other.waitFor(t, "ended: node 0 has ended")
}

// TestRefused lets nodes come that cannot take part. Each learns why, by name; node 0 logs it, and
// goes on to wait for the right one.
func TestRefused(t *testing.T) {
	var log journal
	l := zero(t, 3, &log)
	first, leave := context.WithCancel(t.Context())
	joined := serving(first, agentOptions(1, l.Address(), log.log()))
	log.waitFor(t, "joined node 0")
	with := func(change func(*AgentOptions)) AgentOptions {
		o := agentOptions(1, l.Address(), slog.New(slog.DiscardHandler))
		change(&o)
		return o
	}
	for _, c := range []struct {
		change func(*AgentOptions)
		want   string
	}{
		{func(o *AgentOptions) {}, "refuses this node: --node-rank 1 is taken by pid " +
			strconv.Itoa(os.Getpid()) + " of host "},
		{func(o *AgentOptions) { o.Node = 5000 }, "--node-rank 5000 is outside of 1 to 4095"},
		{func(o *AgentOptions) { o.Node = 0 }, "--node-rank 0 is outside of 1 to 4095"},
		{func(o *AgentOptions) { o.Node, o.Token = 2, handshake.TokenOf([]byte("guessed")) },
			"--cluster-token-file: node 0 at " + l.Address() + " has another token"},
		{func(o *AgentOptions) {
			o.Node = 2
			o.Settings = []config.Setting{{Name: "version", Value: "2"},
				{Name: "--dtype", Value: "float32"}, {Name: "--new"}}
		}, "version is 1 at node 0, 2 at node 2; --new is unknown at node 0, not set at node 2"},
		{func(o *AgentOptions) { o.Node, o.Settings = 2, settings[:1] },
			"--dtype is float32 at node 0, unknown at node 2"},
	} {
		err := end(t, serving(t.Context(), with(c.change)))
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), token.Reveal()[:8]) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if n := strings.Count(log.String(), "refused a node"); n != 5 {
		t.Errorf("%d refused: %s", n, &log)
	}
	// The first one has kept its place, until it goes.
	leave()
	if err := end(t, joined); err != nil {
		t.Error(err)
	}
	log.waitFor(t, "another one may take its place")
	again, leave := context.WithCancel(t.Context())
	joined = serving(again, agentOptions(1, l.Address(), log.log()))
	eventually(t, "the second node 1", func() bool {
		return strings.Count(log.String(), "node joined") == 2
	})
	leave()
	if err := end(t, joined); err != nil {
		t.Error(err)
	}
}

// TestLate names who has not come, on both sides.
func TestLate(t *testing.T) {
	var log, other journal
	o := zeroOptions(3, "127.0.0.1:0", log.log())
	o.Timeout = 300 * time.Millisecond
	c, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	joined := serving(t.Context(), agentOptions(1, c.Address(), other.log()))
	other.waitFor(t, "joined node 0")
	_, err = executor.Start(t.Context(), groupOptions(c.Launcher(only(3, 3)), 3))
	want := "node 2 has not come to " + c.Address() +
		" within 300ms (--distributed-timeout-seconds)"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	stopCluster(t, c, err)
	if err := end(t, joined); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the node that came: %v", err)
	}
	if !strings.Contains(log.String(), "missing=") {
		t.Errorf("%s", &log)
	}
	// No rank is there any more.
	a := agentOptions(1, c.Address(), other.log())
	a.Timeout = 50 * time.Millisecond
	err = end(t, serving(t.Context(), a))
	if err == nil || !strings.Contains(err.Error(), "node 0 was not reached at "+c.Address()+
		" within 50ms (--distributed-timeout-seconds): ") {
		t.Errorf("%v", err)
	}
	other.waitFor(t, "waiting for node 0")
}

// TestStrangers says nothing, or nonsense, after the handshake: node 0 does not wait for it at its
// end, nor does it give it a place.
func TestStrangers(t *testing.T) {
	var log journal
	l := zero(t, 2, &log)
	for _, text := range []string{"", "\xff\xff\xff\xff", "\x02\x00\x00\x00[]"} {
		conn, err := handshake.Dial(t.Context(), handshake.Endpoint{Instance: instance,
			TCP: l.Address(), Unpinned: true}, token, handshake.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
	}
	started := time.Now()
	if err := l.Stop(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if took := time.Since(started); took > Silence/2 {
		t.Errorf("the end took %v", took)
	}
	if strings.Contains(log.String(), "joined") {
		t.Errorf("%s", &log)
	}
}

// FuzzMessages feeds what another node may send to the parsers: whatever they take, they can write.
func FuzzMessages(f *testing.F) {
	for _, m := range []any{hello{Node: 1, Settings: settings}, answer{"no"},
		order{Stop: &stop{"x"}}, report{Started: []int{1}}} {
		raw, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, m := range []any{new(hello), new(answer), new(order), new(report)} {
			if json.Unmarshal(raw, m) != nil {
				continue
			}
			if o, ok := m.(*order); ok && len(o.Start) > 0 {
				continue // an endpoint that leads nowhere is refused when it is dialled
			}
			if _, err := json.Marshal(m); err != nil {
				t.Errorf("%+v: %v", m, err)
			}
		}
	})
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}
