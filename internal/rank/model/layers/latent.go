package layers

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
)

// LatentAttention is multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434):
// of each position one vector is kept, a latent of which each head has keys and values of its own
// by a projection, beside a key that all heads share and that is turned. The projections are
// absorbed: a head's query is projected to the latent's space, and what it finds there to its
// values. So the cache is read as it is, while decoding and in prefill alike, with the same bits.
// The heads are divided among the ranks, the latent is every rank's.
type LatentAttention struct {
	*rank
	layer     int // in the cache
	args      compute.AttentionArgs
	opt       LatentOptions
	scales    compute.CacheScales
	compress  *Linear // to the query's latent; nil for none
	queryNorm *RMSNorm
	queries   *ColumnLinear // of each head the part that is turned, then the other one
	latents   *Linear       // the latent, then the key that is turned
	norm      compute.Memory
	// keys turn the queries of each head into the latent's space, values what it finds out of it.
	keys, values []compute.Weight
}

// LatentOptions are the numbers of latent attention.
type LatentOptions struct {
	// Heads is their number on all ranks.
	Heads int
	// Query is the width of the queries' latent, 0 for none; Latent that of keys and values.
	Query, Latent int
	// Turned, Plain and Value are dimensions of each head: of its query and key those that are
	// turned and those that are not, and of its value.
	Turned, Plain, Value int
	// Interleaved says that the turned ones are stored in pairs of neighbours.
	Interleaved bool
	Bias        bool // of the projections to latents
	// Rotary and Temperature are AttentionOptions'.
	Rotary, Temperature *Rotary
	Eps                 float32
	// Scale multiplies the scores; 0 is 1/√(Turned+Plain).
	Scale float32
}

// latentMemory is what the latent attentions of a rank share.
type latentMemory struct {
	query, latent, absorbed, found, out Tensor
}

// LatentAttention makes the attention under prefix, modules q_a_proj, q_a_layernorm and q_b_proj,
// or q_proj without a latent of queries, kv_a_proj_with_mqa, kv_a_layernorm and kv_b_proj (or those
// of latentHead), of in input features; layer is its place in the cache.
func (l *Loader) LatentAttention(prefix string, layer, in int, opt LatentOptions) *LatentAttention {
	heads, dim := opt.Heads/l.group.Size, opt.Turned+opt.Plain
	y := &LatentAttention{rank: l.rank, layer: layer, opt: opt,
		scales: l.cacheScales(prefix, Heads{KV: 1}),
		args: compute.AttentionArgs{Heads: heads, KVHeads: 1, HeadDim: opt.Latent + opt.Turned,
			Scale: opt.Scale}}
	if opt.Scale == 0 {
		y.args.Scale = float32(1 / math.Sqrt(float64(dim)))
	}
	m, queries, width := &l.latent, prefix+"q_proj", in
	if opt.Query > 0 {
		l.widen(&m.query, opt.Query)
		a := whole(prefix+"q_a_proj", opt.Query, in)
		y.compress = l.linear(a)
		if opt.Bias {
			y.compress.bias = l.bias(a)
		}
		y.queryNorm = l.RMSNorm(prefix+"q_a_layernorm", opt.Query, opt.Eps)
		queries, width = prefix+"q_b_proj", opt.Query
	}
	y.queries = l.column(&l.qkv, false, y.turnedFirst(l.columnPart(queries, opt.Heads*dim,
		width))...)
	rows := whole(prefix+"kv_a_proj_with_mqa", opt.Latent+opt.Turned, in)
	latent, turned := rows, rows
	latent.rowHi, turned.rowLo = opt.Latent, opt.Latent
	parts := []part{latent, turned}
	if opt.Interleaved {
		parts = append(parts[:1], turned.deinterleaved(opt.Turned, opt.Turned)...)
	}
	y.latents = l.linear(parts...)
	if opt.Bias {
		y.latents.bias = l.bias(parts...)
	}
	l.widen(&m.latent, opt.Latent+opt.Turned)
	y.norm = l.vector(prefix+"kv_a_layernorm.weight", opt.Latent, 0, opt.Latent)
	defer l.pin(prefix + "kv_b_proj.weight")()
	for h := range heads {
		k, v := l.latentHead(prefix, l.group.Rank*heads+h, &opt)
		y.keys = append(y.keys, l.weight(1, k))
		y.values = append(y.values, l.weight(1, v))
	}
	l.widen(&m.absorbed, heads*(opt.Latent+opt.Turned))
	l.widen(&m.found, heads*opt.Latent)
	l.widen(&m.out, heads*opt.Value)
	return y
}

