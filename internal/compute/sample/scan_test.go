package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPhilox uses the known answers of Random123 (kat_vectors).
func TestPhilox(t *testing.T) {
	const ones = math.MaxUint32
	tests := []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{ones, ones, ones, ones}, [2]uint32{ones, ones}, [4]uint32{0x408f276d, 0x41c83b0e,
			0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822,
			0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	}
	for _, tt := range tests {
		if got := philox4x32(tt.ctr, tt.key); got != tt.want {
			t.Errorf("philox4x32(%x, %x) = %x, want %x", tt.ctr, tt.key, got, tt.want)
		}
	}
	if u := uniform(0, 0); u != float64(uint64(0x6627e8d5e169c58d)>>11)/(1<<53) {
		t.Errorf("uniform(0, 0) = %v", u)
	}
}

func TestWeight(t *testing.T) {
	c := newScale(0, 1)
	for x := -45.0; x <= 0; x += 0.000917 {
		v := float32(x)
		got, want := weightOf(c.exponent(v)), math.Exp(float64(v))
		if math.Abs(got-want) > 4e-11*want {
			t.Fatalf("weight of %v: got %v, want %v", v, got, want)
		}
	}
	for v, want := range map[float32]float64{0: 1, -46: 0, negInf: 0, float32(math.NaN()): 0,
		-math.MaxFloat32: 0} {
		if got := weightOf(c.exponent(v)); got != want {
			t.Errorf("weight of %v: got %v, want %v", v, got, want)
		}
	}
}

func oddRow(r *rand.Rand, n int) []float32 {
	odd := []float32{0, float32(math.Copysign(0, -1)), negInf, float32(math.Inf(1)),
		float32(math.NaN()), math.Float32frombits(0xffc00000), 1e-45, -1e-45, math.MaxFloat32,
		-math.MaxFloat32}
	row := randomRow(r, n, 2)
	for range r.IntN(n) {
		row[r.IntN(n)] = odd[r.IntN(len(odd))]
	}
	return row
}

func TestNextAbove(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		row := oddRow(r, 1+r.IntN(70))
		low := oddRow(r, 1)[0]
		from := r.IntN(len(row)+2) - 1
		want := -1
		for i := max(from, 0); i < len(row) && from >= 0; i++ {
			if row[i] > low {
				want = i
				break
			}
		}
		if got := nextAbove(row, from, low); got != want {
			t.Fatalf("nextAbove(%v, %d, %v) = %d, want %d", row, from, low, got, want)
		}
	}
}

func TestKth(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	var s Sampler
	for range 2000 {
		row := oddRow(r, 1+r.IntN(400))
		sorted := slices.Clone(row)
		for i, v := range sorted {
			if v != v {
				sorted[i] = negInf
			}
		}
		slices.Sort(sorted)
		k := 1 + r.IntN(len(row))
		want := sorted[len(sorted)-k]
		s.survey(row)
		if got := s.kth(row, k); got != want {
			t.Fatalf("kth(%v, %d) = %v, want %v", row, k, got, want)
		}
		if got := s.kthRadix(row, k); got != want {
			t.Fatalf("kthRadix(%v, %d) = %v, want %v", row, k, got, want)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, v := range []float32{0, 1, -1, 1e-45, -1e-45, math.MaxFloat32, negInf} {
		for _, d := range []float64{0, 1e-12, -1e-12} {
			bound := float64(v) + d
			low := below(bound)
			for _, x := range []float32{math.Nextafter32(v, negInf), v, math.Nextafter32(v,
				float32(math.Inf(1)))} {
				if x == negInf {
					continue // never kept
				}
				if (x > low) != (float64(x) >= bound) {
					t.Errorf("below(%v) = %v is wrong for %v", bound, low, x)
				}
			}
		}
	}
}

// TestStateRebuilt checks that a state built from prompt and output equals one that was appended
// to, and that counting survives growth.
func TestStateRebuilt(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	p := with(func(p *Params) {
		p.MaxTokens, p.RepetitionPenalty, p.FrequencyPenalty, p.BadWords = 1, 1.2, 0.3,
			[][]int32{{1, 2, 3, 4}}
	})
	prompt := make([]int32, 100)
	for i := range prompt {
		prompt[i] = int32(r.IntN(5000))
	}
	st := NewState(p, prompt, nil)
	var output []int32
	for range 4000 {
		output = append(output, int32(r.IntN(5000)))
		st.Append(output[len(output)-1])
	}
	again := NewState(p, prompt, output)
	if st.Outputs() != 4000 || again.Outputs() != 4000 {
		t.Errorf("outputs: %d and %d", st.Outputs(), again.Outputs())
	}
	if !slices.Equal(st.tail, output[len(output)-3:]) || !slices.Equal(again.tail, st.tail) {
		t.Errorf("tails %v and %v", st.tail, again.tail)
	}
	want := map[int32]int32{}
	for _, id := range prompt {
		want[id] += 0
	}
	for _, id := range output {
		want[id]++
	}
	for _, s := range []*State{st, again} {
		if len(s.seen.ids) != len(want) {
			t.Fatalf("%d distinct tokens, want %d", len(s.seen.ids), len(want))
		}
		for i, id := range s.seen.ids {
			if s.seen.counts[i] != want[id] {
				t.Errorf("token %d counted %d times, want %d", id, s.seen.counts[i], want[id])
			}
		}
	}
	if plain := neutral(); NewState(&plain, prompt, output).seen != nil {
		t.Error("a request without penalties counts tokens")
	}
}
