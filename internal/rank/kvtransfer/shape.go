// Package kvtransfer moves KV blocks from the ranks of an engine that has computed a prompt to
// those of another one, which goes on from it (prefill/decode split).
//
// Every rank of an engine that takes part has an Agent: it serves the blocks that its driver has
// pinned, and fetches blocks that other engines have pinned. A rank reads from every rank that has
// a part of its layers and heads, so the two engines may be divided in different ways. A transfer
// is named by a secret that the producer's driver makes for one request and gives to its client
// (Ticket): an agent serves no block without it. Connections are TCP with TLS 1.3; the certificate
// of the first one is named by the ticket, those of the others by the first. Two ranks of one host
// speak TLS over a local socket, and the bytes of blocks go through memory that they share.
//
// On a connection the peer asks and the agent answers, both with a message of JSON after its length
// in four bytes, big-endian; after the answer to "read" come the bytes:
//
//	describe  the producer's Shape, and where its ranks are
//	read      layers, heads and blocks: for every layer and block the keys of the heads, then the
//	          values, as the cache has them, in portions
//	done      the peer's rank has what it needs; after those of all its ranks the blocks are free
package kvtransfer

import (
	"fmt"
	"iter"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Shape describes the KV cache of an engine, and which rank has which part of it.
type Shape struct {
	// Model names the weights.
	Model string `json:"model"`
	// DType is the element type of the model, ISA the instruction set, or the GPU's architecture,
	// that has computed it: on which the last bits depend, and how they lie in a block.
	DType string `json:"dtype"`
	ISA   string `json:"isa"`
	// CacheDType is the type of the cache itself (compute.ParseCacheDType).
	CacheDType string `json:"cache_dtype"`
	// BlockSize is in positions.
	BlockSize int `json:"block_size"`
	// Cache is what each layer of the whole model keeps.
	Cache  []compute.CacheLayer `json:"cache"`
	Layout layout.Layout        `json:"layout"`
	Stages layout.Stages        `json:"stages,omitempty"`
}

// Part is a part of the cache: layers that have as many heads each, and some of these heads, from
// the first to before the last.
type Part struct {
	Layers [2]int `json:"layers"`
	Heads  [2]int `json:"heads"`
}

// IncompatibleError says why an engine cannot use the blocks of another one.
type IncompatibleError struct {
	// What differs, and both values.
	What, Theirs, Ours string
}

func (e *IncompatibleError) Error() string {
	return fmt.Sprintf("the other engine's %s is %s, this one's %s", e.What, e.Theirs, e.Ours)
}

// check returns an *IncompatibleError that names the first difference of two shapes other than
// their layouts.
func (s *Shape) check(theirs *Shape) error {
	for _, c := range []struct {
		what         string
		theirs, ours any
	}{
		{"model", theirs.Model, s.Model},
		{"data type", theirs.DType, s.DType},
		{"data type of the KV cache (--kv-cache-dtype)", theirs.CacheDType, s.CacheDType},
		{"instruction set (--cpu-isa), or GPU,", theirs.ISA, s.ISA},
		{"block size", theirs.BlockSize, s.BlockSize},
		{"number of layers", len(theirs.Cache), len(s.Cache)},
	} {
		if c.theirs != c.ours {
			return &IncompatibleError{c.what, fmt.Sprint(c.theirs), fmt.Sprint(c.ours)}
		}
	}
	for i, ours := range s.Cache {
		if theirs := theirs.Cache[i]; theirs != ours {
			return &IncompatibleError{fmt.Sprintf("cache of layer %d", i), theirs.String(),
				ours.String()}
		}
	}
	return nil
}

// maxRanks bounds a layout that a peer sends, and each of its sizes.
const maxRanks = 4096

// sound refuses a layout that does not divide the shape.
func (s *Shape) sound() error {
	l := s.Layout
	for _, n := range []int{l.TP, l.PP, l.PCP, l.DP} {
		if n < 0 || n > maxRanks {
			return fmt.Errorf("a layout of %+v", l)
		}
	}
	if l = l.Sizes(); l.World() > maxRanks {
		return fmt.Errorf("a layout of %v", l)
	}
	for i, c := range s.Cache {
		if c.Heads < 1 || c.Heads%l.TP != 0 && l.TP%c.Heads != 0 {
			return fmt.Errorf("a layout of %v for layer %d of %v", l, i, c)
		}
	}
	if len(s.Stages) != l.PP-1 || !slices.IsSorted(s.Stages) ||
		l.PP > 1 && (s.Stages[0] < 0 || s.Stages[l.PP-2] > len(s.Cache)) {
		return fmt.Errorf("%d stages that begin at layers %v of %d", l.PP, s.Stages, len(s.Cache))
	}
	return nil
}

// layers are those of a rank, from the first to before the last.
func (s *Shape) layers(rank int) [2]int {
	from, to := s.Stages.Range(s.Layout.Sizes().Place(rank).PP, len(s.Cache))
	return [2]int{from, to}
}

// heads are those of a layer that a tensor parallel rank has: with more ranks than heads,
// neighbours have the same one.
func (s *Shape) heads(layer, tp int) [2]int {
	n, ranks := s.Cache[layer].Heads, s.Layout.Sizes().TP
	first := tp * n / ranks
	return [2]int{first, first + max(1, n/ranks)}
}

// Parts are what a rank has: a part for each run of layers that have as many heads.
func (s *Shape) Parts(rank int) (all []Part) {
	tp, own := s.Layout.Sizes().Place(rank).TP, s.layers(rank)
	for layer := own[0]; layer < own[1]; layer++ {
		if layer > own[0] && s.Cache[layer].Heads == s.Cache[layer-1].Heads {
			all[len(all)-1].Layers[1]++
			continue
		}
		all = append(all, Part{[2]int{layer, layer + 1}, s.heads(layer, tp)})
	}
	return all
}

// piece is a part that a rank has.
type piece struct {
	rank int
	Part
}

// cover divides a part among the ranks that have it: every head of every layer once, from the first
// rank that has it.
func (s *Shape) cover(p Part) ([]piece, error) {
	l := s.Layout.Sizes()
	var all []piece
	layer := p.Layers[0]
	for stage := range l.PP {
		from, to := s.Stages.Range(stage, len(s.Cache))
		end := min(to, p.Layers[1])
		if from > layer || end <= layer {
			continue
		}
		head := p.Heads[0]
		for tp := range l.TP {
			own := s.heads(layer, tp)
			if to := min(own[1], p.Heads[1]); own[0] <= head && to > head {
				all = append(all, piece{l.Rank(layout.Place{TP: tp, PP: stage}),
					Part{[2]int{layer, end}, [2]int{head, to}}})
				head = to
			}
		}
		if head == p.Heads[1] {
			layer = end
		}
	}
	if layer != p.Layers[1] {
		return nil, fmt.Errorf("the other engine's ranks (%v) lack layer %d", l, layer)
	}
	return all, nil
}

// Groups is in how many groups the layers are.
func (s *Shape) Groups() int {
	n := 1
	for _, l := range s.Cache {
		n = max(n, l.Group+1)
	}
	return n
}

// blocksOf are the blocks of a table that a layer of a group has a share of: the table lists one of
// each of so many groups in turn, with step.NoBlock for those that do not travel.
func blocksOf(table []uint32, group, groups int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := group; i < len(table); i += groups {
			if b := table[i]; b != step.NoBlock && !yield(int(b)) {
				return
			}
		}
	}
}

