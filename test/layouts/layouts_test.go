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
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/ops/config"
)

var (
	seedFlag = flag.Uint64("seed", 0, "the only workload to run; 0 is several, from seed 1 on")
	cellFlag = flag.String("cell", "", "the only cell to run, as a failure prints it; fields "+
		"that are left out are those of one rank")
	workloadsFlag = flag.Int("workloads", 0, "how many workloads; 0 is 4 with -short, else 60")
	cellsFlag     = flag.Int("cells", 0, "how many cells of each; 0 is 4 with -short, else every "+
		"layout, and three with processes")
	budgetFlag = flag.Duration("budget", 5*time.Minute, "no workload begins after this time")
)

// TestMain lets the test binary be its own worker process, as the program is.
func TestMain(m *testing.M) {
	invited.Run(nil)
	var err error
	if extended.dir, err = os.MkdirTemp("", "eagleray-layouts"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(extended.dir)
	os.Exit(code)
}

// count is what was compared.
type count struct {
	cells, outcomes, tokens, logprobs int
	preempted, cached, aborted, moved int
	files, drafted, accepted          int
	// layouts are the sizes that were run, backends what has started the ranks, each how often.
	layouts, backends map[string]int
}

// String is a summary in several lines.
func (n *count) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d runs, %d outputs, %d tokens and %d log-probabilities compared; %d "+
		"preemptions, %d tokens from the prefix cache, %d from files, %d outputs given up, %d of "+
		"%d guesses right, experts moved in %d layers", n.cells, n.outcomes, n.tokens, n.logprobs,
		n.preempted, n.cached, n.files, n.aborted, n.accepted, n.drafted, n.moved)
	for _, m := range []struct {
		what string
		of   map[string]int
	}{{"backends", n.backends}, {"layouts", n.layouts}} {
		fmt.Fprintf(&b, "\n%d %s:", len(m.of), m.what)
		for _, name := range slices.Sorted(maps.Keys(m.of)) {
			fmt.Fprintf(&b, " %s %d;", name, m.of[name])
		}
	}
	return b.String()
}

// TestSameBits runs workloads in cells and wants the same of all.
func TestSameBits(t *testing.T) {
	workloads, cells := 60, 0
	if testing.Short() {
		workloads, cells = 3, 3
	}
	workloads, cells = cmp.Or(*workloadsFlag, workloads), cmp.Or(*cellsFlag, cells)
	first := uint64(1)
	if *seedFlag > 0 {
		first, workloads = *seedFlag, 1
	}
	n := count{layouts: map[string]int{}, backends: map[string]int{}}
	begun := time.Now()
	for seed := first; seed < first+uint64(workloads); seed++ {
		if time.Since(begun) > *budgetFlag {
			workloads = int(seed - first)
			break
		}
		w := draw(seed)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			if seed%2 == 1 {
				w.adapt(t)
			}
			want := reference(t, w)
			for i, c := range chosen(t, w, cells) {
				if c.Cache == "warm" && *cellFlag == "" && (seed+uint64(i))%2 == 0 {
					c.Cache = "files"
				}
				compare(t, w, c, want, &n)
			}
		})
	}
	t.Logf("%d workloads (seeds %d to %d) in %v: %v", workloads, first, first+uint64(workloads)-1,
		time.Since(begun).Round(time.Second), &n)
	// Whether the requests of four workloads meet in a step, and preempt each other, is up to the
	// machine; of sixty, some do.
	preempted := n.preempted > 0 || testing.Short()
	if *seedFlag == 0 && !t.Failed() && (!preempted || n.cached == 0 || n.aborted == 0 ||
		n.files == 0 && !testing.Short() || n.accepted == 0 || n.accepted == n.drafted) {
		t.Error("nothing was preempted, found in the prefix cache or in files, given up, " +
			"guessed, or guessed wrong")
	}
}

