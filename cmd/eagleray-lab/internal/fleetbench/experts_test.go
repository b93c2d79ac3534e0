package fleetbench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func options(m Mixture, ranks ...int) ExpertOptions {
	return ExpertOptions{Mixture: m, Ranks: ranks, RanksPerNode: 8, Rows: 64, DispatchBytes: 4,
		CombineBytes: 8, WeightBits: 16, MemoryGBs: 100, TFLOPS: 2,
		Links: Links{RankGBs: 5, LinkGBs: 2, NodeGBs: 12.5, RankUS: 5, NodeUS: 30, MessageUS: 5}}
}

// TestVisits holds the closed form to a simulation: rows that choose experts at random, from ranks
// at random, on fleets that come out even and that do not.
func TestVisits(t *testing.T) {
	const rows = 40_000
	r := rand.New(rand.NewPCG(4, 2))
	for _, c := range []struct{ experts, k, ranks, perNode int }{
		{128, 8, 8, 8}, {128, 8, 24, 8}, {256, 8, 64, 8}, {256, 8, 1024, 8}, {8, 2, 3, 2},
		{128, 4, 50, 7}, {60, 60, 7, 3}, {5, 1, 9, 4},
	} {
		o := options(Mixture{"", 16, 16, c.experts, c.k, 1}, c.ranks)
		o.RanksPerNode = c.perNode
		f := Experts(o).Fleets[0]
		// Ranks hold consecutive experts, the first ones one more.
		var rankOf []int
		for rank := range c.ranks {
			held := c.experts / c.ranks
			if rank < c.experts%c.ranks {
				held++
			}
			for range held {
				rankOf = append(rankOf, rank)
			}
		}
		var visits, near, far moments
		for range rows {
			visited := map[int]bool{}
			for _, expert := range r.Perm(c.experts)[:c.k] {
				visited[rankOf[expert]] = true
			}
			home := r.IntN(c.ranks)
			var n, f float64
			for rank := range visited {
				if rank/c.perNode != home/c.perNode {
					f++
				} else if rank != home {
					n++
				}
			}
			visits.add(float64(len(visited)))
			near.add(n)
			far.add(f)
		}
		name := fmt.Sprintf("%d of %d experts on %d ranks", c.k, c.experts, c.ranks)
		visits.hold(t, name+", visits", f.Visits)
		near.hold(t, name+", within the node", f.Near)
		far.hold(t, name+", between nodes", f.Far)
	}
}

// moments are those of a sample.
type moments struct{ n, sum, squares float64 }

func (m *moments) add(v float64) { m.n, m.sum, m.squares = m.n+1, m.sum+v, m.squares+v*v }

// hold wants an expectation within five standard errors of the sample's mean.
func (m *moments) hold(t *testing.T, name string, want float64) {
	t.Helper()
	mean := m.sum / m.n
	deviation := math.Sqrt(max(0, m.squares/m.n-mean*mean) / m.n)
	if math.Abs(mean-want) > 5*deviation+1e-9 {
		t.Errorf("%s: %g ± %g of random rows, %g by the formula", name, mean, deviation, want)
	}
}