// Bytes is the size of a part of the blocks of a table.
func (s *Shape) Bytes(p Part, table []uint32) (n int64, err error) {
	dtype, err := compute.ParseCacheDType(s.CacheDType, 0)
	groups := s.Groups()
	for layer := p.Layers[0]; layer < p.Layers[1]; layer++ {
		c := s.Cache[layer]
		c.Heads = p.Heads[1] - p.Heads[0]
		for range blocksOf(table, c.Group, groups) {
			n += int64(c.Bytes(s.BlockSize, dtype))
		}
	}
	return n, err
}

// Spans are where a rank has a part of the blocks of a table, in the order in which they travel.
func (s *Shape) Spans(rank int, p Part, table []uint32) iter.Seq[compute.Span] {
	first, tp, groups := s.layers(rank)[0], s.Layout.Sizes().Place(rank).TP, s.Groups()
	return func(yield func(compute.Span) bool) {
		for layer := p.Layers[0]; layer < p.Layers[1]; layer++ {
			l, head := &s.Cache[layer], s.heads(layer, tp)[0]
			for b := range blocksOf(table, l.Group, groups) {
				for v := range l.Vectors() {
					if !yield(compute.Span{Layer: layer - first, Block: b, Values: v > 0,
						From: p.Heads[0] - head, To: p.Heads[1] - head}) {
						return
					}
				}
			}
		}
	}
}
