package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/inproc"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// fragile is a launcher whose rank fails, with a report, in each step that computes a request whose
// prompt begins with the poison, once that has so many tokens.
type fragile struct {
	*inproc.Launcher
	poison int32
	length int
	// late, unless it is nil, is how many failures there are to be, over all groups: not an error
	// of the rank's own, but that it was waited for in vain.
	late *atomic.Int32
}

func (f *fragile) Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	workers, err := f.Launcher.Launch(ctx, specs)
	if err == nil {
		workers[0].Hub = &fragileHub{Hub: workers[0].Hub, f: f, slots: map[uint32]bool{}}
	}
	return workers, err
}

// fragileHub takes a plan for the rank's, and answers it with the report of an error.
type fragileHub struct {
	queue.Hub
	f *fragile

	mu    sync.Mutex
	plan  step.Plan
	slots map[uint32]bool // of poisoned requests
	fails uint64          // the plan that fails
}

func (h *fragileHub) Send(record []byte, until time.Time) error {
	kind, body, err := queue.Split(record)
	if err == nil && kind == queue.KindPlan {
		h.mu.Lock()
		if err := step.DecodePlan(body, &h.plan); err != nil {
			return err
		}
		for _, slot := range h.plan.Free {
			delete(h.slots, slot)
		}
		for _, n := range h.plan.New {
			if n.Tokens[0] == h.f.poison {
				h.slots[n.Slot] = true
			}
		}
		for _, r := range h.plan.Rows {
			if h.slots[r.Slot] && int(r.Start+r.Count) >= h.f.length && h.fails == 0 &&
				(h.f.late == nil || h.f.late.Add(-1) >= 0) {
				h.fails = h.plan.ID
			}
		}
		h.mu.Unlock()
	}
	return h.Hub.Send(record, until)
}

func (h *fragileHub) Recv(until time.Time) (int, []byte, error) {
	rank, record, err := h.Hub.Recv(until)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || h.fails == 0 {
		return rank, record, err
	}
	if kind, body, _ := queue.Split(record); kind == queue.KindResult {
		if id, _ := step.ResultPlan(body); id < h.fails {
			return rank, record, err
		}
	}
	failure := queue.Failure{Step: h.fails, Phase: "forward", Type: "panic",
		Message: "index out of range"}
	if h.f.late != nil {
		failure.Type, failure.Message, failure.Missing = "error", "rank 0 did not come within 2s",
			[]int{0}
	}
	record, err = queue.AppendJSON(nil, queue.KindFailure, failure)
	return 0, record, err
}

// TestPoison submits a request that makes every group fail, at once or after some tokens, among
// others: it alone fails, with the cause, and the others have the tokens that they have without it.
func TestPoison(t *testing.T) {
	for _, length := range []int{0, 20} {
		for _, async := range []bool{true, false} {
			if testing.Short() && async == (length == 0) {
				continue // each once
			}
			t.Run(fmt.Sprintf("from token %d on, async %v", length, async), func(t *testing.T) {
				poisoned(t, length, async, nil)
			})
		}
	}
}

// TestLateIsNoPoison fails six groups whenever they compute a certain request, because a rank that
// does not compute was waited for in vain: that is no fault of the request, and it is answered as
// all others are.
func TestLateIsNoPoison(t *testing.T) {
	t.Parallel()
	late := new(atomic.Int32)
	late.Store(6)
	poisoned(t, 0, true, late)
	if late.Load() >= 0 {
		t.Errorf("%d failures have not come", late.Load())
	}
}

func poisoned(t *testing.T, length int, async bool, late *atomic.Int32) {
	const poison, others = 77, 9
	c := config.Default()
	c.Parallel.Backend, c.Cache.MemoryBytes, c.Schedule.Async = "uni", 64<<20, async
	var seen recorder
	e, _, err := Open(t.Context(), Options{Config: c, Events: seen.listen})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	params := sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
		Temperature:    1,
		PromptLogprobs: sample.NoLogprobs, MaxTokens: 40, EOS: -1}
	run := func(first []int32) (tokens [][]int32, errs []error) {
		var reading sync.WaitGroup
		tokens, errs = make([][]int32, len(first)), make([]error, len(first))
		for i, token := range first {
			p := params
			p.Seed = uint64(token)
			s, err := e.Submit(t.Context(), NewRequest([]int32{token, 5, 6, 7, 8, 9}, p))
			if err != nil {
				t.Fatal(err)
			}
			reading.Go(func() {
				defer s.Close()
				for {
					d, err := s.Next(t.Context())
					if err != nil {
						if !errors.Is(err, io.EOF) {
							errs[i] = err
						}
						return
					}
					tokens[i] = append(tokens[i], d.Tokens...)
				}
			})
		}
		reading.Wait()
		return tokens, errs
	}
	var first []int32
	for i := range int32(others) {
		first = append(first, 100+i)
	}
	want, _ := run(first)

	options := e.ranks.Options
	e.ranks.Options = func(ctx context.Context, kept executor.Launcher) (executor.Options, error) {
		o, err := options(ctx, kept)
		o.Launcher = &fragile{Launcher: inproc.New(machine.Place{}),
			poison: poison, length: length, late: late}
		return o, err
	}
	// The next group is fragile.
	if err := e.ranks.Current().Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, errs := run(slices.Insert(slices.Clone(first), others/2, poison))
	if err := errs[others/2]; late != nil && err != nil || late == nil && !errors.Is(err,
		ErrCondemned) || late == nil && !strings.Contains(err.Error(), "index out of range") {
		t.Errorf("the poisoned request ended with %v", err)
	}
	got, errs = slices.Delete(got, others/2, others/2+1), slices.Delete(errs, others/2, others/2+1)
	for i := range want {
		if errs[i] != nil || !slices.Equal(got[i], want[i]) {
			t.Errorf("request %d: %v\n%v\nwanted\n%v", i, errs[i], got[i], want[i])
		}
	}
	restarts := 0
	for _, kind := range seen.kinds() {
		if kind == "GroupRestarting" {
			restarts++
		}
	}
	t.Logf("%d restarts", restarts)
	if again, errs := run(first); fmt.Sprint(again) != fmt.Sprint(want) ||
		errors.Join(errs...) != nil {
		t.Errorf("afterwards: %v", errors.Join(errs...))
	}
}
