package layers

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
)

// headNorms are layer norms of each head of queries and of keys. What they multiply by and add is
// of all heads of this rank, query heads first, and bias is nil for none.
type headNorms struct {
	ones, zeros  compute.Memory
	weight, bias compute.Memory
	each         Tensor // the heads, a row each
}

// headNorms makes those of the modules q_layernorm and k_layernorm, one of each for all heads, with
// a bias, or with perHead the modules norms.0, norms.1 … of them, one for each head, without.
func (l *Loader) headNorms(prefix string, h Heads, perHead bool) *headNorms {
	l.columns()
	own := l.local(h)
	l.widen(&l.heads, (own.Query+own.KV)*h.Dim)
	y := &headNorms{ones: l.constant(h.Dim, 1), zeros: l.constant(h.Dim, 0)}
	var weight, bias []float32
	for _, kind := range []struct {
		module     string
		first, own int
	}{{"q_layernorm", l.group.Rank * own.Query, own.Query},
		{"k_layernorm", l.group.Rank * h.KV / l.group.Size, own.KV}} {
		for head := range kind.own {
			module := prefix + kind.module
			if perHead {
				module = fmt.Sprintf("%s.norms.%d", module, kind.first+head)
			} else {
				bias = append(bias, l.floats(module+".bias", []int{h.Dim}, 0, h.Dim)...)
			}
			weight = append(weight, l.floats(module+".weight", []int{h.Dim}, 0, h.Dim)...)
		}
	}
	y.weight = l.upload(weight)
	if !perHead {
		y.bias = l.upload(bias)
	}
	return y
}

// normalise normalises heads of dim numbers, which are the first width columns of qkv.
func (y *headNorms) normalise(r *rank, qkv *Tensor, width, dim int, eps float32) {
	heads := qkv.Columns(0, width)
	r.dev.Resize(&r.heads, qkv.Rows, width)
	r.dev.Copy(r.heads.All(), heads)
	y.each = Tensor{Memory: r.heads.Memory, Rows: qkv.Rows * width / dim, Width: dim}
	r.dev.LayerNorm(&y.each, &y.each, y.ones, y.zeros, eps)
	r.byColumn(r.heads.All(), y.weight)
	if y.bias != nil {
		r.dev.AddBias(&r.heads, y.bias)
	}
	r.dev.Copy(heads, r.heads.All())
}

// columns prepares byColumn.
func (l *Loader) columns() {
	if l.one.Memory == nil {
		l.one = compute.View{Memory: l.constant(1, 1), Width: 1}
	}
}

// byColumn multiplies each column of x by a factor of its own: it is a norm across heads of which
// the root mean square is 1.
func (r *rank) byColumn(x compute.View, factors compute.Memory) {
	one := r.one
	one.Rows = x.Rows
	r.dev.NormAcross(x, factors, one, 1, 0)
}
