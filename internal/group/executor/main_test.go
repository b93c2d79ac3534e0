package executor

import (
	"bufio"
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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/group/launch/process"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// Variables that say what the test binary is when it runs again.
const (
	// roleVariable makes it a driver of its own.
	roleVariable = "EAGLERAY_EXECUTOR_TEST"
	// endVariable makes a worker end early: "rank stage".
	endVariable = "EAGLERAY_EXECUTOR_TEST_END"
)

// TestMain lets the test binary be its own worker process, as the program is, and a driver to be
// killed or to run in a namespace.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == launch.Verb:
		err = beWorker()
	case os.Getenv(roleVariable) != "":
		err = beDriver(os.Getenv(roleVariable))
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// beWorker is the verb "worker", or a worker that ends too early.
func beWorker() error {
	rank, stage, _ := strings.Cut(os.Getenv(endVariable), " ")
	if i := slices.Index(os.Args, "--rank"); stage == "" || i < 0 || os.Args[i+1] != rank {
		return invited.Main(os.Args[2:], nil)
	}
	fmt.Fprintln(os.Stderr, "about to end: out of cheese")
	inv, err := join.ReadInvitation(bufio.NewReader(os.NewFile(3, "invitation")))
	if err != nil || stage == "start" {
		return err
	}
	token, err := handshake.ParseToken(inv.Token)
	if err != nil {
		return err
	}
	id := handshake.Identity{Instance: inv.Endpoint.Instance, Rank: inv.Rank, PID: os.Getpid()}
	copy(id.Binary[:], inv.Binary)
	conn, err := handshake.Dial(context.Background(), inv.Endpoint, token, id)
	if err != nil {
		return err
	}
	defer conn.Close()
	switch stage {
	case "handshake":
		os.Exit(3)
	case "admitted":
		var w join.Admitted
		if err := join.Receive(conn, &w); err != nil {
			return err
		}
		if w.Ring {
			if _, err := conn.RecvFile(); err != nil {
				return err
			}
		}
		os.Exit(3)
	case "slowmesh":
		// It cannot reach the other ranks, as where a firewall drops what goes between two nodes.
		var w join.Admitted
		var g join.Rendezvous
		if err := join.Receive(conn, &w); err != nil {
			return err
		}
		if err := join.Send(conn, join.Location{Host: "elsewhere",
			Endpoint: &inv.Endpoint}); err != nil {
			return err
		}
		if err := join.Receive(conn, &g); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond) // long enough for a driver that does not wait for it
		fmt.Fprintln(os.Stderr, "connect the ranks: rank 0: dial tcp: i/o timeout")
		os.Exit(3)
	case "silent":
		// It hangs where it should go on, until the driver gives up.
		_, _ = io.Copy(io.Discard, conn)
	}
	return fmt.Errorf("end at %q", stage)
}

// tinyInit is the built-in model with a small cache.
func tinyInit(ranks int) queue.Init {
	return queue.Init{Layout: layout.Layout{TP: ranks}, LoadFormat: "auto", DType: "float32",
		Threads: 1,
		Blocks:  64, BlockSize: 16, MaxSeqs: 4, MaxModelLen: 256}
}

// transports are the ways to reach ranks that are processes: over the ring, and over TCP and TLS.
var transports = []struct {
	name  string
	links bool
}{{"ring", false}, {"link", true}}

// processes are the options for so many ranks in processes of their own.
func processes(ranks int, links bool) Options {
	o := Options{Launcher: process.New(nil), Init: tinyInit(ranks), LinksOnly: links}
	if links {
		o.Address = "127.0.0.1"
	}
	return o
}

// group starts ranks in processes of their own; they end with the test.
func group(t testing.TB, o Options) *Executor {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

// patience is for what takes milliseconds on an idle machine.
const patience = time.Minute

// prompt is a plan that computes a prompt in a fresh slot and samples its first token.
func prompt(id uint64, tokens ...int32) *step.Plan {
	return &step.Plan{ID: id, Free: []uint32{0},
		New: []step.NewRequest{{PromptLen: uint32(len(tokens)), Tokens: tokens,
			Params: sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
				PromptLogprobs: sample.NoLogprobs, MaxTokens: 10, EOS: -1}}},
		Rows: []step.Row{{Count: uint32(len(tokens)), Blocks: 1,
			Sample: true}}, Blocks: []uint32{3}}
}

// runs wants one step of the model and one call of every rank to go well.
func runs(t testing.TB, e *Executor, id uint64) (token int32) {
	t.Helper()
	f, err := e.Execute(prompt(id, 5, 6, 7))
	if err != nil {
		t.Fatalf("step %d: %v", id, err)
	}
	r, err := f.Wait()
	if err != nil || r.Plan != id || len(r.Token) != 1 {
		t.Fatalf("step %d: %+v, %v", id, r, err)
	}
	token = r.Token[0]
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	text := strconv.FormatUint(id, 10)
	all, err := e.CollectiveRPC(ctx, calls.Echo.Name, []byte(text), RPCOptions{})
	if err != nil || len(all) != len(e.workers) {
		t.Fatalf("call %d: %q, %v", id, all, err)
	}
	for _, got := range all {
		if string(got) != text {
			t.Fatalf("call %d is answered %q", id, got)
		}
	}
	return token
}

// eventually waits until check is true.
func eventually(t testing.TB, what string, check func() bool) {
	t.Helper()
	for started := time.Now(); !check(); time.Sleep(2 * time.Millisecond) {
		if time.Since(started) > patience {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func signal(t testing.TB, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
}

// stop sends SIGSTOP and waits until the process is stopped.
func stop(t testing.TB, pid int) {
	t.Helper()
	signal(t, pid, syscall.SIGSTOP)
	eventually(t, "the stop", func() bool {
		raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			t.Fatal(err)
		}
		_, state, _ := strings.Cut(string(raw), ") ")
		return strings.HasPrefix(state, "T")
	})
}

// detour is a launcher whose ranks reach the driver through a proxy.
type detour struct {
	Launcher
	t     testing.TB
	proxy *proxy
}

func (d *detour) Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	d.proxy = newProxy(d.t, specs[0].Invitation.Endpoint.TCP)
	for i := range specs {
		inv := *specs[i].Invitation
		inv.Endpoint.TCP = d.proxy.l.Addr().String()
		specs[i].Invitation = &inv
	}
	return d.Launcher.Launch(ctx, specs)
}

// proxy forwards TCP connections and can cut them all.
type proxy struct {
	l     net.Listener
	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l}
	p.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			p.wg.Go(func() { forward(in, out) })
			p.wg.Go(func() { forward(out, in) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func forward(to, from net.Conn) {
	// How it ends is of no interest: both ends are closed.
	_, _ = io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
	to.Close()
	from.Close()
}

// cut resets everything under way.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.Close()
	}
	p.conns = nil
}

// isTimeout recognises a call's own timeout.
func isTimeout(err error) bool { return errors.Is(err, queue.ErrTimeout) }

// checkHealth asks every rank for a sign of life.
func checkHealth(ctx context.Context, e *Executor) error {
	_, err := Call(ctx, e, calls.CheckHealth, rpc.None{}, RPCOptions{})
	return err
}
