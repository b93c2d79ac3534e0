package regex

import (
	"fmt"
	"math/big"
	"testing"
)

// TestMultiple compares with arithmetic on every decimal of a few digits.
func TestMultiple(t *testing.T) {
	for _, c := range []struct {
		modulus int64
		places  int
	}{{1, 0}, {7, 0}, {10, 0}, {1, 2}, {25, 1}, {75, 2}, {4, 0}, {330, 3}} {
		b := NewBuilder(1_000_000)
		x, ok := b.Multiple(big.NewInt(c.modulus), c.places)
		if !ok {
			t.Fatalf("%v is refused", c)
		}
		for whole := range 120 {
			for fraction := -1; fraction < 1000; fraction += 1 + fraction/3%7 {
				text, thousandths := fmt.Sprint(whole), whole*1000
				if fraction >= 0 {
					text += fmt.Sprintf(".%03d", fraction)
					thousandths += fraction
				}
				scale := int64(1)
				for range 3 - c.places {
					scale *= 10
				}
				want := int64(thousandths)%(c.modulus*scale) == 0
				if got := b.Match(x, text); got != want {
					t.Errorf("%s as a multiple of %d·10^-%d: %v", text, c.modulus, c.places, got)
				}
			}
		}
	}
}

func TestMultipleNeverEndsDead(t *testing.T) {
	b := NewBuilder(1_000_000)
	x, _ := b.Multiple(big.NewInt(5), 0)
	if y := b.Derivative(b.Derivative(x, '3'), '.'); y != Empty {
		t.Error("a fraction is begun behind 3, and no multiple of 5 comes of it")
	}
	if y := b.And(x, b.Cat(b.Bytes('1', '9'), b.Lit("3"))); !b.Dead(y) {
		t.Error("a multiple of 5 ends with 3")
	}
	if y := b.And(x, b.Cat(b.Bytes('1', '9'), b.Lit("5"))); b.Dead(y) {
		t.Error("no multiple of 5 ends with 5")
	}
	for _, m := range []int64{0, -3, MaxModulus + 1} {
		if _, ok := b.Multiple(big.NewInt(m), 0); ok {
			t.Errorf("a multiple of %d", m)
		}
	}
}
