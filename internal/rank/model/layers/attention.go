package layers

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
)

// Attention is causal attention over the KV cache. The heads are divided among the ranks.
type Attention struct {
	*rank
	layer        int // in the cache
	args         attention.Args
	rotary       *Rotary
	qNorm, kNorm []float32
	whole        *wholeNorms // nil for none
	eps          float32
}

// AttentionOptions are the points in which attention layers differ.
type AttentionOptions struct {
	// Window, if positive, limits a row at position p to the positions p-Window+1 to p.
	Window int
	// Rotary turns queries and keys; nil for models that have positions another way.
	Rotary *Rotary
	// HeadNorms says that each query and key head is normalised by its root mean square before it
	// is turned, with Eps: modules q_norm and k_norm. Shifted adds 1 to their weights.
	HeadNorms, Shifted bool
	// WholeNorms says that all query heads together, and all key heads, are normalised: modules
	// q_norm and k_norm.
	WholeNorms bool
	Eps        float32
	// Scale multiplies the scores; 0 is 1/√dimension. Cap, if positive, caps them (see
	// attention.Args).
	Scale, Cap float32
}

// Attention makes the attention under prefix; layer is its place in the cache.
func (l *Loader) Attention(prefix string, layer int, h Heads, opt AttentionOptions) *Attention {
	own := l.local(h)
	l.widen(&l.attended, own.Query*h.Dim)
	y := &Attention{rank: l.rank, layer: layer, rotary: opt.Rotary, eps: opt.Eps,
		args: attention.Args{Heads: own.Query, KVHeads: own.KV, HeadDim: h.Dim, Window: opt.Window,
			Cap:   opt.Cap,
			Scale: float32(1 / math.Sqrt(float64(h.Dim)))}}
	if opt.Scale != 0 {
		y.args.Scale = opt.Scale
	}
	if opt.HeadNorms {
		y.qNorm = l.vector(prefix+"q_norm.weight", h.Dim, 0, h.Dim)
		y.kNorm = l.vector(prefix+"k_norm.weight", h.Dim, 0, h.Dim)
	}
	if opt.WholeNorms {
		q, k := l.columnPart("", h.Query*h.Dim, 0), l.kvPart("", h, 0)
		y.whole = &wholeNorms{query: h.Query * h.Dim, key: h.KV * h.Dim,
			copies: own.KV * l.group.Size / h.KV,
			qNorm:  l.vector(prefix+"q_norm.weight", q.rows, q.rowLo, q.rowHi),
			kNorm:  l.vector(prefix+"k_norm.weight", k.rows, k.rowLo, k.rowHi)}
	}
	if opt.Shifted {
		shift(y.qNorm)
		shift(y.kNorm)
	}
	return y
}

// Forward writes the keys and values of the batch's rows to the cache and returns what their
// queries find, [rows][query heads of this rank · dimension]. qkv is what QKV's layer returned, and
// is changed. Where ranks divide rows, it writes the keys and values of all of theirs.
func (y *Attention) Forward(qkv *Tensor, b *compute.Batch, cache *Cache) (*Tensor, error) {
	a := &y.args
	rows, ld := qkv.rows, qkv.width
	keys := a.Heads * a.HeadDim
	values := keys + a.KVHeads*a.HeadDim
	if y.whole != nil {
		if err := y.normalise(qkv, keys, values); err != nil {
			return nil, err
		}
	}
	if y.rotary != nil || y.qNorm != nil {
		var cosSin []float32
		turned := 0
		if y.rotary != nil {
			cosSin, turned = y.rotary.angles.data, y.rotary.angles.width
		}
		y.dev.Heads(qkv.data, ld, rows, a.Heads, a.HeadDim, y.qNorm, y.eps, cosSin, turned)
		y.dev.Heads(qkv.data[keys:], ld, rows, a.KVHeads, a.HeadDim, y.kNorm, y.eps, cosSin, turned)
	}
	y.dev.WriteCache(cache.kv, y.layer, rows, qkv.data[keys:], qkv.data[values:], ld, b.Slots)
	if b.Split.Share > 0 {
		if err := y.exchange(qkv, keys, &b.Split, cache); err != nil {
			return nil, err
		}
	}
	y.attended.Resize(rows, keys)
	y.dev.Attention(cache.kv, y.layer, b, y.args, y.attended.data, keys, qkv.data, ld)
	return &y.attended, nil
}

// ScratchPerThread is the memory that each thread of a device computes in, with sequences of so
// many positions at most.
func ScratchPerThread(positions int) int64 { return attention.ScratchBytes(positions) + 256<<10 }
