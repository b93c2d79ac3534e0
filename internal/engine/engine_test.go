package engine_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/rank/gpu"
	"github.com/eagleray/eagleray/internal/sys/fixtures"
)

// TestMain lets the test binary be its own worker process, as the program is, and a rank on the
// machine that stands for GPUs.
func TestMain(m *testing.M) {
	invited.Run(measured{gpu.Devices(gpu.Libraries{})})
	os.Exit(m.Run())
}

func openEngine(t testing.TB, change func(c *config.Config)) *engine.Engine {
	t.Helper()
	e, _ := openMeasured(t, change)
	return e
}

func openMeasured(t testing.TB, change func(c *config.Config)) (*engine.Engine, *metrics.Metrics) {
	t.Helper()
	return openWith(t, change, nil)
}

func openWith(
	t testing.TB, change func(c *config.Config), events status.Listener,
) (*engine.Engine, *metrics.Metrics) {
	t.Helper()
	c := config.Default()
	c.Cache.MemoryBytes = 64 << 20
	if change != nil {
		change(&c)
	}
	e, m, err := engine.Open(t.Context(), engine.Options{Config: c, Events: events})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e, m
}

// greedy is a request for the answer to a question of the built-in model.
func greedy(e *engine.Engine, question string, maxTokens int32) *engine.Request {
	text := "<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n"
	return engine.NewRequest(e.Info().Tokenizer.Encode(text, false), params(e, maxTokens))
}

func params(e *engine.Engine, maxTokens int32) sample.Params {
	return sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
		PromptLogprobs: sample.NoLogprobs,
		MaxTokens:      maxTokens, EOS: e.Info().EOS, StopTokens: e.Info().StopTokens}
}

type answer struct {
	text   string
	tokens []int32
	last   engine.Delta
}

func ask(ctx context.Context, e *engine.Engine, r *engine.Request) (answer, error) {
	s, err := e.Submit(ctx, r)
	if err != nil {
		return answer{}, err
	}
	defer s.Close()
	var a answer
	for {
		d, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		a.text += string(d.Text)
		a.tokens = append(a.tokens, d.Tokens...)
		a.last = d
	}
}

