package collectivetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// Ends holds a transport to how all-reduces end that some rank aborts, or is late for.
func Ends[G Group](t *testing.T, group Make[G]) {
	for _, n := range []int{10, 100_000} {
		for name, test := range map[string]func(*testing.T, Make[G], int){
			"abort": abortedSums[G], "late": lateSums[G],
		} {
			t.Run(fmt.Sprintf("%s, %d elements", name, n), func(t *testing.T) {
				t.Parallel()
				test(t, group, n)
			})
		}
	}
}

func abortedSums[G Group](t *testing.T, group Make[G], n int) {
	gs := group(t, 4, time.Minute)
	Must(t, Each(gs, func(g G) error { return ScriptStep(g, 4, 0, n, 1) }))
	cause := errors.New("driver link is down")
	go func() {
		time.Sleep(20 * time.Millisecond)
		gs[3].Abort(cause)
		gs[3].Abort(errors.New("a later cause"))
	}()
	start := time.Now()
	errs := Each(gs[:3], func(g G) error { return g.AllReduce(make([]float32, n)) })
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
	for r, err := range errs {
		var e *collective.Error
		if !errors.As(err, &e) || e.Rank != r || e.Op != "all-reduce" ||
			!errors.Is(err, collective.ErrAborted) {
			t.Fatalf("rank %d: %v", r, err)
		}
		if !strings.Contains(err.Error(), "aborted by rank 3") ||
			!strings.Contains(err.Error(), cause.Error()) {
			t.Errorf("rank %d does not say why: %v", r, err)
		}
	}
	if err := gs[3].Barrier(); !errors.Is(err, collective.ErrAborted) || !errors.Is(err, cause) {
		t.Errorf("on the aborting rank: %v", err)
	}
	if err := gs[0].Barrier(); !errors.Is(err, collective.ErrAborted) {
		t.Errorf("later operation: %v", err)
	}
}

// lateSums names the ranks that are missing.
func lateSums[G Group](t *testing.T, group Make[G], n int) {
	gs := group(t, 4, 3*time.Second) // both that begin must do so within it
	first := 0
	for i, err := range Each([]G{gs[0], gs[2]},
		func(g G) error { return g.AllReduce(make([]float32, n)) }) {
		var e *collective.Error
		switch {
		case !errors.As(err, &e):
			t.Fatalf("rank %d: %v", 2*i, err)
		case errors.Is(err, collective.ErrTimeout):
			first++
			if !slices.Equal(e.Missing, []int{1, 3}) ||
				!strings.Contains(err.Error(), "all-reduce") ||
				!strings.Contains(err.Error(), "rank 1, 3") {
				t.Errorf("rank %d: %v", 2*i, err)
			}
		case !errors.Is(err, collective.ErrAborted):
			t.Errorf("rank %d: %v", 2*i, err)
		}
	}
	if first == 0 {
		t.Error("no rank reported the timeout")
	}
	// The late ranks learn what happened without a timeout of their own.
	if err := gs[1].AllReduce(make([]float32, n)); !errors.Is(err, collective.ErrAborted) ||
		!strings.Contains(err.Error(), "timed out") {
		t.Errorf("late rank: %v", err)
	}
}

// Mismatch has two ranks come with other operations, or other sizes or roots.
func Mismatch[G Group](t *testing.T, group Make[G]) {
	for _, c := range []struct {
		name string
		ops  [2]func(G) error
		want string
	}{
		{"sizes", [2]func(G) error{
			func(g G) error { return g.AllReduce(make([]float32, 3)) },
			func(g G) error { return g.AllReduce(make([]float32, 4)) },
		}, "all-reduce of 12 bytes"},
		{"small and large", [2]func(G) error{
			func(g G) error { return g.AllReduce(make([]float32, 3)) },
			func(g G) error { return g.AllReduce(make([]float32, 400_000)) },
		}, "all-reduce of 12 bytes"},
		{"operations", [2]func(G) error{
			func(g G) error { return g.AllReduce(nil) },
			func(g G) error { return g.Barrier() },
		}, "barrier of 0 bytes"},
		{"roots", [2]func(G) error{
			func(g G) error { return g.Broadcast(make([]byte, 3), 0) },
			func(g G) error { return g.Broadcast(make([]byte, 3), 1) },
		}, "root"},
		{"waiting for each other", [2]func(G) error{
			func(g G) error { return g.Gather(make([]float32, 2), make([]float32, 1), 0) },
			func(g G) error { return g.Broadcast(make([]byte, 3), 0) },
		}, "gather of 4 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			errs := Each(group(t, 2, time.Minute), func(g G) error {
				if err := c.ops[g.Rank()](g); err != nil {
					return err
				}
				return g.Barrier() // a root finds out in the next step
			})
			found := false
			for _, err := range errs {
				if err == nil {
					t.Error("a rank did not notice")
				} else if errors.Is(err, collective.ErrMismatch) &&
					strings.Contains(err.Error(), c.want) {
					found = true
				}
			}
			if !found {
				t.Errorf("got %v", errs)
			}
		})
	}
}

// BadArguments has a rank that is alone call operations that cannot be.
func BadArguments[G Group](t *testing.T, group Make[G]) {
	for want, op := range map[string]func(G) error{
		"all-gather of 2 elements from each of 1 ranks into 3": func(g G) error {
			return g.AllGather(make([]float32, 3), make([]float32, 2))
		},
		"gather of 2 elements from each of 1 ranks into 1": func(g G) error {
			return g.Gather(make([]float32, 1), make([]float32, 2), 0)
		},
		"root 1 of 1 ranks":  func(g G) error { return g.Broadcast(nil, 1) },
		"root -1 of 1 ranks": func(g G) error { return g.Gather(nil, nil, -1) },
	} {
		err := op(group(t, 1, time.Minute)[0])
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
