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
			rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64(), GPU{}}
		for f := range s.GPU {
			s.GPU[f] = rng.Uint64()
		}
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
	var g GPU
	g.Know(GPUBusy, 0)
	g.Know(GPUUncorrected, 7)
	r.Measures(&g) // nor this
	want := Snapshot{3, 3, 2, Forward, 7, 9, 5, 1500, 4096, g}
	if got := r.Snapshot(); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	for f, want := range map[Figure]uint64{GPUBusy: 0, GPUUncorrected: 7} {
		if v, known := g.Get(f); v != want || !known {
			t.Errorf("figure %d is %d, %v", f, v, known)
		}
	}
	if v, known := g.Get(GPUPower); known {
		t.Errorf("a figure that is not known is %d", v)
	}
	if Forward.String() != "forward" || Phase(99).String() != "phase 99" {
		t.Error("names")
	}
}
