package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// random is a problem with all that a plan can be asked for.
func random(r *rand.Rand, mostExperts, mostRanks int) (load []int64, ranks Ranks) {
	experts, n := 1+r.IntN(mostExperts), 1+r.IntN(mostRanks)
	nodes := make([]int, n)
	for i := range nodes {
		nodes[i] = i * (1 + r.IntN(2)) / 2
	}
	ranks, err := Spread(experts, r.IntN(1+experts*(n-1)), nodes)
	if err != nil {
		panic(err)
	}
	return randomLoad(r, experts), ranks
}

// randomLoad has a few hot experts, or none, or no rows at all.
func randomLoad(r *rand.Rand, experts int) []int64 {
	load := make([]int64, experts)
	steep := []float64{0, 0.5, 1, 2}[r.IntN(4)]
	if r.IntN(10) == 0 {
		return load
	}
	for e := range load {
		load[e] = int64(10000 * r.Float64() / math.Pow(float64(1+e), steep))
	}
	r.Shuffle(experts, func(i, j int) { load[i], load[j] = load[j], load[i] })
	return load
}

// TestPlans holds plans for random loads, one after the other, to what they promise.
func TestPlans(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		load, ranks := random(r, 24, 9)
		now, err := Initial(len(load), ranks)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			gain := []float64{0, 0.05, 0.5}[r.IntN(3)]
			now = checkPlan(t, load, now, ranks, gain)
			load = randomLoad(r, len(load))
		}
	}
}

// checkPlan makes a plan for a layer, checks it, and returns the placement after it.
func checkPlan(t *testing.T, load []int64, now Placement, ranks Ranks, gain float64) Placement {
	t.Helper()
	before := make(Placement, len(now))
	for i := range now {
		before[i] = slices.Clone(now[i])
	}
	plan, err := Make([][]int64{load}, []Placement{now}, ranks, gain, Alone)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Make([][]int64{load}, []Placement{now}, ranks, gain, Alone)
	if err != nil || fmt.Sprint(plan) != fmt.Sprint(again) {
		t.Fatalf("%v, again %v, %v", plan, again, err)
	}
	if plan == nil {
		return now
	}
	next := plan.Layers[0]
	if err := next.Check(len(load), ranks); err != nil {
		t.Fatalf("%v from %v: %v", next, now, err)
	}
	was, is := slices.Max(now.Loads(load)), slices.Max(next.Loads(load))
	if is >= was || was-is < gain*was {
		t.Fatalf("the most loaded rank has %v, before %v: the gain is to be %v", is, was, gain)
	}
	if !near(plan.Before, Balancedness(now.Loads(load))) ||
		!near(plan.After, Balancedness(next.Loads(load))) {
		t.Fatalf("balancedness %v to %v", plan.Before, plan.After)
	}
	// The moves make one of the other, each from a rank that has the expert at present.
	made := before
	for _, m := range plan.Moves {
		if !slices.Contains(now[m.From], m.Expert) || slices.Contains(now[m.To], m.Expert) {
			t.Fatalf("%+v in %v", m, now)
		}
		if ranks.Nodes[m.From] != ranks.Nodes[m.To] {
			for r := range now {
				if ranks.Nodes[r] == ranks.Nodes[m.To] && slices.Contains(now[r], m.Expert) {
					t.Fatalf("%+v is from another node, rank %d has it: %v", m, r, now)
				}
			}
		}
		made[m.To][m.Slot] = m.Expert
	}
	if !slices.EqualFunc(made, next, slices.Equal) {
		t.Fatalf("moves make %v, not %v", made, next)
	}
	return next
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(a, b) }

// TestOptimum compares plans with the best placement of all, which is found by trying each. Copies
// of an expert have equal parts in both.
func TestOptimum(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	worst, sum, tried := 1.0, 0.0, 0
	for tried < 3000 {
		load, ranks := random(r, 5, 4)
		total := 0
		for _, s := range ranks.Slots {
			total += s
		}
		if total > 8 {
			continue
		}
		tried++
		now, err := Initial(len(load), ranks)
		if err != nil {
			t.Fatal(err)
		}
		got := slices.Max(checkPlan(t, load, now, ranks, 0).Loads(load))
		best := optimum(load, ranks)
		if best > got*(1+1e-9) {
			t.Fatalf("%v on %v: %v is less than the optimum %v", load, ranks, got, best)
		}
		if best > 0 {
			worst = max(worst, got/best)
			sum += got/best - 1
		}
		// The largest first is at most 4/3 of the optimum where any rank may have any number of
		// whole experts. With slots and copies that is no theorem: it is what is asked for here.
		if got > best*4/3 {
			t.Errorf("%v on %v: %v, the optimum is %v", load, ranks, got, best)
		}
	}
	mean := 1 + sum/float64(tried)
	t.Logf("at worst %.3f of the optimum, %.4f in the mean", worst, mean)
	if mean > 1.005 {
		t.Errorf("%.4f of the optimum in the mean", mean)
	}
}