func mustAsk(t testing.TB, e *engine.Engine, r *engine.Request) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, err := ask(ctx, e, r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

const question = "What does strings.Index do?"
const indexAnswer = "Index returns the index of the first instance of substr in s, or -1 if " +
	"substr is not present in s."

// TestAnyTensorParallelSize asks one question of one, two and four ranks, in this process and in
// others.
func TestAnyTensorParallelSize(t *testing.T) {
	for _, c := range []struct {
		backend string
		size    int
	}{{"uni", 1}, {"uni", 2}, {"uni", 4}, {"mp", 1}, {"mp", 2}, {"mp", 4}} {
		t.Run(fmt.Sprintf("%s/%d", c.backend, c.size), func(t *testing.T) {
			e := openEngine(t, func(cfg *config.Config) {
				cfg.Parallel.Backend, cfg.Parallel.TensorParallelSize = c.backend, c.size
			})
			a := mustAsk(t, e, greedy(e, question, 100))
			if a.text != indexAnswer || a.last.Finish != sample.FinishStop {
				t.Errorf("answer %q, finish %q", a.text, a.last.Finish)
			}
		})
	}
}

// TestPrefillOverRanks asks a long question of ranks that divide its rows, in processes of their
// own and in this one: the answer, its log-probabilities and those of the prompt are those of one
// rank.
func TestPrefillOverRanks(t *testing.T) {
	long := strings.Repeat("func Index(s, substr string) int returns a number. ", 40) + question
	var want []string
	for _, p := range []config.Parallel{{Backend: "uni"}, {Backend: "mp",
		PrefillContextParallelSize: 2},
		{Backend: "uni", TensorParallelSize: 2, PrefillContextParallelSize: 2}} {
		e := openEngine(t, func(c *config.Config) {
			c.Schedule.MaxNumBatchedTokens = 300
			c.Parallel.Backend = p.Backend
			c.Parallel.TensorParallelSize = max(1, p.TensorParallelSize)
			c.Parallel.PrefillContextParallelSize = max(1, p.PrefillContextParallelSize)
		})
		r := greedy(e, long, 12)
		r.Params.Logprobs, r.Params.PromptLogprobs = 2, 1
		s, err := e.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var got []string
		for d := range deltas(t, s) {
			for _, l := range slices.Concat(d.PromptLogprobs, d.Logprobs) {
				got = append(got, fmt.Sprintf("%+v", l))
			}
		}
		if want == nil {
			want = got
		}
		if len(got) < len(r.Prompt) || !slices.Equal(got, want) {
			t.Errorf("%s with %v: %d positions of %d differ from those of one rank", p.Backend,
				p.Layout(), len(got), len(r.Prompt)+12)
		}
	}
}

// TestOverLink serves with a worker that is reached over TCP and TLS.
func TestOverLink(t *testing.T) {
	e := openEngine(t, func(cfg *config.Config) {
		cfg.Parallel.Backend, cfg.Queue.Transport = "mp",
			"link"
	})
	for range 20 {
		if a := mustAsk(t, e, greedy(e, question, 100)); a.text != indexAnswer {
			t.Fatalf("answer %q", a.text)
		}
	}
	if r := e.Report()[0]; r.Process != "" || r.Finished == 0 && r.AgeSeconds > 3 {
		t.Errorf("report %+v", r)
	}
}

// TestRecall asks the built-in model the questions of recall.jsonl, many at once; a sixth of them
// with weights of four bits.
func TestRecall(t *testing.T) {
	all, least := 1000, 300
	if testing.Short() {
		all, least = 100, 100
	}
	for quantization, most := range map[string]int{"": all, "int4_g128": 50} {
		e := openEngine(t, func(c *config.Config) { c.Model.Quantization = quantization })
		if asked, right := recall(t, e, most); asked < min(most, least) || right < asked-1 {
			t.Errorf("%q: %d of %d answers are right", quantization, right, asked)
		}
	}
}

// TestGGUFRecall asks it as llama.cpp quantised it, divided among two ranks.
func TestGGUFRecall(t *testing.T) {
	const name = "go-std-tiny-Q4_K_M"
	file := filepath.Join(fixtures.Dir(t), "gguf", name, name+".gguf")
	e := openEngine(t, func(c *config.Config) {
		c.Model.Path, c.Parallel.TensorParallelSize = file, 2
	})
	if names := e.Info().Names; len(names) != 1 || names[0] != name+".gguf" {
		t.Errorf("it is called %q", names)
	}
	if asked, right := recall(t, e, 50); asked != 50 || right != asked {
		t.Errorf("%d of %d answers are right", right, asked)
	}
}

// recalled are the first questions of recall.jsonl, with their answers.
func recalled(t *testing.T, most int) iter.Seq[struct{ Question, Answer string }] {
	return func(yield func(struct{ Question, Answer string }) bool) {
		f, err := os.Open(filepath.Join(fixtures.Dir(t), "models", "go-std-tiny", "recall.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for n := 0; n < most && lines.Scan(); n++ {
			var q struct{ Question, Answer string }
			if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
				t.Fatal(err)
			}
			if !yield(q) {
				return
			}
		}
	}
}

// recall asks the first questions of recall.jsonl, all at once.
func recall(t *testing.T, e *engine.Engine, most int) (asked, right int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for q := range recalled(t, most) {
		asked++
		wg.Go(func() {
			a, err := ask(t.Context(), e, greedy(e, q.Question, 200))
			mu.Lock()
			defer mu.Unlock()
			if err == nil && a.text == q.Answer {
				right++
			} else {
				t.Logf("%s: %q, not %q (%v)", q.Question, a.text, q.Answer, err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d of %d answers word for word", right, asked)
	return asked, right
}

// TestNeighboursDoNotMatter runs sampled requests alone, and then all at once with a cache so small
// that requests are preempted, and wants the same tokens.
func TestNeighboursDoNotMatter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	questions := []string{question, "What does time.Time.UTC do?",
		"What is the signature of strings.Index?", "What does os.Open do?"}
	build := func(e *engine.Engine, i int) *engine.Request {
		r := greedy(e, questions[i%len(questions)], 40+int32(i))
		r.Params.Temperature, r.Params.Seed, r.Params.IgnoreEOS = 0.9, uint64(i), true
		r.Params.StopTokens = nil
		return r
	}
	alone := openEngine(t, nil)
	var want []answer
	for i := range 12 {
		want = append(want, mustAsk(t, alone, build(alone, i)))
	}
	crowded := openEngine(t, func(c *config.Config) {
		c.Model.MaxModelLen = 128
		c.Cache.MemoryBytes, c.Cache.Blocks = 0, 20
		c.Schedule.MaxNumBatchedTokens, c.Schedule.MaxNumSeqs = 24, 12
	})
	var wg sync.WaitGroup
	for i, w := range want {
		pause := time.Duration(rng.IntN(3)) * time.Millisecond
		wg.Go(func() {
			time.Sleep(pause)
			a, err := ask(t.Context(), crowded, build(crowded, i))
			if err != nil {
				t.Error(err)
				return
			}
			if fmt.Sprint(a.tokens) != fmt.Sprint(w.tokens) || a.text != w.text {
				t.Errorf("request %d: tokens\n%v alone,\n%v among others", i, w.tokens, a.tokens)
			}
		})
	}
	wg.Wait()
}

// TestLogprobs compares two readers of the same output, one that reads each token and one that
// reads all at the end, with log-probabilities of the prompt computed at once and in pieces.
func TestLogprobs(t *testing.T) {
	whole := openEngine(t, nil)
	pieces := openEngine(t, func(c *config.Config) {
		c.Schedule.MaxNumBatchedTokens,
			c.Schedule.MaxNumSeqs = 7, 4
	})
	collect := func(e *engine.Engine, late bool) (out []step.Logprobs, prompt []step.Logprobs) {
		r := greedy(e, question, 20)
		r.Params.Logprobs, r.Params.PromptLogprobs = 3, 2
		s, err := e.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for late && e.Totals().OutputTokens < 20 {
			time.Sleep(time.Millisecond)
		}
		for d := range deltas(t, s) {
			out, prompt = append(out, d.Logprobs...), append(prompt, d.PromptLogprobs...)
		}
		return out, prompt
	}
	late, latePrompt := collect(whole, true)
	live, livePrompt := collect(pieces, false)
	n := len(greedy(whole, question, 1).Prompt)
	if len(late) != 20 || len(latePrompt) != n {
		t.Fatalf("%d output and %d prompt positions, not 20 and %d", len(late), len(latePrompt), n)
	}
	for i, l := range late {
		if len(l.Top) != 3 || l.Sampled != l.Top[0] || l.Sampled.Rank != 1 {
			t.Errorf("position %d: sampled %v, top %v", i, l.Sampled, l.Top)
		}
		l.Slot, live[i].Slot = 0, 0
		if !reflect.DeepEqual(l, live[i]) {
			t.Errorf("position %d: %v read late, %v read live", i, l, live[i])
		}
	}
	for i := range latePrompt {
		a, b := latePrompt[i], livePrompt[i]
		a.Slot, b.Slot = 0, 0
		if !reflect.DeepEqual(a, b) || (i > 0 && len(a.Top) != 2) {
			t.Errorf("prompt position %d: %v at once, %v in pieces", i, a, b)
		}
	}
}

// TestStopStrings ends outputs at strings that straddle tokens.
func TestStopStrings(t *testing.T) {
	e := openEngine(t, nil)
	for _, c := range []struct {
		stop    []string
		include bool
		want    string
		by      string
	}{
		{[]string{"first inst"}, false, "Index returns the index of the ", "first inst"},
		{[]string{"first inst"}, true, "Index returns the index of the first inst", "first inst"},
		{[]string{"nowhere", "x of"}, false, "Index returns the inde", "x of"},
		{[]string{"nowhere to be found"}, false, indexAnswer, ""},
		{[]string{"in s.!"}, false, indexAnswer, ""},
	} {
		r := greedy(e, question, 100)
		r.Stop, r.IncludeStop = c.stop, c.include
		a := mustAsk(t, e, r)
		if a.text != c.want || a.last.StopString != c.by || a.last.Finish != sample.FinishStop {
			t.Errorf("stop %q: text %q, stopped by %q", c.stop, a.text, a.last.StopString)
		}
	}
	// None ends in the first min_tokens, which are seven here; one that ends later may begin there.
	for _, c := range []struct {
		stop, want string
		max        int32
		finish     sample.Finish
	}{
		{"first inst", "Index returns the index of the ", 100, sample.FinishStop},
		{"first", indexAnswer, 100, sample.FinishStop},
		{"first", "Index returns the index of the first", 7, sample.FinishLength},
	} {
		r := greedy(e, question, c.max)
		r.Stop, r.Params.MinTokens = []string{c.stop}, 7
		if a := mustAsk(t, e, r); a.text != c.want || a.last.Finish != c.finish {
			t.Errorf("stop %q: text %q, %v", c.stop, a.text, a.last.Finish)
		}
	}
}

// TestSlowReader leaves a stream unread: others go on, and it gets everything in the end.
func TestSlowReader(t *testing.T) {
	e := openEngine(t, nil)
	r := greedy(e, question, 100)
	s, err := e.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		if a := mustAsk(t, e, greedy(e, question, 100)); a.text != indexAnswer {
			t.Fatalf("answer %q beside a slow reader", a.text)
		}
	}
	var text strings.Builder
	for d := range deltas(t, s) {
		text.Write(d.Text)
	}
	if text.String() != indexAnswer {
		t.Errorf("slow reader got %q", text.String())
	}
}

// TestAbort gives streams up at random moments; the engine goes on and forgets them.
func TestAbort(t *testing.T) {
	e := openEngine(t, func(c *config.Config) { c.Schedule.MaxNumSeqs = 8 })
	for i := range 200 {
		r := greedy(e, question, 100)
		s, err := e.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if i%3 > 0 {
			if _, err := s.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.Close()
	}
	if a := mustAsk(t, e, greedy(e, question, 100)); a.text != indexAnswer {
		t.Errorf("answer %q after many aborts", a.text)
	}
}

// TestWorkerDeath kills a rank: requests in flight and later ones fail at once, with the cause.
func TestWorkerDeath(t *testing.T) {
	for _, busy := range []bool{true, false} {
		t.Run(fmt.Sprintf("busy=%v", busy), func(t *testing.T) {
			e := openEngine(t, func(c *config.Config) {
				c.Parallel.TensorParallelSize, c.Recovery.OnFailure = 2, "exit"
			})
			pid := e.Info().Ranks[1].PID
			r := greedy(e, question, 2000)
			r.Params.IgnoreEOS, r.Params.StopTokens = true, nil
			var s engine.Stream
			if busy {
				var err error
				if s, err = e.Submit(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if _, err := s.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			p, err := os.FindProcess(pid)
			if err != nil {
				t.Fatal(err)
			}
			killed := time.Now()
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			for err == nil && busy {
				_, err = s.Next(t.Context())
			}
			for !busy && e.Healthy(t.Context()) == nil {
				time.Sleep(time.Millisecond)
				if time.Since(killed) > 10*time.Second {
					t.Fatal("engine is healthy 10 s after a rank was killed")
				}
			}
			if !busy {
				_, err = e.Submit(t.Context(), r)
			}
			t.Logf("known after %v: %v", time.Since(killed), err)
			if !errors.Is(err, engine.ErrFailed) || !strings.Contains(err.Error(), "rank 1") ||
				!strings.Contains(err.Error(), "killed") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// TestBadRequests are refused on admission.
func TestBadRequests(t *testing.T) {
	e := openEngine(t, nil)
	for name, change := range map[string]func(r *engine.Request){
		"empty":      func(r *engine.Request) { r.Prompt = nil },
		"vocabulary": func(r *engine.Request) { r.Prompt = []int32{1, 2048} },
		"too long":   func(r *engine.Request) { r.Prompt = make([]int32, 2048) },
		"parameter":  func(r *engine.Request) { r.Params.TopP = 2 },
	} {
		r := greedy(e, question, 10)
		change(r)
		if s, err := e.Submit(t.Context(), r); err == nil {
			s.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestOverload refuses what goes beyond the queue.
func TestOverload(t *testing.T) {
	e := openEngine(t, func(c *config.Config) {
		c.Schedule.MaxNumQueuedReqs,
			c.Schedule.MaxNumSeqs = 4, 1
	})
	refused := 0
	for range 40 {
		s, err := e.Submit(t.Context(), greedy(e, question, 100))
		if errors.Is(err, engine.ErrOverloaded) {
			refused++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	if refused == 0 {
		t.Error("40 requests at once, at most 4 waiting: none refused")
	}
}
