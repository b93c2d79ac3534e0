package replicas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/synctext"
)

// TestMain lets the test binary be its own worker process, as the program is.
func TestMain(m *testing.M) {
	invited.Run(nil)
	os.Exit(m.Run())
}

// openRouter opens engines of the built-in model, each of tp ranks.
func openRouter(t *testing.T, dp, tp int, change func(*config.Config)) (*Router, *metrics.Metrics,
	*synctext.Buffer) {
	t.Helper()
	c := config.Default()
	c.Cache.MemoryBytes = 32 << 20
	c.Parallel.DataParallelSize, c.Parallel.TensorParallelSize = dp, tp
	if change != nil {
		change(&c)
	}
	log := &synctext.Buffer{}
	r, m, err := Open(t.Context(), engine.Options{Config: c, WorkerOutput: launch.Print(log),
		Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r, m, log
}

// ask is a request that is sampled with a seed, and reports log-probabilities.
func ask(r *Router, question string, outputs int32) *engine.Request {
	text := "<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n"
	return engine.NewRequest(r.Info().Tokenizer.Encode(text, false), sample.Params{Temperature: 0.9,
		TopP: 1, RepetitionPenalty: 1, Seed: 7, Logprobs: 2, PromptLogprobs: sample.NoLogprobs,
		MaxTokens: outputs, EOS: r.Info().EOS, IgnoreEOS: true})
}

// answer is what came of a request.
type answer struct {
	tokens   []int32
	logprobs []step.Logprobs
}

func read(ctx context.Context, s engine.Stream) (a answer, err error) {
	defer s.Close()
	for {
		d, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		a.tokens = append(a.tokens, d.Tokens...)
		for _, l := range d.Logprobs {
			l.Slot, l.Top = 0, slices.Clone(l.Top) // the stream uses the memory again
			a.logprobs = append(a.logprobs, l)
		}
	}
}

// TestSameBits: a request has the same tokens and log-probabilities on every engine, and both work.
func TestSameBits(t *testing.T) {
	r, m, log := openRouter(t, 2, 2, nil)
	var want answer
	for i, e := range r.list() {
		s, err := e.Submit(t.Context(), ask(r, "What does os.Open do?", 24))
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			want = got
		}
		if len(got.tokens) != 24 || len(got.logprobs) != 24 || !reflect.DeepEqual(got, want) {
			t.Errorf("engine %d gives %v, engine 0 %v", i, got, want)
		}
	}
	// Different requests at the same time go to both in equal parts.
	var streams []engine.Stream
	for i := range 8 {
		s, err := r.Submit(t.Context(), ask(r, fmt.Sprintf("%d times %d?", i, i), 8))
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	for _, s := range streams {
		if _, err := read(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for i := range 2 {
		want := fmt.Sprintf(
			`eagleray:request_success_total{engine="%d",finished_reason="length",model_name="go-std-tiny"} 5`, i)
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	threads := max(1, machine.Cores()/4)
	for _, rank := range r.Info().Ranks {
		if rank.Threads != threads {
			t.Errorf("rank %d computes on %d threads, not %d", rank.Rank, rank.Threads, threads)
		}
	}
	if n := len(r.Report()); n != 4 || r.Report()[3].Engine != 1 || r.Report()[3].Rank != 1 {
		t.Errorf("%d ranks are reported: %+v", n, r.Report())
	}
	warning := fmt.Sprintf(
		`more ranks than cores: they wait for each other" ranks=4 cores=%d layout="TP 2 × DP 2"`,
		machine.Cores())
	if warned := strings.Contains(log.String(), warning); warned != (machine.Cores() < 4) {
		t.Errorf("%d cores, log:\n%s", machine.Cores(), log)
	}
}

// TestOneEngineDies: its requests fail with the cause, those of the other and later ones do not.
func TestOneEngineDies(t *testing.T) {
	r, m, log := openRouter(t, 2, 2, func(c *config.Config) { c.Recovery.OnFailure = "exit" })
	const dead, tokens = 0, 50
	signal := func(s syscall.Signal) {
		for _, x := range r.Report() {
			if x.Engine != dead || x.Rank != 1 {
				continue
			}
			if err := syscall.Kill(x.PID, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	signal(syscall.SIGSTOP) // what it is given is not done before it dies
	streams := make([]engine.Stream, 4)
	for i := range streams {
		var err error
		if streams[i], err = r.Submit(t.Context(), ask(r, fmt.Sprintf("%d?", i),
			tokens)); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGKILL)
	failed, done := 0, 0
	for i, s := range streams {
		at := s.(*stream).engine.number
		a, err := read(t.Context(), s)
		switch {
		case at == dead && errors.Is(err, engine.ErrFailed) &&
			strings.Contains(err.Error(), "rank 1") && strings.Contains(err.Error(), "killed"):
			failed++
		case at != dead && err == nil && len(a.tokens) == tokens:
			done++
		default:
			t.Errorf("request %d on engine %d ends after %d tokens: %v", i, at, len(a.tokens), err)
		}
	}
	if failed == 0 || done == 0 {
		t.Errorf("%d failed, %d are done", failed, done)
	}
	if err := r.Healthy(t.Context()); err != nil {
		t.Errorf("one engine lives: %v", err)
	}
	s, err := r.Submit(t.Context(), ask(r, "Still there?", 5))
	if err != nil {
		t.Fatal(err)
	}
	if a, err := read(t.Context(), s); err != nil || len(a.tokens) != 5 {
		t.Errorf("afterwards %v, %v", a, err)
	}
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for i := range 2 {
		up := 1
		if i == dead {
			up = 0
		}
		want := fmt.Sprintf(`eagleray:engine_up{engine="%d",model_name="go-std-tiny"} %d`, i, up)
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if want := fmt.Sprintf(`msg="workers failed" engine=%d cause=`,
		dead); !strings.Contains(log.String(), want) {
		t.Errorf("the log lacks %q:\n%s", want, log)
	}
}

// TestOneBoundForAll: the bound of waiting requests counts those of all engines.
func TestOneBoundForAll(t *testing.T) {
	r, _, _ := openRouter(t, 2, 1, func(c *config.Config) {
		c.Schedule.MaxNumSeqs, c.Schedule.MaxNumQueuedReqs = 1, 16
	})
	var streams []engine.Stream
	defer func() {
		for _, s := range streams {
			s.Close()
		}
	}()
	for i := 0; ; i++ {
		s, err := r.Submit(t.Context(), ask(r, fmt.Sprintf("%d?", i), 1900))
		if errors.Is(err, engine.ErrOverloaded) {
			break
		}
		if err != nil || i > 64 {
			t.Fatalf("request %d: %v", i, err)
		}
		streams = append(streams, s)
	}
	// 16 wait, and each engine runs one when it has come to it.
	if n := len(streams); n < 16 || n > 18 {
		t.Errorf("%d requests are let in", n)
	}
}

// TestStartFails: the engine that does not start is named, and none is left running.
func TestStartFails(t *testing.T) {
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := held.Addr().(*net.TCPAddr).Port
	held.Close()
	c := config.Default()
	c.Cache.MemoryBytes = 32 << 20
	c.Parallel.DataParallelSize, c.Parallel.Backend = 2, "mp"
	c.Queue.Transport, c.Queue.PortRange = "link", [2]int{port, port} // room for one
	_, _, err = Open(t.Context(), engine.Options{Config: c, WorkerOutput: func(launch.Line) {}})
	if err == nil || !strings.HasPrefix(err.Error(), "engine ") ||
		!strings.Contains(err.Error(), fmt.Sprint(port)) {
		t.Errorf("two engines at port %d: %v", port, err)
	}
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if raw, _ := os.ReadFile(f); len(raw) > 0 { // a thread may have ended since
			t.Errorf("processes %s are left", raw)
		}
	}
}