// optimum is the least load of the most loaded rank of all placements.
func optimum(load []int64, ranks Ranks) float64 {
	p := make(Placement, len(ranks.Slots))
	best := math.Inf(1)
	var fill func(rank, from int)
	fill = func(rank, from int) {
		switch {
		case rank == len(p):
			if p.Check(len(load), ranks) == nil {
				best = min(best, slices.Max(p.Loads(load)))
			}
			return
		case len(p[rank]) == ranks.Slots[rank]:
			fill(rank+1, 0)
			return
		}
		for e := from; e < len(load); e++ {
			p[rank] = append(p[rank], e)
			fill(rank, e+1)
			p[rank] = p[rank][:len(p[rank])-1]
		}
	}
	fill(0, 0)
	return best
}

// TestFewMoves holds plans for loads that drift to a part of the moves of placements that are made
// from nothing, for nearly the same balance.
func TestFewMoves(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	nodes := make([]int, 8)
	ranks, err := Spread(64, 16, nodes)
	if err != nil {
		t.Fatal(err)
	}
	now, err := Initial(64, ranks)
	if err != nil {
		t.Fatal(err)
	}
	load := make([]int64, 64)
	for e := range load {
		load[e] = int64(10000 / (1 + e))
	}
	r.Shuffle(64, func(i, j int) { load[i], load[j] = load[j], load[i] })
	now = checkPlan(t, load, now, ranks, 0)
	moves, fresh := 0, 0
	for range 30 {
		for e := range load {
			load[e] = int64(float64(load[e]) * (0.8 + 0.4*r.Float64()))
		}
		m := newMaker(len(load), ranks)
		m.anew(load)
		best := m.best
		fresh += len(m.appendMoves(nil, 0, now, best.renumbered(now).placement(now)))
		plan, err := Make([][]int64{load}, []Placement{now}, ranks, 0.02, Alone)
		if err != nil {
			t.Fatal(err)
		}
		if plan != nil {
			moves, now = moves+len(plan.Moves), plan.Layers[0]
		}
		// What is left undone may be as little as the least gain, beside what is nearly as good.
		if most := slices.Max(now.Loads(load)); most > best.most()*(1+nearly)/(1-0.02)*(1+1e-9) {
			t.Errorf("the most loaded rank has %v, from nothing %v", most, best.most())
		}
	}
	t.Logf("%d moves, %d from nothing", moves, fresh)
	if moves*4 > fresh {
		t.Errorf("%d moves, %d from nothing", moves, fresh)
	}
}

// TestTime bounds a plan for the largest models, from the first placement.
func TestTime(t *testing.T) {
	load, present, ranks := large(t)
	began := time.Now()
	plan, err := Make(load, present, ranks, 0.02, Alone)
	took := time.Since(began)
	if err != nil || plan == nil {
		t.Fatal(plan, err)
	}
	t.Logf("%v: %.3f to %.3f, %d moves", took, plan.Before, plan.After, len(plan.Moves))
	if took > 5*time.Second { // many times what it takes: other tests run beside it
		t.Errorf("took %v", took)
	}
}

// TestTogether wants the same plan of one part and of several.
func TestTogether(t *testing.T) {
	load, present, ranks := large(t)
	one, err := Make(load, present, ranks, 0.02, Alone)
	if err != nil || one == nil {
		t.Fatal(one, err)
	}
	for _, parts := range []int{4, 100} {
		several, err := Make(load, present, ranks, 0.02, beside(parts))
		if err != nil || !reflect.DeepEqual(several, one) {
			t.Errorf("%d parts have another plan, %v", parts, err)
		}
	}
}

// beside has a goroutine for each of so many parts.
func beside(parts int) Together {
	return func(f func(part, parts int)) {
		var running sync.WaitGroup
		for part := range parts {
			running.Go(func() { f(part, parts) })
		}
		running.Wait()
	}
}

