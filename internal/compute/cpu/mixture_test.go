package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
)

// TestLargest compares with a stable sort, over scores with many equals.
func TestLargest(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		p := make([]float32, 1+r.IntN(40))
		for i := range p {
			p[i] = float32(r.IntN(20)) / 8
		}
		k := 1 + r.IntN(len(p))
		order := make([]int32, len(p))
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(a, b int32) int {
			switch {
			case p[a] > p[b]:
				return -1
			case p[a] < p[b]:
				return 1
			}
			return 0
		})
		ids, values := make([]int32, k), make([]float32, k)
		largest(p, ids, values)
		if !slices.Equal(ids, order[:k]) {
			t.Fatalf("the %d largest of %v are at %v, not %v", k, p, ids, order[:k])
		}
		for i, id := range ids {
			if values[i] != p[id] {
				t.Fatalf("value %d is %v, not %v", i, values[i], p[id])
			}
		}
	}
}

// TestOrder wants each expert's rows in ascending order with their weights, and every choice
// exactly once.
func TestOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		experts := 1 + r.IntN(12)
		m, k := new(mixing), 1+r.IntN(experts)
		rows := 1 + r.IntN(30)
		type choice struct {
			expert, row int
			weight      float32
		}
		var want []choice
		for row := range rows {
			for _, e := range r.Perm(experts)[:k] {
				w := r.Float32()
				m.chosen = append(m.chosen, int32(e))
				m.weights = append(m.weights, w)
				want = append(want, choice{e, row, w})
			}
		}
		slices.SortStableFunc(want, func(a, b choice) int { return a.expert - b.expert })
		m.order(m.chosen, m.weights, k, experts)
		var got []choice
		for e := range experts {
			for i := m.first[e]; i < m.first[e+1]; i++ {
				got = append(got, choice{e, int(m.rowsOf[i]), m.weightOf[i]})
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d rows to %d of %d experts: %v, not %v",
				rows, k, experts, got, want)
		}
	}
}

// TestClosedGroups: no expert of a closed group is chosen, though a correction makes the choice of
// one of an open group negative.
func TestClosedGroups(t *testing.T) {
	m := &mixing{choice: make([]float32, 4)}
	chosen, weights := make([]int32, 2), make([]float32, 2)
	m.choose([]float32{0.9, 0.1, 0.2, 0.2}, chosen, weights, &compute.Routing{PerToken: 2,
		Correction: Over([]float32{0, -0.5, 0, 0}, 1, 4).Memory, Groups: 2, TopGroups: 1, Best: 2})
	if !slices.Equal(chosen, []int32{0, 1}) || !slices.Equal(weights, []float32{0.9, 0.1}) {
		t.Errorf("chosen are %v, of weights %v", chosen, weights)
	}
}

// TestNear chooses an expert by products, then another by those that are left: the weight of each
// is its part of those that are near it.
func TestNear(t *testing.T) {
	d, err := New(Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var m mixing
	for _, tt := range []struct {
		products, weights []float32
		chosen            []int32
	}{
		{[]float32{1, 10, 9, 8}, []float32{0.7311, 1}, []int32{1, 2}},
		{[]float32{-10, -40, -50, -11}, []float32{0.7311, 1}, []int32{0, 3}},
		{[]float32{3, 0, 0, -1}, []float32{1, 0.5}, []int32{0, 1}},
	} {
		scores := Over(slices.Clone(tt.products), 1, 4)
		m.route(d, scores, &compute.Routing{PerToken: 2, Near: 0.105})
		if !slices.Equal(m.chosen, tt.chosen) || !slices.EqualFunc(m.weights, tt.weights,
			func(a, b float32) bool { return math.Abs(float64(a-b)) < 1e-4 }) {
			t.Errorf("%v: chosen are %v, of weights %v", tt.products, m.chosen, m.weights)
		}
	}
}

// BenchmarkRoute is the choice of 8 of 128 experts for one row.
func BenchmarkRoute(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	p := make([]float32, 128)
	for i := range p {
		p[i] = r.Float32()
	}
	ids, values := make([]int32, 8), make([]float32, 8)
	for b.Loop() {
		largest(p, ids, values)
	}
}
