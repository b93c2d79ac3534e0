package collectivetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// Make makes a group of ranks, whose waits end after the time, and closes it with the test.
type Make[G Group] func(t *testing.T, ranks int, timeout time.Duration) []G

// Contract holds a transport to what is said of messages, of all-to-alls and guards. A message
// there and back may allocate so many times, and so may an all-to-all.
func Contract[G Group](t *testing.T, allocations float64, group Make[G]) {
	for name, test := range map[string]func(*testing.T, Make[G]){
		"guards": guards[G], "messages that differ": badMessages[G],
		"long messages": longMessages[G], "full": full[G], "abort": aborts[G], "late": late[G],
		"left": left[G], "no sum": noSum[G], "wrong ranks": wrongRanks[G],
		"runs": runs[G], "runs of other lengths": otherRuns[G], "bad lengths": badLengths[G],
		"runs and another operation": otherOperation[G], "abort of runs": abortsOfRuns[G],
		"late runs": lateRuns[G], "runs of a rank that left": leftRuns[G],
	} {
		t.Run(name, func(t *testing.T) { test(t, group) })
	}
	t.Run("allocations of runs", func(t *testing.T) { countRuns(t, group, allocations) })
	t.Run("allocations", func(t *testing.T) { countAllocations(t, group, allocations) })
}

// guards has one of the ranks come with another state.
func guards[G Group](t *testing.T, group Make[G]) {
	for name, op := range map[string]func(g G, x []float32) error{
		"all-reduce": func(g G, x []float32) error { return g.AllReduce(x) },
		"all-gather": func(g G, x []float32) error {
			return g.AllGather(make([]float32, 2*len(x)), x)
		},
		"all-to-all": func(g G, x []float32) error {
			_, err := g.AllToAllV(nil, x, []int{1, 1}, make([]int, 2), nil)
			return err
		},
		"barrier": func(g G, _ []float32) error { return g.Barrier() },
		"broadcast": func(g G, x []float32) error {
			return errors.Join(g.Broadcast(collective.Bytes(x), 1), g.Barrier())
		},
		"message": func(g G, x []float32) error {
			if g.Rank() == 0 {
				return errors.Join(g.Send(collective.Bytes(x), 1), g.Recv(make([]byte, 3), 1))
			}
			return g.Recv(collective.Bytes(x), 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			gs := group(t, 2, time.Minute)
			run := func(differ bool) []error {
				return Each(gs, func(g G) error {
					g.Guard(7)
					if differ && g.Rank() == 1 {
						g.Guard(8)
					}
					return op(g, make([]float32, 2))
				})
			}
			if name != "message" {
				Must(t, run(false))
			}
			began := time.Now()
			errs := run(true)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
			found := false
			for rank, err := range errs {
				if err == nil {
					t.Errorf("rank %d did not notice", rank)
					continue
				}
				if errors.Is(err, collective.ErrMismatch) {
					found = true
				} else if !errors.Is(err, collective.ErrAborted) &&
					!errors.Is(err, collective.ErrLeft) {
					t.Errorf("rank %d: %v", rank, err)
				}
				for _, part := range []string{"step state", "rank 0", "rank 1", "0000000000000007",
					"0000000000000008"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("rank %d does not say %q: %v", rank, part, err)
					}
				}
			}
			if !found {
				t.Errorf("nobody says that the ranks disagree: %v", errs)
			}
		})
	}
}

func badMessages[G Group](t *testing.T, group Make[G]) {
	gs := group(t, 2, time.Minute)
	errs := Each(gs, func(g G) error {
		if g.Rank() == 0 {
			return errors.Join(g.Send(make([]byte, 100), 1), g.Recv(nil, 1))
		}
		return g.Recv(make([]byte, 99), 0)
	})
	if errs[0] == nil || !errors.Is(errs[1], collective.ErrMismatch) ||
		!strings.Contains(errs[1].Error(), "message of 100 bytes to rank 1") {
		t.Errorf("got %v", errs)
	}
}

// longMessages has both of two ranks send first as much as may be under way, and then more than
// that from one side.
func longMessages[G Group](t *testing.T, group Make[G]) {
	gs := group(t, 2, time.Minute)
	Must(t, Each(gs, func(g G) error {
		other := 1 - g.Rank()
		for round := range 3 {
			out := bytes.Repeat([]byte{byte(2*round + g.Rank())}, collective.MessageBuffer-1024)
			in := make([]byte, len(out))
			if err := errors.Join(g.Send(out, other), g.Recv(in, other)); err != nil {
				return err
			}
			for i := range out {
				out[i] = byte(2*round + other)
			}
			if !bytes.Equal(in, out) {
				return fmt.Errorf("round %d: a message is not what was sent", round)
			}
		}
		long := bytes.Repeat([]byte("0123456789"), 1_500_001)
		if g.Rank() == 0 {
			return g.Send(long, 1)
		}
		in := make([]byte, len(long))
		if err := g.Recv(in, 0); err != nil {
			return err
		}
		if !bytes.Equal(in, long) {
			return errors.New("the long message is not what was sent")
		}
		return nil
	}))
}

