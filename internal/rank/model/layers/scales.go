package layers

import (
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
)

// ScaleCache has attentions store keys and values with the checkpoint's scales, where it has some.
func (l *Loader) ScaleCache() { l.scaled = true }

// cacheScales reads what the keys and values of an attention are divided by before they are rounded
// to e4m3, as compressed-tensors (k_scale, and kv_scale for both), ModelOpt (k_proj.k_scale) and
// Quark (k_proj.output_scale) write it: one number, or one for each key/value head. There is none
// where vLLM has none either: a checkpoint that was not calibrated may have numbers that are not
// positive.
func (l *Loader) cacheScales(prefix string, h Heads) compute.CacheScales {
	if !l.scaled || l.scale != nil {
		return compute.CacheScales{}
	}
	read := func(name string) []float32 {
		for _, suffix := range []string{name + "_scale", "attn." + name + "_scale",
			name + "_proj." + name + "_scale", name + "_proj.output_scale", "kv_scale"} {
			if t, ok := l.src.Header(prefix + suffix); ok {
				return l.cacheScale(prefix+suffix, t.Shape, h)
			}
		}
		return nil
	}
	return compute.CacheScales{Keys: read("k"), Values: read("v")}
}

// cacheScale is a tensor of scales for the heads of this rank, nil if one is not positive.
func (l *Loader) cacheScale(tensor string, stored []int, h Heads) []float32 {
	n := 1
	for _, dim := range stored {
		n *= dim
	}
	shape := stored
	if n != 1 && n != h.KV {
		shape = []int{h.KV} // the error says what it is instead
	}
	if l.err != nil {
		return nil
	}
	t, err := l.src.Tensor(tensor, shape...)
	if l.fail(err) {
		return nil
	}
	defer l.src.Release(t)
	all, err := decode(t, 0, n)
	if l.fail(err) {
		return nil
	}
	if slices.Min(all) <= 0 {
		return nil
	}
	if own := l.local(h).KV; n == 1 {
		return slices.Repeat(all, own)
	}
	first := l.group.Rank * h.KV / l.group.Size
	return all[first : first+l.local(h).KV]
}
