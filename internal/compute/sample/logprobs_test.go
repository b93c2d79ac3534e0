package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestLogprobs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	var s Sampler
	for range 300 {
		row := randomRow(r, 1+r.IntN(600), 4)
		if r.IntN(2) == 0 {
			for i := range row {
				row[i] = float32(math.Round(float64(row[i])))
			}
		}
		for range r.IntN(5) {
			row[r.IntN(len(row))] = negInf
		}
		before := slices.Clone(row)
		total := 0.0
		for _, v := range row {
			total += math.Exp(float64(v))
		}
		order := make([]int32, len(row))
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(a, b int32) int {
			if row[a] > row[b] {
				return -1
			}
			if row[a] < row[b] {
				return 1
			}
			return 0
		})
		token := int32(r.IntN(len(row)))
		k := int32(r.IntN(len(row) + 10))
		if r.IntN(5) == 0 {
			k = AllLogprobs
		}
		sampled, top := s.Logprobs(row, token, k, false, []Choice{{Token: -7}})
		if !slices.Equal(row, before) {
			t.Fatal("the row changed")
		}
		n := min(int(k), len(row))
		if k == AllLogprobs {
			n = len(row)
		}
		if len(top) != n+1 || top[0].Token != -7 {
			t.Fatalf("k=%d: %d entries, want %d after the one given", k, len(top), n)
		}
		check := func(c Choice, id, rank int32) {
			t.Helper()
			want := math.Log(math.Exp(float64(row[id])) / total)
			if c.Token != id || c.Rank != rank ||
				c.Logprob != float32(want) && !(math.Abs(float64(c.Logprob)-want) <= 1e-6*max(1,
					-want)) {
				t.Fatalf("got %+v, want token %d rank %d logprob %v", c, id, rank, want)
			}
		}
		rank := int32(0)
		for _, v := range row {
			if v >= row[token] {
				rank++
			}
		}
		check(sampled, token, rank)
		for i, c := range top[1:] {
			check(c, order[i], int32(i+1))
		}
	}
}

func TestLogprobsOddRows(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	half := float32(math.Log(0.5))
	tests := []struct {
		name    string
		row     []float32
		token   int32
		k       int32
		sampled Choice
		top     []Choice
	}{
		{"none asked for", []float32{0, 0}, 1, NoLogprobs, Choice{1, half, 2}, nil},
		{"sampled only", []float32{0, 0}, 1, 0, Choice{1, half, 2}, nil},
		{"NaN is impossible", []float32{nan, 0, 0}, 0, 3, Choice{0, negInf, 3}, []Choice{{1, half,
			1}, {2, half, 2}, {0, negInf, 3}}},
		{"fewer possible than asked for", []float32{negInf, 0, nan, negInf}, 1, 3, Choice{1, 0, 1},
			[]Choice{{1, 0, 1}, {0, negInf, 2}, {2, negInf, 3}}},
		{"plus infinity", []float32{1, inf, inf}, 1, 2, Choice{1, half, 2}, []Choice{{1, half, 1},
			{2, half, 2}}},
		{"nothing possible", []float32{nan, negInf}, 1, 1, Choice{1, negInf, 2},
			[]Choice{{0, negInf, 1}}},
		{"outside the row", []float32{0}, 5, 1, Choice{5, negInf, 1}, []Choice{{0, 0, 1}}},
		{"empty row", nil, 0, AllLogprobs, Choice{0, negInf, 0}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s Sampler
			sampled, top := s.Logprobs(tt.row, tt.token, tt.k, false, nil)
			if sampled != tt.sampled || !slices.Equal(top, tt.top) {
				t.Errorf("got %v %v, want %v %v", sampled, top, tt.sampled, tt.top)
			}
		})
	}
}

// TestLogprobsOfATie keeps next to nothing of a whole vocabulary that is equally likely.
func TestLogprobsOfATie(t *testing.T) {
	const n = 3
	row := make([]float32, 50_000)
	row[9], row[40] = 2, 1
	var s Sampler
	for k, want := range map[int32][]int32{1: {9}, n: {9, 40, 0}, heapK + 1: nil} {
		_, top := s.Logprobs(row, 0, k, false, nil)
		if len(top) != int(k) || cap(top) > 8*int(k) {
			t.Errorf("%d of %d, in memory for %d", len(top), k, cap(top))
		}
		for i := range want {
			if top[i].Token != want[i] {
				t.Errorf("%d: %v", i, top[i])
			}
		}
	}
}
