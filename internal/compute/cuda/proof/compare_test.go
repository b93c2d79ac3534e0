package proof

import (
	"math"
	"testing"
)

func TestUnitsBetween(t *testing.T) {
	one := float32(1)
	next := math.Nextafter32(one, 2)
	least := float32(math.SmallestNonzeroFloat32)
	for _, c := range []struct {
		a, b float32
		want uint32
	}{{one, one, 0}, {one, next, 1}, {next, one, 1}, {0, float32(math.Copysign(0, -1)), 0},
		{least, -least, 2}, {-one, -next, 1}, {1, 2, 1 << 23}} {
		if got := unitsBetween(c.a, c.b); got != c.want {
			t.Errorf("%v and %v are %d apart, not %d", c.a, c.b, got, c.want)
		}
	}
	if unitsBetween(1, float32(math.NaN())) < 1<<20 {
		t.Error("NaN is near 1")
	}
}

// TestApart has numbers that are not numbers be farther apart than all others.
func TestApart(t *testing.T) {
	x := []output{{name: "x", got: []float32{1, 4}}}
	for _, c := range []struct {
		got  []float32
		want float64
	}{{[]float32{1, 4}, 0}, {[]float32{1, 3}, 0.25},
		{[]float32{float32(math.NaN()), 4}, math.MaxFloat64}} {
		_, relative, err := apart(x, []output{{name: "x", got: c.got}})
		if err != nil || relative != c.want {
			t.Errorf("%v: %v, not %v (%v)", c.got, relative, c.want, err)
		}
	}
	if _, _, err := apart(x, []output{{name: "x"}}); err == nil {
		t.Error("numbers of another size are let pass")
	}
}
