package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// recorder keeps the events of an engine, but for progress.
type recorder struct {
	mu     sync.Mutex
	events []status.Event
}

func (r *recorder) listen(e status.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := e.(status.Progress); !ok {
		r.events = append(r.events, e)
	}
}

// kinds are the types of the events so far, in order.
func (r *recorder) kinds() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var kinds []string
	for _, e := range r.events {
		kinds = append(kinds, strings.TrimPrefix(fmt.Sprintf("%T", e), "status."))
	}
	return kinds
}

// TestGroupInPlace starts a second group in the place of one whose rank was killed in the middle of
// an output: the scheduler's requests go on in it, with the tokens they would have had.
func TestGroupInPlace(t *testing.T) {
	for _, size := range []int{1, 2} {
		t.Run(fmt.Sprintf("tp=%d", size), func(t *testing.T) {
			var seen recorder
			c := config.Default()
			c.Cache.MemoryBytes, c.Parallel.TensorParallelSize, c.Parallel.Backend = 64<<20, size,
				"mp"
			c.Recovery.OnFailure = "exit"
			e, _, err := Open(t.Context(), Options{Config: c, Events: seen.listen})
			if err != nil {
				t.Fatal(err)
			}
			first := e.ranks.Report()
			kill(t, first[size-1].PID)
			<-e.Failed()
			<-e.done // the scheduler is this test's from here on

			params := sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
				PromptLogprobs: sample.NoLogprobs, MaxTokens: 24, EOS: -1}
			e.loop.sched.Add(&schedule.Request{Key: 1, Prompt: []int32{5, 6, 7, 8, 9},
				Params: params})
			tokens := func(steps int) (out []int32) {
				for range steps {
					e.loop.sched.Schedule(&e.loop.plan)
					future, err := e.loop.group.Execute(&e.loop.plan)
					if err != nil {
						t.Fatal(err)
					}
					result, err := future.Wait()
					if err == nil {
						err = e.loop.sched.Check(result)
					}
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, result.Token...)
					e.loop.sched.Update(result, nil)
				}
				return out
			}
			start := func() {
				if e.loop.group, err = e.ranks.Start(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			start()
			want := tokens(24)
			e.loop.sched.Add(&schedule.Request{Key: 2, Prompt: []int32{5, 6, 7, 8, 9},
				Params: params})
			got := tokens(10)
			kill(t, e.ranks.Report()[size-1].PID)
			<-e.loop.group.Dead()
			if f := (*executor.Failure)(nil); !errors.As(e.loop.group.Err(), &f) ||
				f.Rank != size-1 {
				t.Errorf("the second group ended with %v", e.loop.group.Err())
			}
			start()
			e.loop.sched.PreemptAll(false)
			got = append(got, tokens(14)...)
			if !slices.Equal(got, want) {
				t.Errorf("tokens are\n%v\nwanted\n%v", got, want)
			}
			for rank, s := range e.ranks.Report() {
				if s.Rank != rank || s.PID == first[rank].PID {
					t.Errorf("rank %d is still reported as %v", rank, s)
				}
			}
			if err := e.Stop(context.Background()); err != nil {
				t.Error(err)
			}
			if _, err := e.ranks.Start(t.Context(), nil); !errors.Is(err, ErrStopped) {
				t.Errorf("a group started after the end: %v", err)
			}
			wantKinds := []string{"GroupReady", "GroupFailed", "GroupReady", "GroupReady",
				"Stopping", "GroupStopped"}
			if kinds := seen.kinds(); !slices.Equal(kinds, wantKinds) {
				t.Errorf("events are %v, wanted %v", kinds, wantKinds)
			}
			if last, ok := seen.events[3].(status.GroupReady); !ok || last.Epoch != 3 ||
				last.Ranks != size || last.WeightBytes == 0 {
				t.Errorf("the last group is %+v", seen.events[3])
			}
			if f, ok := seen.events[1].(status.GroupFailed); !ok || f.Epoch != 1 ||
				f.Rank != size-1 || f.PID != first[size-1].PID {
				t.Errorf("the failure is %+v", seen.events[1])
			}
		})
	}
}

// counter is the value of a metric without labels of its own.
func counter(t *testing.T, m *metrics.Metrics, name string) float64 {
	t.Helper()
	shown := httptest.NewRecorder()
	m.Handler().ServeHTTP(shown, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(shown.Body.String()) {
		if strings.HasPrefix(line, name+"{") {
			fields := strings.Fields(line)
			v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestEngineEvents drives an engine into preemption and a slow step.
func TestEngineEvents(t *testing.T) {
	var seen recorder
	c := config.Default()
	c.Cache.Blocks, c.Model.MaxModelLen = 12, 128
	c.Queue.StallWarning = 100 * time.Microsecond
	e, m, err := Open(t.Context(), Options{Config: c, Events: seen.listen})
	if err != nil {
		t.Fatal(err)
	}
	var streams []Stream
	for range 3 {
		s, err := e.Submit(t.Context(), NewRequest(make([]int32, 40), sample.Params{TopP: 1,
			RepetitionPenalty: 1,
			Logprobs:          sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs, MaxTokens: 80,
			EOS: -1}))
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	for _, s := range streams {
		for err = nil; err == nil; {
			_, err = s.Next(t.Context())
		}
		s.Close()
	}
	if err := e.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	preempted := 0
	for _, event := range seen.events {
		switch event := event.(type) {
		case status.Preempted:
			preempted += event.Requests
		case status.StepSlow:
			// A plan may only free slots.
			if event.Step == 0 || event.Tokens < event.Requests || event.Took <= 0 {
				t.Fatalf("slow step %+v", event)
			}
		}
	}
	if preempted == 0 {
		t.Error("no request was preempted")
	}
	if kinds := seen.kinds(); !slices.Contains(kinds, "StepSlow") {
		t.Errorf("no slow step in %v", kinds)
	}
	if got := counter(t, m, "eagleray:num_preemptions_total"); got != float64(preempted) {
		t.Errorf("%v preemptions are counted, %d were told", got, preempted)
	}
}
