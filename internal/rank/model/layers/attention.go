package layers

import (
	"cmp"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
)

// Attention is causal attention over the KV cache. The heads are divided among the ranks.
type Attention struct {
	*rank
	layer        int // in the cache
	args         compute.AttentionArgs
	rotary       *Rotary
	qNorm, kNorm compute.Memory
	vNorm        compute.Memory // ones, nil for values as they are
	shared       bool
	turnedFirst  bool
	temperature  *Rotary
	whole        *wholeNorms // nil for none
	heads        *headNorms  // nil for none
	eps          float32
	gated        bool
	scales       compute.CacheScales
	clip         float32
	clips        clips
}

// clips is a device that limits values.
type clips interface {
	// Clip makes each v of x min(max(v, -limit), limit).
	Clip(x *Tensor, limit float32)
}

// AttentionOptions are the points in which attention layers differ.
type AttentionOptions struct {
	// Window, if positive, limits a row at position p to the positions p-Window+1 to p, with
	// Chunked to those from the last multiple of Window on.
	Window  int
	Chunked bool
	// Rotary turns queries and keys; nil for models that have positions another way. Temperature
	// multiplies queries by what their position has, after all else; nil for none.
	Rotary, Temperature *Rotary
	// HeadNorms says that each query and key head is normalised by its root mean square before it
	// is turned, with Eps: modules q_norm and k_norm, or Norms. Shifted adds 1 to their weights,
	// Unweighted says that there are none. TurnedFirst has heads normalised after they are turned.
	HeadNorms, Shifted, Unweighted, TurnedFirst bool
	Norms                                       [2]string
	// ValueNorms says that value heads are normalised so, too, without weights.
	ValueNorms bool
	// Shared says that the layer whose place in the cache is given has written keys and values:
	// there are queries alone (QKVOptions.QueryAlone).
	Shared bool
	// WholeNorms says that all query heads together, and all key heads, are normalised: modules
	// q_norm and k_norm.
	WholeNorms bool
	// LayerNorms says that each query and key head is normalised by its mean and variance: modules
	// q_layernorm and k_layernorm, with PerHead of a norm for each.
	LayerNorms, PerHead bool
	Eps                 float32
	// Sinks says that each query head has a logit that weighs in the softmax, and has no value:
	// tensor sinks.
	Sinks bool
	// Gated says that what is found is multiplied by the logistic function of gates, as wide, which
	// follow the values (QKVOptions.Gated).
	Gated bool
	// Clip, if positive, is what queries, keys and values are at most, and their negatives, before
	// all else.
	Clip float32
	// Scale multiplies the scores; 0 is 1/√dimension. Cap, if positive, caps them (see
	// compute.AttentionArgs).
	Scale, Cap float32
}