// large is 61 layers of 256 experts on 64 ranks of 8 nodes, with 32 redundant experts.
func large(t testing.TB) ([][]int64, []Placement, Ranks) {
	nodes := make([]int, 64)
	for r := range nodes {
		nodes[r] = r / 8
	}
	ranks, err := Spread(256, 32, nodes)
	if err != nil {
		t.Fatal(err)
	}
	first, err := Initial(256, ranks)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(7, 8))
	load, present := make([][]int64, 61), make([]Placement, 61)
	for l := range load {
		load[l], present[l] = make([]int64, 256), first
		for e := range load[l] {
			load[l][e] = int64(1000 * math.Exp(0.8*r.NormFloat64()))
		}
	}
	return load, present, ranks
}

// BenchmarkMake also plans for loads that are steep: the n-th expert has 1/n of the first one's.
func BenchmarkMake(b *testing.B) {
	load, present, ranks := large(b)
	steep := make([][]int64, len(load))
	r := rand.New(rand.NewPCG(11, 12))
	for l := range steep {
		for e := range load[l] {
			steep[l] = append(steep[l], int64(10000*r.Float64()/float64(1+e)))
		}
		r.Shuffle(len(steep[l]), func(i, j int) {
			steep[l][i], steep[l][j] = steep[l][j], steep[l][i]
		})
	}
	for name, load := range map[string][][]int64{"even": load, "steep": steep} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Make(load, present, ranks, 0.02,
					beside(runtime.GOMAXPROCS(0))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestCopies holds the choice of copies to equal parts, and to as many rows as those allow on the
// source itself and on its node.
func TestCopies(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 500 {
		load, ranks := random(r, 12, 8)
		p, err := Initial(len(load), ranks)
		if err != nil {
			t.Fatal(err)
		}
		p = checkPlan(t, load, p, ranks, 0)
		everyone := p.Held(len(load), ranks.Nodes, Everyone)
		for e, copies := range p.copies(len(load)) {
			parts, own := map[int]int{}, map[int]int{}
			near, most := 0, 0
			onNode := map[int][2]int{} // sources, copies
			for source, node := range ranks.Nodes {
				c := p.Held(len(load), ranks.Nodes, source)
				n := onNode[node]
				n[0]++
				if slices.Contains(p[source], e) {
					n[1]++
				}
				onNode[node] = n
				for turn := range copies {
					at := int(c.Of(int32(e), uint64(turn)))
					if !slices.Contains(p[at], e) {
						t.Fatalf("expert %d of %v at %d", e, p, at)
					}
					if slices.Contains(p[source], e) && at != source {
						t.Fatalf("a row of rank %d for its expert %d goes to rank %d", source, e,
							at)
					}
					parts[at]++
					if ranks.Nodes[at] == node {
						near++
					}
				}
			}
			for _, n := range onNode {
				most += min(n[0]*copies, n[1]*len(ranks.Nodes))
			}
			if near != most {
				t.Errorf("%d of %d turns for expert %d of %v on nodes %v stay on their node", near,
					most, e, p, ranks.Nodes)
			}
			for turn := range copies {
				own[int(everyone.Of(int32(e), uint64(turn+3)))]++
			}
			for at, n := range parts {
				if n != len(ranks.Nodes) || own[at] != 1 || len(parts) != copies {
					t.Fatalf("expert %d has %d copies, turns %v and %v", e, copies, parts, own)
				}
			}
		}
	}
}

// FuzzMake wants an error or a sound plan of whatever it is given.
func FuzzMake(f *testing.F) {
	f.Add(uint8(4), []byte{0, 0, 1, 1}, []byte{2, 2, 2, 2}, []byte{90, 10, 10, 10}, 0.02)
	f.Add(uint8(3), []byte{0, 1}, []byte{2, 1}, []byte{1, 2, 3}, 0.0)
	f.Fuzz(func(t *testing.T, experts uint8, nodes, slots, rows []byte, gain float64) {
		if len(nodes) > 16 || len(slots) > 16 || len(rows) > 64 || experts > 64 {
			return
		}
		var ranks Ranks
		for _, n := range nodes {
			ranks.Nodes = append(ranks.Nodes, int(n))
		}
		for _, s := range slots {
			ranks.Slots = append(ranks.Slots, int(int8(s)))
		}
		load := make([]int64, len(rows))
		for e, n := range rows {
			load[e] = int64(n)*int64(n) - 1
		}
		now, err := Initial(int(experts), ranks)
		if err != nil {
			return
		}
		if err := now.Check(int(experts), ranks); err != nil {
			t.Fatal(err)
		}
		if _, err := Make([][]int64{load}, []Placement{now}, ranks, gain, Alone); err != nil {
			return
		}
		checkPlan(t, load, now, ranks, gain)
	})
}
