package inproc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// TestStopInStep does not wait beyond its context for a rank in a long step, and waits for its end
// otherwise.
func TestStopInStep(t *testing.T) {
	l := New(machine.Place{})
	release := make(chan struct{})
	l.running.Go(func() { <-release })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := l.Stop(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("in a step: %v", err)
	}
	close(release)
	if err := l.Stop(t.Context(), nil); err != nil {
		t.Errorf("after the step: %v", err)
	}
}

// soon is a deadline for what takes milliseconds on an idle machine.
func soon() time.Time { return time.Now().Add(time.Minute) }

// altered is a port that changes the plans that its rank gets.
type altered struct {
	queue.Port
	change func(*step.Plan)
}

func (p altered) Recv(until time.Time) ([]byte, error) {
	record, err := p.Port.Recv(until)
	if err != nil || queue.Kind(record[0]) != queue.KindPlan {
		return record, err
	}
	var plan step.Plan
	if err := step.DecodePlan(record[1:], &plan); err != nil {
		return nil, err
	}
	p.change(&plan)
	return step.AppendPlan([]byte{byte(queue.KindPlan)}, &plan), nil
}

// drive is the driver of ranks in this process.
type drive struct {
	*Launcher
	t *testing.T
}

// start runs ranks of the built-in model until they are ready. Plans reach rank odd as change makes
// them.
func start(t *testing.T, l layout.Layout, odd int, change func(*step.Plan)) drive {
	t.Helper()
	d := drive{New(machine.Place{}), t}
	specs := make([]launch.Spec, l.World())
	for i := range specs {
		specs[i] = launch.Spec{Rank: i, LocalRank: i, Layout: l}
	}
	d.wrap = func(rank int, p queue.Port) queue.Port {
		if rank == odd {
			return altered{p, change}
		}
		return p
	}
	if _, err := d.Launch(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(context.Background(), nil); err != nil {
			t.Error(err)
		}
	})
	d.send(queue.AppendJSON(nil, queue.KindInit, queue.Init{Layout: l.Sizes(),
		Stages: layout.Balance([]int64{1, 1, 1, 1}, l.Sizes().PP), LoadFormat: "auto",
		DType: "float32", Threads: 1, Blocks: 32, BlockSize: 16, MaxSeqs: 4,
		MaxModelLen: 128}))
	for range specs {
		d.want(queue.KindReady)
	}
	return d
}

func (d drive) send(record []byte, err error) {
	d.t.Helper()
	if err == nil {
		err = d.hub.Send(record, soon())
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// want receives a record of one kind, passing over progress, and returns its rank and a copy of its
// body.
func (d drive) want(kind queue.Kind) (int, []byte) {
	d.t.Helper()
	for {
		rank, record, err := d.hub.Recv(soon())
		switch {
		case err != nil:
			d.t.Fatal(err)
		case queue.Kind(record[0]) == kind:
			return rank, append([]byte(nil), record[1:]...)
		case queue.Kind(record[0]) != queue.KindProgress:
			d.t.Fatalf("rank %d sent %d %q", rank, record[0], record[1:])
		}
	}
}

// plan computes a prompt and samples the token after it.
func plan() *step.Plan {
	tokens := []int32{5, 6, 7}
	return &step.Plan{ID: 1, New: []step.NewRequest{{PromptLen: 3, Tokens: tokens,
		Params: sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
			PromptLogprobs: sample.NoLogprobs, MaxTokens: 10, EOS: -1}}},
		Rows: []step.Row{{Count: 3, Blocks: 1, Sample: true}}, Blocks: []uint32{3}}
}

// TestOneRankFails has one of several ranks refuse its plan: the others, which wait for it in a
// collective, end too, and say that they follow.
func TestOneRankFails(t *testing.T) {
	const ranks, odd = 4, 2
	d := start(t, layout.Layout{TP: ranks}, odd, func(p *step.Plan) { p.Rows[0].Slot = 99 })
	d.send(step.AppendPlan([]byte{byte(queue.KindPlan)}, plan()), nil)
	for range ranks {
		rank, body := d.want(queue.KindFailure)
		var f queue.Failure
		if err := json.Unmarshal(body, &f); err != nil {
			t.Fatal(err)
		}
		if f.Rank != rank || f.Follows != (rank != odd) {
			t.Errorf("rank %d reports %+v", rank, f)
		}
	}
	for range ranks {
		if exit := <-d.Exited(); exit.End.How != launch.Returned || exit.End.Reason == "" {
			t.Errorf("exit %+v", exit)
		}
	}
}

// TestRanksThatDisagreeAreFound gives one rank a prompt of other tokens: the step fails, by a
// report that names two ranks, one of them that one, and what they disagree on.
func TestRanksThatDisagreeAreFound(t *testing.T) {
	for _, l := range []layout.Layout{{TP: 4}, {PP: 2}} {
		t.Run(l.String(), func(t *testing.T) {
			const odd = 1
			d := start(t, l, odd, func(p *step.Plan) { p.New[0].Tokens[1]++ })
			d.send(step.AppendPlan([]byte{byte(queue.KindPlan)}, plan()), nil)
			f := queue.Failure{Follows: true}
			for f.Follows { // another rank has seen it, and says so
				_, body := d.want(queue.KindFailure)
				f = queue.Failure{}
				if err := json.Unmarshal(body, &f); err != nil {
					t.Fatal(err)
				}
			}
			if !strings.Contains(f.Message, "step state") || f.Step != 1 ||
				f.Rank != odd && !strings.HasSuffix(f.Message, fmt.Sprint("on rank ", odd)) {
				t.Errorf("rank %d reports %+v", f.Rank, f)
			}
		})
	}
}