// TestWholeExperts runs every model with experts on ranks that hold whole ones, and in places that
// share them: with -short in one layout of each, else in all.
func TestWholeExperts(t *testing.T) {
	n := count{layouts: map[string]int{}, backends: map[string]int{}}
	for i, m := range models {
		m.dtype, m.cacheDType = "bfloat16", "auto"
		list := slices.DeleteFunc(layouts(t, &m), func(c cell) bool {
			return !c.EP || c.ranks() < 2 || testing.Short() && (c.DP == 1 || c.ranks() != 4)
		})
		seed := uint64(1 + i) // of this test
		if len(list) == 0 || *seedFlag > 0 && *seedFlag != seed {
			continue
		}
		t.Run(fmt.Sprint(&m), func(t *testing.T) {
			w := drawOn(seed, m)
			if seed%2 == 1 {
				w.adapt(t)
			}
			if *cellFlag != "" {
				compare(t, w, chosen(t, w, 0)[0], reference(t, w), &n)
				return
			}
			rng := rand.New(rand.NewPCG(w.seed, 4))
			if testing.Short() {
				list = []cell{pick(rng, list...)}
			}
			want := reference(t, w)
			for _, c := range list {
				compare(t, w, c.vary(rng), want, &n)
			}
		})
	}
	t.Log(&n)
}

// chosen are the cells to run a workload in: the one of the flag, else so many, of which the ranks
// of the last are processes of their own for every second seed. The layouts take turns from one
// seed to the next, so that a few workloads have been run in all. For 0 cells they are all layouts,
// and one for each backend with processes.
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
	var all []cell
	sizes := layouts(t, &w.model)
	if cells == 0 {
		for _, c := range sizes {
			all = append(all, c.vary(rng))
		}
		for _, backend := range processes {
			c := pick(rng, sizes...)
			for !c.runsOn(backend) {
				c = pick(rng, sizes...)
			}
			c = c.vary(rng)
			c.Backend = backend
			all = append(all, c)
		}
		return all
	}
	for i := range cells {
		at := w.seed*uint64(cells+1) + uint64(i)
		// 11 divides no number of layouts
		all = append(all, sizes[11*at%uint64(len(sizes))].vary(rng))
	}
	if last := &all[cells-1]; w.seed%2 == 0 {
		if b := processes[w.seed/2%uint64(len(processes))]; last.runsOn(b) {
			last.Backend = b
		}
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
	name, _, _ := strings.Cut(t.Name(), "/")
	failed := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s\nmodel %v\nshow it again with\n\tgo test ./test/layouts -run '^%s$' "+
			"-seed %d -cell %v", fmt.Sprintf(format, args...), &w.model, name, w.seed, c)
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
	n.layouts[fmt.Sprintf("TP %d PP %d PCP %d DP %d EP %v", c.TP, c.PP, c.PCP, c.DP, c.EP)]++
	n.backends[c.Backend]++
	n.preempted += int(totals.Preemptions)
	n.cached += int(totals.PrefixHits)
	n.moved += totals.movedLayers
	n.files += int(totals.ExternalHits)
	n.drafted, n.accepted = n.drafted+int(totals.DraftTokens), n.accepted+int(totals.AcceptedTokens)
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

// runTotals are counts of a run.
type runTotals struct {
	engine.Totals
	movedLayers int // whose experts were moved
}

// patience is for a run that takes a second on an idle machine.
const patience = 2 * time.Minute

// run opens an engine for a cell and runs a workload on it, twice for a warm prefix cache, on one
// engine after the other for files. The outcomes, of the last run, are in the order of the
// submissions and of the choices of each.
func run(ctx context.Context, w *workload, c cell, change func(*submission)) (
	[][]outcome, runTotals, error,
) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if c.Cache != "files" || w.model.states {
		return runOnce(ctx, w, c, change, "")
	}
	dir, err := os.MkdirTemp("", "eagleray-layouts")
	if err != nil {
		return nil, runTotals{}, err
	}
	defer os.RemoveAll(dir)
	if _, _, err := runOnce(ctx, w, c, change, dir); err != nil {
		return nil, runTotals{}, fmt.Errorf("without files: %w", err)
	}
	return runOnce(ctx, w, c, change, dir)
}