// latentHead is a head's projections of the latent to its keys, turned about, and to its values:
// rows of kv_b_proj, or modules of the head's own, k_b_proj being turned about already.
func (l *Loader) latentHead(prefix string, h int, o *LatentOptions) (keys, values part) {
	if own := fmt.Sprintf("%sk_b_proj.%d", prefix, h); l.Has(own + ".weight") {
		return whole(own, o.Latent, o.Plain),
			whole(fmt.Sprintf("%sv_b_proj.%d", prefix, h), o.Value, o.Latent)
	}
	both := o.Plain + o.Value
	keys = whole(prefix+"kv_b_proj", o.Heads*both, o.Latent)
	values = keys
	keys.rowLo, keys.rowHi, keys.turned = h*both, h*both+o.Plain, true
	values.rowLo, values.rowHi = h*both+o.Plain, (h+1)*both
	return keys, values
}

// turnedFirst is the rows of queries, of each head those that are turned first.
func (y *LatentAttention) turnedFirst(p part) (list []part) {
	o := &y.opt
	for at := p.rowLo; at < p.rowHi; at += o.Plain + o.Turned {
		plain, turned := p, p
		plain.rowLo, plain.rowHi = at, at+o.Plain
		turned.rowLo, turned.rowHi = at+o.Plain, at+o.Plain+o.Turned
		if o.Interleaved {
			list = append(list, turned.deinterleaved(o.Turned, o.Turned)...)
		} else {
			list = append(list, turned)
		}
		list = append(list, plain)
	}
	return list
}

// CacheLayer is what the attention keeps of each position.
func (o *LatentOptions) CacheLayer() compute.CacheLayer {
	return compute.CacheLayer{Kind: compute.Latent, Heads: 1, Dim: o.Latent + o.Turned,
		Values: o.Latent}
}

// Forward writes the latents of the batch's rows to the cache and returns what their queries find,
// [rows][heads of this rank · Value]. Where ranks divide rows, it writes the latents of all of
// theirs.
func (y *LatentAttention) Forward(x *Tensor, b *compute.Batch, cache compute.Cache) (*Tensor,
	error) {
	m, o, dim := &y.latent, &y.opt, y.opt.Turned+y.opt.Plain
	y.latents.Forward(&m.latent, x)
	y.dev.Heads(m.latent.Columns(0, o.Latent), o.Latent, y.norm, o.Eps, nil)
	y.dev.Heads(m.latent.Columns(o.Latent, o.Turned), o.Turned, nil, 0, &o.Rotary.angles)
	y.dev.WriteCache(cache, y.layer, m.latent.All(), compute.View{}, y.scales,
		b.SlotsOf(cache.Group(y.layer)))
	if b.Split.Share > 0 {
		if err := y.exchange(m.latent.All(), 0, y.layer, y.scales, b, cache); err != nil {
			return nil, err
		}
	}
	if y.compress != nil {
		y.compress.Forward(&m.query, x)
		x = y.queryNorm.Forward(&m.query)
	}
	q := y.queries.Forward(x)
	y.dev.Heads(q.All(), dim, nil, 0, &o.Rotary.angles)
	if o.Temperature != nil {
		y.dev.Heads(q.All(), dim, nil, 0, o.Temperature.turns())
	}
	y.dev.Resize(&m.absorbed, q.Rows, y.args.Heads*y.args.HeadDim)
	for h, w := range y.keys {
		from, to := q.Columns(h*dim, dim), m.absorbed.Columns(h*y.args.HeadDim, y.args.HeadDim)
		w.Product(to.Columns(0, o.Latent), from.Columns(o.Turned, o.Plain), nil)
		y.dev.Copy(to.Columns(o.Latent, o.Turned), from.Columns(0, o.Turned))
	}
	y.dev.Resize(&m.found, q.Rows, y.args.Heads*o.Latent)
	y.dev.Attention(cache, y.layer, b, y.args, &m.found, m.absorbed.All())
	y.dev.Resize(&m.out, q.Rows, y.args.Heads*o.Value)
	for h, w := range y.values {
		w.Product(m.out.Columns(h*o.Value, o.Value), m.found.Columns(h*o.Latent, o.Latent), nil)
	}
	return &m.out, nil
}
