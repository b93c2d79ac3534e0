package sample

import (
	"math"
	"testing"
)

func TestSound(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	row := func(x float32) []float32 {
		r := make([]float32, 1000)
		for i := range r {
			r[i] = x
		}
		return r
	}
	for _, bad := range []float32{nan, -nan, inf, -inf} {
		if Sound(row(bad)) || Finite(bad) {
			t.Errorf("logits of %v are sound", bad)
		}
	}
	for _, good := range []float32{0, -1, math.MaxFloat32, -math.MaxFloat32, 1e-45} {
		if !Sound(row(good)) || !Finite(good) {
			t.Errorf("logits of %v are not sound", good)
		}
	}
	mixed := row(1)
	mixed[len(mixed)/soundStride*soundStride] = nan
	if Sound(mixed) {
		t.Error("the last logit that is looked at is not")
	}
	if !Sound(nil) {
		t.Error("an empty row is not sound")
	}
}

func BenchmarkSound(b *testing.B) {
	logits := make([]float32, 151936)
	for b.Loop() {
		if !Sound(logits) {
			b.Fatal()
		}
	}
}