// runOnce is run on one engine, which stores blocks in a folder, unless that is "".
func runOnce(ctx context.Context, w *workload, c cell, change func(*submission), dir string) (
	[][]outcome, runTotals, error,
) {
	e, end, err := open(ctx, w, c, func(cfg *config.Config) error {
		if dir != "" {
			cfg.Cache.Offloading.GiB, cfg.Cache.Offloading.Dir = 1, dir
		}
		return nil
	})
	if err != nil {
		return nil, runTotals{}, fmt.Errorf("open: %w", err)
	}
	if n, want := len(e.Report()), c.ranks(); n != want {
		err = fmt.Errorf("%d ranks compute, not %d", n, want)
	}
	r := &running{ctx: ctx, engine: e, mixed: c.Batch == "mixed"}
	loaded, failed := w.loadAdapters(ctx, e)
	if failed == nil {
		defer loaded.Close()
	}
	err = cmp.Or(err, failed)
	var all [][]outcome
	runs := 1
	if c.Cache == "warm" || c.Cache == "files" && dir == "" {
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
	totals := runTotals{Totals: e.Totals()}
	if c.Moving && err == nil {
		var loads []engine.ExpertLoad
		loads, err = e.ExpertLoad(ctx)
		for i := range loads {
			if loads[i].At != nil {
				totals.movedLayers++
			}
		}
	}
	return all, totals, errors.Join(err, e.Stop(context.WithoutCancel(ctx)), end())
}

// secret is that of --cluster-token-file in these tests.
const secret = "a secret of these tests"

// open opens the engine of a cell whose configuration is changed once more; what is returned waits
// for its other node, if it has one.
func open(ctx context.Context, w *workload, c cell,
	change func(*config.Config) error) (*replicas.Router, func() error, error) {
	cfg := c.config(&w.model)
	if cfg.LoRA.Enable = w.adapters != ""; cfg.LoRA.Enable {
		cfg.LoRA.MaxLoras, cfg.LoRA.MaxCPULoras, cfg.LoRA.MaxRank = adapted-1, adapted, 16
	}
	if err := change(&cfg); err != nil {
		return nil, nil, err
	}
	if c.Backend == "ray" {
		cfg.Parallel.Ray = w.ray
	}
	if c.Backend != "nodes" {
		e, _, err := replicas.Open(ctx, engine.Options{Config: cfg})
		return e, func() error { return nil }, err
	}
	dir, err := os.MkdirTemp("", "eagleray-layouts")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	n := &cfg.Parallel.Nodes
	n.TokenFile = filepath.Join(dir, "token")
	if err := os.WriteFile(n.TokenFile, []byte(secret), 0o600); err != nil {
		return nil, nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	n.MasterPort = free.Addr().(*net.TCPAddr).Port
	free.Close()
	other := cfg
	other.Parallel.Nodes.Rank, other.Parallel.Nodes.Headless = 1, true
	ended := make(chan error, 1)
	life, stop := context.WithCancel(ctx)
	go func() { ended <- groups.RunNode(life, groups.NodeOptions{Config: other}) }()
	e, _, err := replicas.Open(ctx, engine.Options{Config: cfg})
	end := func() error {
		defer stop()
		return <-ended
	}
	if err != nil {
		stop()
		return nil, nil, errors.Join(err, end())
	}
	return e, end, nil
}

// running is an engine at work.
type running struct {
	ctx    context.Context
	engine *replicas.Router
	mixed  bool
	// before, unless it is nil, may change the i-th submission before it is submitted.
	before func(i int, s *submission) error
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
			if r.before != nil {
				if errs[i] = r.before(i, &s); errs[i] != nil {
					return
				}
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
