package status

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

func TestSnapshotRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		s := Snapshot{rng.Uint64(), rng.Uint64(), rng.Uint64(), Phase(rng.Uint32()), rng.Uint32(),
			rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64()}
		got, err := Parse(s.Append(nil))
		if err != nil || got != s {
			t.Fatalf("%+v became %+v, %v", s, got, err)
		}
	}
	for n := range 2 * Size {
		if _, err := Parse(make([]byte, n)); (err == nil) != (n == Size) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if unsafe.Sizeof(Rank{})%64 != 0 {
		t.Errorf("a status is %d bytes", unsafe.Sizeof(Rank{}))
	}
}

func TestRank(t *testing.T) {
	var r Rank
	r.Received(3)
	r.Started(3)
	r.Set(Forward, 7)
	r.Call(9)
	r.Finished(2)
	r.Uses(1500, 4096) // no change of the rank
	if got, want := r.Snapshot(), (Snapshot{3, 3, 2, Forward, 7, 9, 5, 1500, 4096}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	if Forward.String() != "forward" || Phase(99).String() != "phase 99" {
		t.Error("names")
	}
}
