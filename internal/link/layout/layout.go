// Package layout says how the ranks of a group divide a model: which rank has which layers, which
// share of each, and which rows of a long prompt. It is pure arithmetic; everything that must agree
// on which rank computes what (launchers, the join of a group, runners) asks it.
package layout

import (
	"fmt"
	"strings"
)

// Layout is the sizes of a group's dimensions. The zero Layout is one rank; a size of 0 stands for
// 1.
type Layout struct {
	// TP is how many ranks divide each layer (tensor parallelism), PP how many stages divide the
	// layers (pipeline parallelism), PCP how many ranks divide the rows of long prompts (prefill
	// context parallelism).
	TP, PP, PCP int
	// DP is in how many the requests of a group are divided, each with a KV cache of its own, which
	// share the experts of mixtures (data parallel attention).
	DP int `json:",omitempty"`
	// EP says that the ranks of a stage hold whole experts (expert parallelism), not a share of
	// each.
	EP bool `json:",omitempty"`
}

// Place is a rank's place in each dimension, from 0.
type Place struct{ TP, PP, PCP, DP int }

// Sizes returns l with 1 for each size that is 0.
func (l Layout) Sizes() Layout {
	return Layout{TP: max(l.TP, 1), PP: max(l.PP, 1), PCP: max(l.PCP, 1), DP: max(l.DP, 1),
		EP: l.EP}
}

// World is the number of ranks.
func (l Layout) World() int {
	s := l.Sizes()
	return s.TP * s.PP * s.PCP * s.DP
}

// Rows is among how many ranks the rows of a step are divided, be it those of long prompts or of
// requests.
func (l Layout) Rows() int {
	s := l.Sizes()
	return s.PCP * s.DP
}

// Output is the rank that samples and answers plans: the first of the last stage.
func (l Layout) Output() int {
	s := l.Sizes()
	return s.World() - s.TP*s.Rows()
}

// Place is the place of a rank. Ranks are laid out with tensor parallelism innermost and stages
// outermost, as vLLM does: rank = ((pp·DP + dp)·PCP + pcp)·TP + tp.
func (l Layout) Place(rank int) Place {
	s := l.Sizes()
	return Place{TP: rank % s.TP, PCP: rank / s.TP % s.PCP, DP: rank / (s.TP * s.PCP) % s.DP,
		PP: rank / (s.TP * s.PCP * s.DP)}
}

// Rank is the rank at a place.
func (l Layout) Rank(p Place) int {
	s := l.Sizes()
	return ((p.PP*s.DP+p.DP)*s.PCP+p.PCP)*s.TP + p.TP
}

// TPGroup is the ranks that divide the layers with a rank, in the order of their places.
func (l Layout) TPGroup(rank int) []int {
	p := l.Place(rank)
	return l.along(l.Sizes().TP, func(i int) Place { p.TP = i; return p })
}

// PPGroup is the ranks that a hidden state passes through with a rank, first stage first.
func (l Layout) PPGroup(rank int) []int {
	p := l.Place(rank)
	return l.along(l.Sizes().PP, func(i int) Place { p.PP = i; return p })
}

// PCPGroup is the ranks that divide long prompts with a rank, in the order of their places.
func (l Layout) PCPGroup(rank int) []int {
	p := l.Place(rank)
	return l.along(l.Sizes().PCP, func(i int) Place { p.PCP = i; return p })
}

// DPGroup is the ranks that have its place in the others among which requests are divided, in the
// order of those.
func (l Layout) DPGroup(rank int) []int {
	p := l.Place(rank)
	return l.along(l.Sizes().DP, func(i int) Place { p.DP = i; return p })
}

// Row is a rank's number among those that divide rows, by DP and then by PCP.
func (l Layout) Row(rank int) int {
	p := l.Place(rank)
	return p.DP*l.Sizes().PCP + p.PCP
}

// Caching is the layout of the ranks that have a KV cache together with a rank, those of its DP
// place, and the rank's number among them.
func (l Layout) Caching(rank int) (of Layout, number int) {
	p := l.Place(rank)
	p.DP, l.DP = 0, 1
	return l, l.Rank(p)
}

// Experts is which share of the experts of its stage a rank has, of how many shares. Ranks that
// divide long prompts have the same ones.
func (l Layout) Experts(rank int) (share, of int) {
	s, p := l.Sizes(), l.Place(rank)
	return p.DP*s.TP + p.TP, s.DP * s.TP
}

// ExpertNodes is on which node each share of the experts of a stage is. nodes are those of all
// ranks; nil is one node.
func (l Layout) ExpertNodes(stage int, nodes []int) []int {
	s := l.Sizes()
	at := l.along(s.DP*s.TP, func(i int) Place {
		return Place{DP: i / s.TP, TP: i % s.TP, PP: stage}
	})
	for share, rank := range at {
		if at[share] = 0; nodes != nil {
			at[share] = nodes[rank]
		}
	}
	return at
}

func (l Layout) along(n int, at func(i int) Place) []int {
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = l.Rank(at(i))
	}
	return ranks
}

// Suffix is what the name of a rank's actor or process ends with: its place in each dimension that
// is larger than 1, as "_TP0_PP1_PCP0".
func (l Layout) Suffix(rank int) string {
	s, p := l.Sizes(), l.Place(rank)
	var b strings.Builder
	for _, d := range []struct {
		name     string
		size, at int
	}{{"DP", s.DP, p.DP}, {"TP", s.TP, p.TP}, {"PP", s.PP, p.PP}, {"PCP", s.PCP, p.PCP}} {
		if d.size > 1 {
			fmt.Fprintf(&b, "_%s%d", d.name, d.at)
		}
	}
	return b.String()
}

// String lists the sizes, as "TP 2 × PP 2"; those of 1 are left out, unless all are.
func (l Layout) String() string {
	s := l.Sizes()
	var parts []string
	for _, d := range []struct {
		name string
		size int
	}{{"DP", s.DP}, {"TP", s.TP}, {"PP", s.PP}, {"PCP", s.PCP}} {
		if d.size > 1 {
			parts = append(parts, fmt.Sprintf("%s %d", d.name, d.size))
		}
	}
	if parts == nil {
		parts = append(parts, "TP 1")
	}
	if s.EP {
		parts = append(parts, "EP")
	}
	return strings.Join(parts, " × ")
}