// Attention makes the attention under prefix; layer is its place in the cache.
func (l *Loader) Attention(prefix string, layer int, h Heads, opt AttentionOptions) *Attention {
	own := l.local(h)
	l.widen(&l.attended, own.Query*h.Dim)
	y := &Attention{rank: l.rank, layer: layer, rotary: opt.Rotary, eps: opt.Eps,
		gated: opt.Gated, clip: opt.Clip, shared: opt.Shared, scales: l.cacheScales(prefix, h),
		turnedFirst: opt.TurnedFirst, temperature: opt.Temperature,
		args: compute.AttentionArgs{Heads: own.Query, KVHeads: own.KV, HeadDim: h.Dim,
			Window: opt.Window, Chunked: opt.Chunked && opt.Window > 0,
			Cap:   opt.Cap,
			Scale: float32(1 / math.Sqrt(float64(h.Dim)))}}
	if opt.Scale != 0 {
		y.args.Scale = opt.Scale
	}
	q, k := prefix+cmp.Or(opt.Norms[0], "q_norm")+".weight",
		prefix+cmp.Or(opt.Norms[1], "k_norm")+".weight"
	switch {
	case opt.Shared:
		y.qNorm = l.vector(q, h.Dim, 0, h.Dim)
	case opt.HeadNorms && opt.Unweighted:
		y.qNorm = l.constant(h.Dim, 1)
		y.kNorm = y.qNorm
	case opt.HeadNorms && opt.Shifted:
		y.qNorm, y.kNorm = l.shifted(q, h.Dim), l.shifted(k, h.Dim)
	case opt.HeadNorms:
		y.qNorm, y.kNorm = l.vector(q, h.Dim, 0, h.Dim), l.vector(k, h.Dim, 0, h.Dim)
	}
	if opt.ValueNorms {
		y.vNorm = l.constant(h.Dim, 1)
	}
	if opt.Sinks {
		first := l.group.Rank * own.Query
		y.args.Sinks = l.vector(prefix+"sinks", h.Query, first, first+own.Query)
	}
	if opt.Clip > 0 {
		y.clips = only[clips](l, "clipped queries, keys and values are not computed on this "+
			"device: CPUs do")
	}
	if opt.LayerNorms {
		y.heads = l.headNorms(prefix, h, opt.PerHead)
	}
	if opt.WholeNorms {
		l.Own(h.Query + h.KV)
		q, k := l.columnPart("", h.Query*h.Dim, 0), l.kvPart("", h, 0)
		y.whole = &wholeNorms{query: h.Query, key: h.KV,
			copies: own.KV * l.group.Size / h.KV,
			qNorm:  l.vector(prefix+"q_norm.weight", q.rows, q.rowLo, q.rowHi),
			kNorm:  l.vector(prefix+"k_norm.weight", k.rows, k.rowLo, k.rowHi)}
	}
	return y
}

// Forward writes the keys and values of the batch's rows to the cache and returns what their
// queries find, [rows][query heads of this rank · dimension]. qkv is what QKV's layer returned, and
// is changed. Where ranks divide rows, it writes the keys and values of all of theirs.
func (y *Attention) Forward(qkv *Tensor, b *compute.Batch, cache compute.Cache) (*Tensor, error) {
	a := &y.args
	keys := a.Heads * a.HeadDim
	values := keys + a.KVHeads*a.HeadDim
	q := qkv.Columns(0, keys)
	if y.shared {
		y.dev.Heads(q, a.HeadDim, y.qNorm, y.eps, y.rotary.turns())
	} else if err := y.store(qkv, keys, values, b, cache); err != nil {
		return nil, err
	}
	y.dev.Resize(&y.attended, qkv.Rows, keys)
	y.dev.Attention(cache, y.layer, b, y.args, &y.attended, q)
	if y.gated {
		y.dev.SigmoidGate(&y.attended, qkv.Columns(2*values-keys, keys))
	}
	return &y.attended, nil
}

// store makes queries, keys and values of qkv, in which keys and values begin at columns, what
// attention reads, and writes the latter to the cache.
func (y *Attention) store(qkv *Tensor, keys, values int, b *compute.Batch,
	cache compute.Cache) error {
	if y.clip > 0 {
		y.clips.Clip(qkv, y.clip)
	}
	if y.whole != nil {
		if err := y.normalise(qkv, keys, values); err != nil {
			return err
		}
	}
	if y.heads != nil {
		y.heads.normalise(y.rank, qkv, values, y.args.HeadDim, y.eps)
	}
	width, dim, angles := values-keys, y.args.HeadDim, y.rotary.turns()
	q, k, v := qkv.Columns(0, keys), qkv.Columns(keys, width), qkv.Columns(values, width)
	if y.vNorm != nil {
		y.dev.Heads(v, dim, y.vNorm, y.eps, nil)
	}
	if y.turnedFirst {
		y.dev.Heads(qkv.Columns(0, values), dim, nil, 0, angles)
		angles = nil
	}
	y.dev.StoreHeads(cache, y.layer, q, k, v, compute.HeadArgs{Scales: y.scales, Dim: dim,
		QueryNorm: y.qNorm, KeyNorm: y.kNorm, Eps: y.eps, Angles: angles},
		b.SlotsOf(cache.Group(y.layer)))
	if y.temperature != nil {
		y.dev.Heads(q, dim, nil, 0, y.temperature.turns())
	}
	if b.Split.Share == 0 {
		return nil
	}
	return y.exchange(qkv.Columns(keys, 2*width), width, y.layer, y.scales, b, cache)
}
