// Package layouts has no code: its tests hold that a request's output does not depend on how it is
// computed.
//
// A workload of random requests is drawn from a seed. Each of its requests is first run alone, by
// one rank, one plan at a time and without a prefix cache. Then the workload is run in cells: every
// layout of ranks, with what else may vary drawn beside it. Everything a client gets must be
// the same in all of them, to the bits of each log-probability.
//
// A failure prints the seed, the cell and the first difference, and the command that shows it
// again:
//
//	go test ./test/layouts -run TestSameBits -seed 7 -cell tp=2,batch=mixed,chunk=8
package layouts

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/executor/launch/process"
	"github.com/eagleray/eagleray/internal/router"
	"github.com/eagleray/eagleray/internal/sample"
)

var (
	seedFlag = flag.Uint64("seed", 0, "the only workload to run; 0 is several, from seed 1 on")
	cellFlag = flag.String("cell", "", "the only cell to run, as a failure prints it; fields "+
		"that are left out are those of one rank")
	workloadsFlag = flag.Int("workloads", 0, "how many workloads; 0 is 8 with -short, else 60")
	cellsFlag     = flag.Int("cells", 0, "how many cells of each; 0 is 5 with -short, else 12")
	budgetFlag    = flag.Duration("budget", 5*time.Minute, "no workload begins after this time")
)

// TestMain lets the test binary be its own worker process, as the program is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == process.Verb {
		if err := process.Main(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// count is what was compared.
type count struct {
	cells, outcomes, tokens, logprobs int
	preempted, cached, aborted        int
}

// TestSameBits runs workloads in cells and wants the same of all.
func TestSameBits(t *testing.T) {
	workloads, cells := 60, 12
	if testing.Short() {
		workloads, cells = 8, 5
	}
	workloads, cells = cmp.Or(*workloadsFlag, workloads), cmp.Or(*cellsFlag, cells)
	first := uint64(1)
	if *seedFlag > 0 {
		first, workloads = *seedFlag, 1
	}
	var n count
	begun := time.Now()
	for seed := first; seed < first+uint64(workloads); seed++ {
		if time.Since(begun) > *budgetFlag {
			workloads = int(seed - first)
			break
		}
		w := draw(seed)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			want := reference(t, w)
			for _, c := range chosen(t, w, cells) {
				compare(t, w, c, want, &n)
			}
		})
	}
	t.Logf("%d workloads (seeds %d to %d) × %d cells: %d runs, %d outputs, %d tokens and %d "+
		"log-probabilities compared; %d preemptions, %d tokens from the prefix cache, %d outputs "+
		"given up; %v", workloads, first, first+uint64(workloads)-1, cells, n.cells, n.outcomes, n.tokens,
		n.logprobs, n.preempted, n.cached, n.aborted, time.Since(begun).Round(time.Second))
	if *seedFlag == 0 && !t.Failed() && (n.preempted == 0 || n.cached == 0 || n.aborted == 0) {
		t.Error("nothing was preempted, found in the prefix cache, or given up")
	}
}

// chosen are the cells to run a workload in: the one of the flag, else so many. The layouts take
// turns from one seed to the next, so that a few workloads have been run in all. For every fourth
// seed the ranks of the last cell are processes of their own.
func chosen(t *testing.T, w *workload, cells int) []cell {
	t.Helper()
	if *cellFlag != "" {
		c, err := parseCell(*cellFlag)
		if err != nil {
			t.Fatal(err)
		}
		return []cell{c}
	}
	rng := rand.New(rand.NewPCG(w.seed, 2))
	all := make([]cell, cells)
	sizes := layouts(t, &w.model)
	for i := range all {
		at := w.seed*uint64(cells+1) + uint64(i)
		all[i] = sizes[7*at%uint64(len(sizes))].vary(rng) // 7 divides no number of layouts
	}
	if w.seed%4 == 0 {
		all[cells-1].Backend = pick(rng, "mp", "link")
	}
	return all
}

// reference runs each request of a workload alone.
func reference(t *testing.T, w *workload) [][]outcome {
	t.Helper()
	all, _, err := run(t.Context(), w, plain, func(s *submission) { s.abort = 0 })
	if err != nil {
		t.Fatalf("reference of %v: %v", &w.model, err)
	}
	return all
}

