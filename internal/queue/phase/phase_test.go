package phase

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

func TestStatusRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		s := Status{rng.Uint64(), rng.Uint64(), rng.Uint64(), Phase(rng.Uint32()), rng.Uint32(), rng.Uint64(), rng.Uint64()}
		got, err := Parse(s.Append(nil))
		if err != nil || got != s {
			t.Fatalf("%+v became %+v, %v", s, got, err)
		}
		var w Words
		w.Store(s)
		if w.Status() != s {
			t.Fatalf("%+v became %+v", s, w.Status())
		}
	}
	for n := range 2 * Size {
		if _, err := Parse(make([]byte, n)); (err == nil) != (n == Size) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if unsafe.Sizeof(Words{})%64 != 0 {
		t.Errorf("words are %d bytes", unsafe.Sizeof(Words{}))
	}
}

func TestWords(t *testing.T) {
	var w Words
	w.Received(3)
	w.Started(3)
	w.Set(Forward, 7)
	w.Call(9)
	w.Finished(2)
	if got, want := w.Status(), (Status{3, 3, 2, Forward, 7, 9, 5}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	if Forward.String() != "forward" || Phase(99).String() != "phase 99" {
		t.Error("names")
	}
}