// full checks that a sender waits for a receiver that is too far behind, and loses nothing.
func full[G Group](t *testing.T, group Make[G]) {
	gs := group(t, 2, time.Minute)
	const pieces, size = 64, 1 << 20
	sent := make(chan int, pieces)
	done := make(chan error, 1)
	go func() {
		b := make([]byte, size)
		for i := range pieces {
			b[0], b[size-1] = byte(i), byte(i)
			if err := gs[0].Send(b, 1); err != nil {
				done <- err
				return
			}
			sent <- i
		}
		done <- nil
	}()
	for range collective.MessageBuffer/size - 1 { // these need no receiver
		select {
		case <-sent:
		case err := <-done:
			t.Fatal(err)
		}
	}
	b := make([]byte, size)
	for i := range pieces {
		if err := gs[1].Recv(b, 0); err != nil {
			t.Fatal(err)
		}
		if b[0] != byte(i) || b[size-1] != byte(i) {
			t.Fatalf("message %d begins with %d and ends with %d", i, b[0], b[size-1])
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// aborts ends waits for a message and for room.
func aborts[G Group](t *testing.T, group Make[G]) {
	for name, op := range map[string]func(g G) error{
		"receive": func(g G) error { return g.Recv(make([]byte, 10), 1) },
		"long":    func(g G) error { return g.Recv(make([]byte, 1<<20), 1) },
		"send": func(g G) error {
			for {
				if err := g.Send(make([]byte, 1<<20), 1); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			gs := group(t, 4, time.Minute)
			done := make(chan error)
			go func() { done <- op(gs[0]) }()
			time.Sleep(20 * time.Millisecond)
			gs[2].Abort(errors.New("out of cheese"))
			select {
			case err := <-done:
				if !errors.Is(err, collective.ErrAborted) ||
					!strings.Contains(err.Error(), "by rank 2: out of cheese") {
					t.Error(err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("goes on without its group")
			}
		})
	}
}

func late[G Group](t *testing.T, group Make[G]) {
	for name, op := range map[string]func(g G) error{
		"receive": func(g G) error { return g.Recv(make([]byte, 10), 1) },
		"send": func(g G) error {
			for {
				if err := g.Send(make([]byte, 1<<20), 1); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			gs := group(t, 4, 200*time.Millisecond)
			err := op(gs[0])
			var e *collective.Error
			if !errors.Is(err, collective.ErrTimeout) || !errors.As(err, &e) ||
				!slices.Equal(e.Missing, []int{1}) || e.Op != name || e.Rank != 0 {
				t.Error(err)
			}
			if err := gs[3].Barrier(); err == nil {
				t.Error("the group goes on")
			}
		})
	}
}

// left checks that a message of a rank that has left since can be received, and no other.
func left[G Group](t *testing.T, group Make[G]) {
	gs := group(t, 2, time.Minute)
	want := bytes.Repeat([]byte("abc"), 50_000)
	if err := errors.Join(gs[1].Send(want, 0), gs[1].Send([]byte("end"), 0)); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- gs[1].Close() }()
	got, end := make([]byte, len(want)), make([]byte, 3)
	if err := errors.Join(gs[0].Recv(got, 1), gs[0].Recv(end, 1)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) || string(end) != "end" {
		t.Error("the messages are not what was sent")
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	var e *collective.Error
	err := gs[0].Recv(end, 1)
	if !errors.Is(err, collective.ErrLeft) || !errors.As(err, &e) ||
		!slices.Equal(e.Missing, []int{1}) {
		t.Errorf("waiting for one that left: %v", err)
	}
	if err := gs[1].Send(end, 0); !errors.Is(err, collective.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// noSum checks that sums are refused where their order is not defined.
func noSum[G Group](t *testing.T, group Make[G]) {
	gs := group(t, 3, time.Minute)
	err := gs[0].AllReduce(make([]float32, 3))
	if err == nil || !strings.Contains(err.Error(), "sum over 3 ranks") ||
		!strings.Contains(err.Error(), "all-reduce") {
		t.Error(err)
	}
}

// countAllocations counts those of messages that go back and forth.
func countAllocations[G Group](t *testing.T, group Make[G], limit float64) {
	n := Allocations(t, group(t, 2, time.Minute), 10, 100, func(g G) func() error {
		b := make([]byte, 5000)
		return func() error {
			if g.Rank() == 0 {
				return errors.Join(g.Send(b, 1), g.Recv(b, 1))
			}
			return errors.Join(g.Recv(b, 0), g.Send(b, 0))
		}
	})
	if n > limit {
		t.Errorf("%v allocations per message there and back", n)
	}
}

func wrongRanks[G Group](t *testing.T, group Make[G]) {
	for _, to := range []int{-1, 0, 2} {
		for name, op := range map[string]func(g G) error{
			"send":    func(g G) error { return g.Send(nil, to) },
			"receive": func(g G) error { return g.Recv(nil, to) },
		} {
			want := fmt.Sprintf("%s on rank 0: message between rank 0 and rank %d of 2 ranks", name,
				to)
			if err := op(group(t, 2, time.Minute)[0]); err == nil || err.Error() != want {
				t.Errorf("%v, not %q", err, want)
			}
		}
	}
}