// compare runs a workload in a cell.
func compare(t *testing.T, w *workload, c cell, want [][]outcome, n *count) {
	t.Helper()
	failed := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s\nmodel %v\nshow it again with\n\tgo test ./test/layouts -run TestSameBits "+
			"-seed %d -cell %v", fmt.Sprintf(format, args...), &w.model, w.seed, c)
	}
	begun := time.Now()
	got, totals, err := run(t.Context(), w, c, nil)
	t.Logf("%v in %.1f s", c, time.Since(begun).Seconds())
	if err != nil {
		failed("%v", err)
		return
	}
	if d := firstDifference(got, want); d != "" {
		failed("%s", d)
		return
	}
	n.cells++
	n.preempted += int(totals.Preemptions)
	n.cached += int(totals.PrefixHits)
	for i := range got {
		for j := range got[i] {
			g := &got[i][j]
			n.outcomes++
			n.tokens += len(g.tokens)
			n.logprobs += len(g.logprobs) + len(g.prompt)
			if g.finish == sample.Unfinished {
				n.aborted++
			}
		}
	}
}

// patience is for a run that takes a second on an idle machine.
const patience = 2 * time.Minute

// run opens an engine for a cell and runs a workload on it, twice for a warm prefix cache. The
// outcomes, of the last run, are in the order of the submissions and of the choices of each.
func run(ctx context.Context, w *workload, c cell, change func(*submission)) (
	[][]outcome, engine.Totals, error,
) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	e, _, err := router.Open(ctx, engine.Options{Config: c.config(&w.model)})
	if err != nil {
		return nil, engine.Totals{}, fmt.Errorf("open: %w", err)
	}
	if n, want := len(e.Report()), c.layout().World()*c.DP; n != want {
		err = fmt.Errorf("%d ranks compute, not %d", n, want)
	}
	r := &running{ctx: ctx, engine: e, mixed: c.Batch == "mixed"}
	var all [][]outcome
	runs := 1
	if c.Cache == "warm" {
		runs = 2
	}
	for range runs {
		if err == nil {
			all, err = r.workload(w, change)
		}
	}
	if err != nil {
		err = fmt.Errorf("%w\nranks: %+v", err, e.Report())
	}
	totals := e.Totals()
	return all, totals, errors.Join(err, e.Stop(context.WithoutCancel(ctx)))
}

// running is an engine at work.
type running struct {
	ctx    context.Context
	engine *router.Router
	mixed  bool
}

// workload runs all submissions.
func (r *running) workload(w *workload, change func(*submission)) ([][]outcome, error) {
	all := make([][]outcome, len(w.submissions))
	errs := make([]error, len(w.submissions))
	progress := newProgress(len(w.submissions))
	var wg sync.WaitGroup
	for i := range w.submissions {
		s := w.submissions[i]
		if change != nil {
			change(&s)
		}
		all[i] = make([]outcome, len(s.requests))
		one := func() {
			defer progress.over(i)
			if r.mixed && s.after >= 0 {
				progress.await(s.after, s.tokens)
			}
			if err := r.submit(&s, all[i], func(n int) { progress.add(i, n) }); err != nil {
				errs[i] = fmt.Errorf("request %d: %w", i, err)
			}
		}
		if r.mixed {
			wg.Go(one)
		} else {
			one()
		}
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

// submit runs one submission, and says how many tokens have come with each delta.
func (r *running) submit(s *submission, to []outcome, came func(tokens int)) error {
	stream, err := r.engine.Submit(r.ctx, s.requests...)
	if err != nil {
		return err
	}
	defer stream.Close()
	for total := 0; ; {
		d, err := stream.Next(r.ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		to[d.Choice].add(&d)
		came(len(d.Tokens))
		if total += len(d.Tokens); s.abort > 0 && total >= s.abort {
			return nil
		}
	}
}

// progress is how many tokens each submission has got.
type progress struct {
	mu     sync.Mutex
	moved  sync.Cond
	tokens []int
	ended  []bool
}

func newProgress(submissions int) *progress {
	p := &progress{tokens: make([]int, submissions), ended: make([]bool, submissions)}
	p.moved.L = &p.mu
	return p
}

func (p *progress) add(i, tokens int) {
	p.mu.Lock()
	p.tokens[i] += tokens
	p.mu.Unlock()
	p.moved.Broadcast()
}

func (p *progress) over(i int) {
	p.mu.Lock()
	p.ended[i] = true
	p.mu.Unlock()
	p.moved.Broadcast()
}

// await waits until a submission has got so many tokens, or is over.
func (p *progress) await(i, tokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.tokens[i] < tokens && !p.ended[i] {
		p.moved.Wait()
	}
}
