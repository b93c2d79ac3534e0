package sample

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestSurvey compares what is known of blocks with a look at every logit, on rows with NaN, infinite
// and equal values, and wants the bits of the portable kernels.
func TestSurvey(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 1))
	for range 300 {
		var s Sampler
		row := oddRow(r, 1+r.IntN(3000))
		s.survey(row)
		best := -1
		for i, v := range row {
			if v > negInf && (best < 0 || v > row[best]) {
				best = i
			}
			if b := i / block; v > s.maxes[b] {
				t.Fatalf("block %d: greatest %v, but logit %d is %v", b, s.maxes[b], i, v)
			}
		}
		if got := s.best(row); got != best {
			t.Fatalf("best of %d logits is %d, want %d", len(row), got, best)
		}
		low := row[r.IntN(len(row))]
		for from := 0; ; from++ {
			want := nextAbove(row, from, low)
			if got := s.above(row, from, low); got != want {
				t.Fatalf("above %v from %d: %d, want %d", low, from, got, want)
			}
			if from = want; want < 0 {
				break
			}
		}
		s.collect(row, low)
		for i, id := range s.ids {
			if v := row[id]; !(v > low) || s.logits[i] != v || i > 0 && s.ids[i-1] >= id {
				t.Fatalf("logit %d, %v, is listed as above %v: %v", id, v, low, s.ids)
			}
		}
		above := 0
		for _, v := range row {
			if v > low {
				above++
			}
		}
		if len(s.ids) != above {
			t.Fatalf("%d of %d logits are listed as above %v", len(s.ids), above, low)
		}
		if low == low {
			var want int32
			for _, v := range row {
				if v >= low {
					want++
				}
			}
			if got := count(row, low); got != want {
				t.Fatalf("%d logits are at least %v, want %d", got, low, want)
			}
		}
	}
}

// TestSums compares the weights of blocks with float64, and their bits with those of the portable
// kernel: at all temperatures, with masked and impossible logits among them.
func TestSums(t *testing.T) {
	r := rand.New(rand.NewPCG(42, 1))
	for _, temperature := range []float64{0.01, 0.3, 1, 2, 50} {
		for range 20 {
			var s Sampler
			row := randomRow(r, 1+r.IntN(3000), 4)
			for i, v := range row {
				row[i] = min(v, 12)
			}
			for range len(row) / 3 {
				row[r.IntN(len(row))] = []float32{negInf, float32(math.NaN())}[r.IntN(2)]
			}
			row[r.IntN(len(row))] = 12
			c := newScale(12, temperature)
			sums, total := s.sums(row, 12, c)
			all := 0.0
			for b, got := range sums {
				want, padded := 0.0, make([]float32, block)
				for i := range padded {
					padded[i] = negInf
				}
				for _, v := range row[b*block : b*block+copy(padded, row[b*block:])] {
					want += weightOf(c.exponent(v))
				}
				all += want
				if math.Abs(float64(got)-want) > 2e-6*want {
					t.Fatalf("temperature %v, block %d: %v, want %v", temperature, b, got, want)
				}
				var bits [1]float32
				sumsPortable(bits[:], padded, 12, float32(c.k/64))
				if bits[0] >= 0x1p-66 && bits[0] != got {
					t.Fatalf("temperature %v, block %d: %x, portable %x", temperature, b, got, bits)
				}
			}
			if math.Abs(total-all) > 1e-6*all {
				t.Fatalf("temperature %v: %v in all, want %v", temperature, total, all)
			}
		}
	}
	var s Sampler
	masked := make([]float32, 2*block)
	for i := range masked {
		masked[i] = negInf
	}
	masked[0] = 3
	if sums, _ := s.sums(masked, 3, newScale(3, 1)); sums[0] != 1 || sums[1] != 0 {
		t.Errorf("a token alone weighs %v", sums)
	}
}