// TestExperts adds up fleets that can be added up by hand.
func TestExperts(t *testing.T) {
	m := Mixture{"", 100, 10, 4, 2, 3}
	r := Experts(options(m, 2, 1, 16))
	near := func(name string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9*math.Abs(want) {
			t.Errorf("%s: %g, not %g", name, got, want)
		}
	}
	one := r.Fleets[0]
	if one.Ranks != 1 || one.Nodes != 1 || one.MostExperts != 4 || one.Visits != 1 {
		t.Errorf("%+v", one)
	}
	near("bytes of one rank", one.Bytes()+one.DispatchUS+one.CombineUS, 0)
	near("weights", one.WeightGB, 3*4*3*100*10*2/1e9)
	// Two experts a rank: a row misses a rank with (2·1)/(4·3).
	two := r.Fleets[1]
	near("visits", two.Visits, 2*(1-1./6))
	near("to the other", two.Near, 1-1./6)
	near("dispatch", two.NearBytes.Dispatch, 3*64*100*4*(1-1./6))
	near("combine", two.NearBytes.Combine, 3*64*100*8*(1-1./6))
	near("messages", two.NearMessages, 6)
	near("far", two.FarBytes.Dispatch+two.FarMessages, 0)
	near("dispatch time", two.DispatchUS, 3*5+two.NearBytes.Dispatch/5e3)
	// Sixteen ranks on two nodes: four, all on the first, have an expert each.
	many := r.Fleets[2]
	near("visits", many.Visits, 2)
	near("to the node", many.Near, 2*7./16)
	near("to the other node", many.Far, 2*8./16)
	near("messages between nodes", many.FarMessages, 2*3*8)
	near("bytes between nodes", many.FarBytes.Combine, 3*64*100*8+3*8*MessageHeader)
	near("time between nodes", many.CombineUS, 3*5+many.NearBytes.Combine/5e3+3*30+3*8*5+
		8*many.FarBytes.Combine/12.5e3)
	o := options(m, 16)
	o.LinkGBs = 1
	slow := Experts(o).Fleets[0]
	near("time between nodes of slow links", slow.CombineUS-many.CombineUS,
		many.FarBytes.Combine/1e3-8*many.FarBytes.Combine/12.5e3)
	chosen := 1 - math.Pow(0.5, 16*64)
	near("experts", many.ExpertsUS, 3*max(chosen*3*100*10*2/100e3, 16*64*.5*2*3*100*10/2e6))
}

// TestBestSize wants fleets to pay up to a size that depends on the links.
func TestBestSize(t *testing.T) {
	sizes := []int{1, 8, 16, 32, 64, 128, 256, 512, 1024}
	for _, m := range Mixtures() {
		o := options(m, sizes...)
		if err := o.Check(); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
		o.NodeGBs, o.LinkGBs, o.RankGBs, o.NodeUS, o.MessageUS = 1e6, 1e6, 1e6, 0, 0
		free := Experts(o)
		o.NodeGBs, o.LinkGBs, o.RankGBs, o.NodeUS, o.MessageUS = 0.1, 0.1, 0.1, 1000, 100
		dear := Experts(o)
		if free.Best < 8 || dear.Best >= free.Best {
			t.Errorf("%s: best with %d ranks over free links, %d over dear ones", m.Name, free.Best,
				dear.Best)
		}
		for _, g := range free.Growth {
			if g.Kind == "messages" && math.Abs(g.Power-2) > 0.05 {
				t.Errorf("%s: messages of the fleet grow with the power %g", m.Name, g.Power)
			}
		}
	}
}

func TestPlotExperts(t *testing.T) {
	r := Experts(options(Mixtures()[0], 1, 8, 64))
	svg := string(PlotExperts(&r))
	for _, word := range []string{"Step of Qwen3-30B-A3B, 64 rows a rank", "dispatch", "combine",
		"experts", "between nodes", "of the fleet", " ms<", " MB<", ">64<"} {
		if !strings.Contains(svg, word) {
			t.Errorf("no %q in the picture", word)
		}
	}
	if n := strings.Count(svg, "<circle"); n != 2*3+2*2+(2+1+2)+2 {
		t.Errorf("%d points", n)
	}
	r = Experts(options(Mixtures()[0], 1))
	svg = string(PlotExperts(&r))
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Error("one rank makes a picture of no numbers")
	}
}

func TestExpertOptions(t *testing.T) {
	nan := math.NaN()
	for want, change := range map[string]func(o *ExpertOptions){
		"--num-experts-per-tok 129 is not 1 to 128": func(o *ExpertOptions) { o.PerToken = 129 },
		"--rows 0 is not 1 to 1048576":              func(o *ExpertOptions) { o.Rows = 0 },
		"--node-bandwidth 0 is not 0.001 to 1e+06":  func(o *ExpertOptions) { o.NodeGBs = 0 },
		"--message-time NaN is not 0 to 1e+06":      func(o *ExpertOptions) { o.MessageUS = nan },
		"--combine-bytes 1e+09 is not 0.5 to": func(o *ExpertOptions) {
			o.CombineBytes = 1e9
		},
		"--ranks-per-node 5000 is not 1 to 4096": func(o *ExpertOptions) {
			o.RanksPerNode = 5000
		},
		"--memory-bandwidth -1 is not 0.001 to": func(o *ExpertOptions) { o.MemoryGBs = -1 },
	} {
		o := options(Mixtures()[0], 8)
		change(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}
