package executor

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/step"
)

// inFlight starts ranks that do not answer plans: the test does, on rank 0.
func inFlight(t *testing.T, most int) (*Executor, func(rank int, plan uint64, token int32)) {
	t.Helper()
	e, s := start(t, 2, obedient(func(kind queue.Kind, _ []byte,
		_ *memPort) bool {
		return kind != queue.KindPlan
	}),
		func(o *Options) { o.MaxInFlight = most })
	return e, func(rank int, plan uint64, token int32) {
		r := step.Result{Plan: plan}
		r.Append(3, token)
		s.ports[rank].Send(step.AppendResult([]byte{byte(queue.KindResult)}, &r), time.Time{})
	}
}

func send(t *testing.T, e *Executor, id uint64) *Future {
	t.Helper()
	f, err := e.Execute(&step.Plan{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestPlansInFlight keeps one to three plans in flight: each future has the result of its plan, and
// keeps it until the next plan is sent.
func TestPlansInFlight(t *testing.T) {
	for most := 1; most <= 3; most++ {
		e, answer := inFlight(t, most)
		var open []*Future
		sent, waited := uint64(0), uint64(0)
		for range 50 {
			for len(open) < most {
				sent++
				open = append(open, send(t, e, sent))
			}
			if _, err := e.Execute(&step.Plan{ID: sent + 1}); err == nil ||
				!strings.Contains(err.Error(), "steps are in flight already") {
				t.Fatalf("plan %d of %d in flight: %v", most+1, most, err)
			}
			// All results come before any is waited for.
			for id := waited + 1; id <= sent; id++ {
				answer(0, id, int32(id)*10)
			}
			for _, f := range open {
				waited++
				if r, err := f.Wait(); err != nil || r.Plan != waited ||
					r.Token[0] != int32(waited)*10 {
					t.Fatalf("result of plan %d: %+v, %v", waited, r, err)
				}
			}
			open = open[:0]
		}
	}
}

// TestResultNotDue refuses results that are not due, and leaves alone what was received before.
func TestResultNotDue(t *testing.T) {
	for name, c := range map[string]struct {
		rank int
		plan uint64
		want string
	}{
		"of a later plan":      {0, 3, "result of step 3 while step 2 is in flight"},
		"of an answered plan":  {0, 1, "result of step 1 while step 2 is in flight"},
		"of no plan":           {0, 9, "result of step 9 while step 2 is in flight"},
		"of a rank that isn't": {1, 2, "result of step 2, which rank 0 owes"},
	} {
		t.Run(name, func(t *testing.T) {
			e, answer := inFlight(t, 3)
			first := send(t, e, 1)
			second := send(t, e, 2)
			send(t, e, 3)
			answer(0, 1, 7)
			r, err := first.Wait()
			if err != nil {
				t.Fatal(err)
			}
			answer(c.rank, c.plan, 8)
			if _, err := second.Wait(); err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "protocol") {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if r.Plan != 1 || len(r.Token) != 1 || r.Token[0] != 7 {
				t.Errorf("the result of plan 1 became %+v", r)
			}
		})
	}
	e, answer := inFlight(t, 1)
	answer(0, 1, 7)
	_ = checkHealth(t.Context(), e) // receives it
	<-e.Dead()
	if err := e.Err(); !strings.Contains(err.Error(), "result of step 1 while none is in flight") {
		t.Errorf("error %v", err)
	}
}

// TestDueSince follows the oldest plan: what is sent behind it is due from its answer on.
func TestDueSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flights
		f.init(nil, 2)
		began := time.Now()
		want := func(due bool, since time.Duration) {
			t.Helper()
			at, is := f.dueSince()
			if is != due || due && at.Sub(began) != since {
				t.Errorf("due %v since %v, want %v since %v", is, at.Sub(began), due, since)
			}
		}
		want(false, 0)
		f.open(1, time.Now())
		time.Sleep(time.Second)
		f.open(2, time.Now())
		time.Sleep(time.Second)
		want(true, 0)
		f.answered(time.Now())
		time.Sleep(time.Second)
		want(true, 2*time.Second)
		f.answered(time.Now())
		want(false, 0)
		f.waited()
		f.open(3, time.Now())
		want(true, 3*time.Second)
	})
}

// TestStepTimeoutOfSecond fails the group when the second of two plans is not answered.
func TestStepTimeoutOfSecond(t *testing.T) {
	t.Parallel()
	e, s := start(t, 1, obedient(func(kind queue.Kind, _ []byte,
		_ *memPort) bool {
		return kind != queue.KindPlan
	}),
		func(o *Options) { o.MaxInFlight, o.StepTimeout = 2, 2*time.Second })
	first, second := send(t, e, 1), send(t, e, 2)
	r := step.Result{Plan: 1}
	s.ports[0].Send(step.AppendResult([]byte{byte(queue.KindResult)}, &r), time.Time{})
	if _, err := first.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Wait(); err == nil || !strings.Contains(err.Error(), "step 2") {
		t.Errorf("error %v, want one of step 2", err)
	}
}
