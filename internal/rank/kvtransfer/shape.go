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
//	          values, as the cache has them
//	done      the peer's rank has what it needs; after those of all its ranks the blocks are free
package kvtransfer

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/layout"
)

// Shape describes the KV cache of an engine, and which rank has which part of it.
type Shape struct {
	// Model names the weights.
	Model string `json:"model"`
	// DType is the element type of the cache, ISA the instruction set that has computed it, on
	// which the last bits depend.
	DType string `json:"dtype"`
	ISA   string `json:"isa"`
	// BlockSize is in positions. KVHeads, HeadDim and Layers are the whole model's.
	BlockSize int           `json:"block_size"`
	KVHeads   int           `json:"kv_heads"`
	HeadDim   int           `json:"head_dim"`
	Layers    int           `json:"layers"`
	Layout    layout.Layout `json:"layout"`
	Stages    layout.Stages `json:"stages,omitempty"`
}

// Part is a part of the cache: layers and key/value heads, each from the first to before the last.
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
		{"instruction set (--cpu-isa)", theirs.ISA, s.ISA},
		{"block size", theirs.BlockSize, s.BlockSize},
		{"number of layers", theirs.Layers, s.Layers},
		{"number of key/value heads", theirs.KVHeads, s.KVHeads},
		{"head dimension", theirs.HeadDim, s.HeadDim},
	} {
		if c.theirs != c.ours {
			return &IncompatibleError{c.what, fmt.Sprint(c.theirs), fmt.Sprint(c.ours)}
		}
	}
	return nil
}

// maxRanks bounds a layout that a peer sends, and each of its sizes.
const maxRanks = 4096

// sound refuses a layout that does not divide the shape.
func (s *Shape) sound() error {
	l := s.Layout
	for _, n := range []int{l.TP, l.PP, l.PCP} {
		if n < 0 || n > maxRanks {
			return fmt.Errorf("a layout of %+v", l)
		}
	}
	if l = l.Sizes(); s.KVHeads < 1 || l.World() > maxRanks || s.KVHeads%l.TP != 0 &&
		l.TP%s.KVHeads != 0 {
		return fmt.Errorf("a layout of %v for %d key/value heads", l, s.KVHeads)
	}
	if len(s.Stages) != l.PP-1 || !slices.IsSorted(s.Stages) ||
		l.PP > 1 && (s.Stages[0] < 0 || s.Stages[l.PP-2] > s.Layers) {
		return fmt.Errorf("%d stages that begin at layers %v of %d", l.PP, s.Stages, s.Layers)
	}
	return nil
}

// Part returns the part of a rank.
func (s *Shape) Part(rank int) Part {
	l := s.Layout.Sizes()
	at := l.Place(rank)
	first := at.TP * s.KVHeads / l.TP
	var p Part
	p.Layers[0], p.Layers[1] = s.Stages.Range(at.PP, s.Layers)
	p.Heads = [2]int{first, first + max(1, s.KVHeads/l.TP)}
	return p
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
		head := p.Heads[0]
		var end int
		for tp := range l.TP {
			rank := l.Rank(layout.Place{TP: tp, PP: stage})
			own := s.Part(rank)
			if end = min(own.Layers[1], p.Layers[1]); own.Layers[0] > layer || end <= layer {
				break
			}
			if to := min(own.Heads[1], p.Heads[1]); own.Heads[0] <= head && to > head {
				all = append(all, piece{rank, Part{[2]int{layer, end}, [2]int{head, to}}})
				head = to
			}
			if head == p.Heads[1] {
				layer = end
				break
			}
		}
	}
	if layer != p.Layers[1] {
		return nil, fmt.Errorf("the other engine's ranks (%v) lack layer %d", l, layer)
	}
	return all, nil
}

// headBytes is the size of the keys, or values, of one head in one block.
func (s *Shape) headBytes() (int, error) {
	dtype, err := compute.ParseDType(s.DType)
	if err != nil {
		return 0, err
	}
	c := compute.CacheShape{Layers: 1, Blocks: 1, BlockSize: s.BlockSize, KVHeads: 1,
		HeadDim: s.HeadDim, DType: dtype}
	return c.BytesPerBlock() / 2, c.Check()
}
