package layout

import (
	"slices"
	"testing"
)

func TestPlaces(t *testing.T) {
	for _, l := range []Layout{{}, {TP: 4}, {PP: 3}, {PCP: 2}, {TP: 2, PP: 2}, {TP: 2, PP: 3,
		PCP: 2},
		{TP: 8, PP: 4, PCP: 2}, {DP: 3}, {TP: 2, PP: 2, DP: 4, EP: true}} {
		sizes := l.Sizes()
		if got := sizes.TP * sizes.PP * sizes.PCP * sizes.DP; got != l.World() {
			t.Errorf("%v: world %d, not %d", l, l.World(), got)
		}
		if p := l.Place(l.Output()); p != (Place{PP: sizes.PP - 1}) {
			t.Errorf("%v: output rank %d is at %+v", l, l.Output(), p)
		}
		seen := map[Place]bool{}
		for rank := range l.World() {
			p := l.Place(rank)
			if l.Rank(p) != rank || seen[p] {
				t.Errorf("%v: rank %d is at %+v, which is rank %d's", l, rank, p, l.Rank(p))
			}
			seen[p] = true
			for name, g := range map[string]struct {
				ranks    []int
				size, at int
			}{
				"TP":  {l.TPGroup(rank), sizes.TP, p.TP},
				"PP":  {l.PPGroup(rank), sizes.PP, p.PP},
				"PCP": {l.PCPGroup(rank), sizes.PCP, p.PCP},
				"DP":  {l.DPGroup(rank), sizes.DP, p.DP},
			} {
				if len(g.ranks) != g.size || g.ranks[g.at] != rank || !slices.IsSorted(g.ranks) {
					t.Errorf("%v: %s group of rank %d is %v", l, name, rank, g.ranks)
				}
			}
		}
	}
}

func TestGroups(t *testing.T) {
	l := Layout{TP: 2, PP: 2, PCP: 2, DP: 2}
	for _, c := range []struct {
		name      string
		got, want []int
	}{
		{"TP", l.TPGroup(5), []int{4, 5}},
		{"PP", l.PPGroup(5), []int{5, 13}},
		{"PCP", l.PCPGroup(5), []int{5, 7}},
		{"DP", l.DPGroup(5), []int{1, 5}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s group of rank 5: %v, not %v", c.name, c.got, c.want)
		}
	}
	if l.Output() != 8 {
		t.Errorf("output rank %d, not 8", l.Output())
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		layout         Layout
		rank           int
		suffix, string string
	}{
		{Layout{}, 0, "", "TP 1"},
		{Layout{TP: 4}, 3, "_TP3", "TP 4"},
		{Layout{PP: 2}, 1, "_PP1", "PP 2"},
		{Layout{TP: 2, PP: 2}, 2, "_TP0_PP1", "TP 2 × PP 2"},
		{Layout{TP: 2, DP: 2, EP: true}, 2, "_DP1_TP0", "DP 2 × TP 2 × EP"},
		{Layout{TP: 3, PP: 4, PCP: 2}, 23, "_TP2_PP3_PCP1", "TP 3 × PP 4 × PCP 2"},
	} {
		if got := c.layout.Suffix(c.rank); got != c.suffix {
			t.Errorf("%v, rank %d: %q, not %q", c.layout, c.rank, got, c.suffix)
		}
		if got := c.layout.String(); got != c.string {
			t.Errorf("%+v is %q, not %q", c.layout, got, c.string)
		}
	}
}

func TestExpertNodes(t *testing.T) {
	l := Layout{TP: 2, PP: 2, DP: 2, EP: true}
	nodes := make([]int, l.World())
	for r := range nodes {
		nodes[r] = 10 + r
	}
	for stage := range 2 {
		list := l.ExpertNodes(stage, nodes)
		for r := range nodes {
			if share, _ := l.Experts(r); l.Place(r).PP == stage && list[share] != nodes[r] {
				t.Errorf("stage %d: share %d is on %d, want %d", stage, share, list[share],
					nodes[r])
			}
		}
	}
	if got := l.ExpertNodes(1, nil); len(got) != 4 || got[3] != 0 {
		t.Errorf("one node: %v", got)
	}
}

func TestCaching(t *testing.T) {
	l := Layout{TP: 2, PP: 2, DP: 3, EP: true}
	for rank := range l.World() {
		own, number := l.Caching(rank)
		at := l.Place(rank)
		at.DP = 0
		if own.World() != 4 || own.Place(number) != at {
			t.Errorf("rank %d is number %d of %v, at %+v", rank, number, own, own.Place(number))
		}
	}
}
