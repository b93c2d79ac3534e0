// Package layerstest has a device that computes nothing and writes down what it is asked for: tests
// hold the order of calls by it, without numbers.
package layerstest

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Device writes a line for each call: what it is, what it makes, and of what. Tensors have letters,
// in the order in which they get a shape, weights are [out in].
type Device struct {
	Calls []string
	made  int
	pool  *pool.Pool
}

// New returns a device without a call.
func New() *Device { return &Device{pool: pool.New(1)} }

// Close ends it.
func (d *Device) Close() { d.pool.Close() }

// memory is the memory of a tensor or a vector, which has values only so that Host is as long as it
// says.
type memory struct {
	name string
	data []float32
}

func (m *memory) Host() []float32 { return m.data }
func (m *memory) Filled()         {}

func (d *Device) call(format string, args ...any) {
	d.Calls = append(d.Calls, fmt.Sprintf(format, args...))
}

// Pad implements layers.Device; it is no call.
func (d *Device) Pad(b *compute.Batch) *compute.Batch { return b }

// Begin implements layers.Device; it is no call.
func (d *Device) Begin(*compute.Batch, []int32) {}

// Run implements layers.Device.
func (d *Device) Run(_ any, _ bool, pass func() error) error { return pass() }

// Finish implements layers.Device; it is no call.
func (d *Device) Finish() error { return nil }

// Err implements layers.Device.
func (d *Device) Err() error { return nil }

// Resize implements layers.Device; it is no call.
func (d *Device) Resize(t *layers.Tensor, rows, width int) {
	m, _ := t.Memory.(*memory)
	if m == nil {
		m = &memory{name: letters(d.made)}
		d.made++
		t.Memory = m
	}
	m.data = make([]float32, rows*width)
	t.Rows, t.Width = rows, width
}

// letters are a to z, then ba, bb and so on.
func letters(n int) string {
	if n < 26 {
		return string(rune('a' + n))
	}
	return letters(n/26) + letters(n%26)
}

// of names a view: the letter, and its columns unless they are all.
func of(v compute.View) string {
	name := "?"
	if m, ok := v.Memory.(*memory); ok {
		name = m.name
	}
	if v.Width == v.Stride {
		return name
	}
	return fmt.Sprintf("%s[%d:%d]", name, v.From%v.Stride, v.From%v.Stride+v.Width)
}

func all(t *layers.Tensor) string { return of(t.All()) }

// Extend implements layers.Device.
func (d *Device) Extend(t *layers.Tensor, rows int) { d.Resize(t, t.Rows+rows, t.Width) }

// Vector implements layers.Device; it is no call.
func (d *Device) Vector(v []float32) compute.Memory { return &memory{name: "vector", data: v} }

type table struct {
	d *Device
	s compute.Source
}

// Table implements layers.Device; it is no call.
func (d *Device) Table(s compute.Source) compute.Table { return &table{d, s} }

func (t *table) Lookup(dst *layers.Tensor, ids []int32, offset int) {
	t.d.Resize(dst, len(ids), t.s.Cols)
	t.d.call("lookup %s of %d rows", all(dst), t.s.Rows)
}

func (t *table) Free() {}

type rotary struct {
	d   *Device
	dim int
}

// Rotary implements layers.Device; it is no call.
func (d *Device) Rotary(frequencies []float32, _ func(int) float64, _ int) compute.Rotary {
	return &rotary{d, 2 * len(frequencies)}
}

func (r *rotary) Angles(dst *layers.Tensor, positions []int32) {
	r.d.Resize(dst, len(positions), r.dim)
	r.d.call("angles %s of %d dimensions", all(dst), r.dim)
}

// weight is [out in].
type weight struct {
	d       *Device
	out, in int
	chunks  int
	how     string
}

// Pack implements layers.Device; it is no call.
func (d *Device) Pack(chunks int, sources ...compute.Source) (compute.Weight, error) {
	w := &weight{d: d, chunks: chunks}
	for _, s := range sources {
		w.out, w.in = w.out+s.RowHi-s.RowLo, s.ColHi-s.ColLo
	}
	return w, nil
}

// PackInt8 implements layers.Device; it is no call.
func (d *Device) PackInt8(chunks int, sources ...compute.Source) (compute.Weight, error) {
	w, err := d.Pack(chunks, sources...)
	w.(*weight).how = " of bytes"
	return w, err
}

// PackCodes implements layers.Device; it is no call.
func (d *Device) PackCodes(chunks int, sources ...compute.Codes) (compute.Weight, error) {
	w := &weight{d: d, chunks: chunks, in: sources[0].Cols}
	w.how = fmt.Sprintf(" of %v, groups of %d", sources[0].Type, sources[0].Group)
	for _, s := range sources {
		w.out += s.Rows
	}
	return w, nil
}

// Join implements layers.Device; it is no call.
func (d *Device) Join(weights ...compute.Weight) compute.Weight {
	first := *weights[0].(*weight)
	for _, w := range weights[1:] {
		w := w.(*weight)
		first.out += w.out
		if w.how != first.how {
			first.how += " and" + cmp.Or(w.how, " plain")
		}
	}
	return &first
}

// Packed implements layers.Device: there is nothing to be stored.
func (d *Device) Packed(compute.Weight) ([]compute.Packed, error) { return nil, nil }

// FromPacked implements layers.Device; nothing was ever packed.
func (d *Device) FromPacked([]compute.Packed) (compute.Weight, error) {
	return nil, errors.New("a device that computes nothing has no packed weights")
}

func (w *weight) Out() int   { return w.out }
func (w *weight) In() int    { return w.in }
func (w *weight) Bytes() int { return 0 }
func (w *weight) Free()      {}

func (w *weight) String() string { return fmt.Sprintf("[%d %d]%s", w.out, w.in, w.how) }

func (w *weight) Product(dst, x compute.View, bias compute.Memory) {
	plus := ""
	if bias != nil {
		plus = " + bias"
	}
	w.d.call("product %s = %s %v%s", of(dst), of(x), w, plus)
}

func (w *weight) ProductAdded(dst, x compute.View) {
	w.d.call("product %s += %s %v", of(dst), of(x), w)
}

func (w *weight) ProductChunks(dst *layers.Tensor, x compute.View) {
	w.d.Resize(dst, w.chunks*x.Rows, w.out)
	w.d.call("product %s = %s %v in %d chunks", all(dst), of(x), w, w.chunks)
}

// Retire implements layers.Device.
func (d *Device) Retire(compute.Weight) {}

// Reserve implements layers.Device.
func (d *Device) Reserve([]compute.Weight) error { return nil }

// Copy implements layers.Device.
func (d *Device) Copy(dst, x compute.View) { d.call("copy %s = %s", of(dst), of(x)) }

// Pick implements layers.Device.
func (d *Device) Pick(dst *layers.Tensor, x compute.View, rows []int32) {
	d.Resize(dst, len(rows), x.Width)
	d.call("pick %s of %s", all(dst), of(x))
}

// Zero implements layers.Device.
func (d *Device) Zero(x *layers.Tensor) { d.call("zero %s", all(x)) }

// Add implements layers.Device.
func (d *Device) Add(sum, x *layers.Tensor) { d.call("add %s += %s", all(sum), all(x)) }

// AddBias implements layers.Device.
func (d *Device) AddBias(x *layers.Tensor, _ compute.Memory) { d.call("add %s += bias", all(x)) }

// Scale implements layers.Device.
func (d *Device) Scale(x *layers.Tensor, factor float32) {
	d.call("scale %s by %g", all(x),
		factor)
}

// ScaleRows implements layers.Device.
func (d *Device) ScaleRows(x, factors *layers.Tensor) {
	d.call("scale %s by rows of %s", all(x), all(factors))
}

// Activate implements layers.Device.
func (d *Device) Activate(a compute.Activation, x *layers.Tensor) {
	d.call("activate %s %v", all(x), a)
}

// Sigmoid implements layers.Device.
func (d *Device) Sigmoid(x *layers.Tensor) { d.call("sigmoid %s", all(x)) }

// TanhCap implements layers.Device.
func (d *Device) TanhCap(x *layers.Tensor, limit float32) { d.call("cap %s at %g", all(x), limit) }

// GatedProduct implements layers.Device.
func (d *Device) GatedProduct(g compute.Gating, dst, both *layers.Tensor, w compute.Weight,
	x compute.View, bias compute.Memory, _ compute.Weight) {
	d.Resize(both, x.Rows, w.Out())
	w.Product(both.All(), x, bias)
	d.Resize(dst, both.Rows, both.Width/2)
	d.call("gate %s = %s %v", all(dst), all(both), g)
}

// Beside implements layers.Device: models are recorded without adapters.
func (d *Device) Beside() compute.Beside { return nil }

// Gate implements layers.Device.
func (d *Device) Gate(g compute.Gating, dst, both *layers.Tensor) {
	d.Resize(dst, both.Rows, both.Width/2)
	d.call("gate %s = %s %v", all(dst), all(both), g)
}

// RMSNorm implements layers.Device.
func (d *Device) RMSNorm(dst, x *layers.Tensor, _ compute.Memory, _ float32) {
	d.Resize(dst, x.Rows, x.Width)
	d.call("rms norm %s = %s", all(dst), all(x))
}

// LayerNorm implements layers.Device.
func (d *Device) LayerNorm(dst, x *layers.Tensor, _, _ compute.Memory, _ float32) {
	if dst != x {
		d.Resize(dst, x.Rows, x.Width)
	}
	d.call("layer norm %s = %s", all(dst), all(x))
}

// Squares implements layers.Device.
func (d *Device) Squares(dst, x compute.View, dim int) {
	d.call("squares %s of heads of %d in %s", of(dst), dim, of(x))
}

// NormAcross implements layers.Device.
func (d *Device) NormAcross(x compute.View, _ compute.Memory, squares compute.View, _ int,
	_ float32) {
	d.call("norm %s by squares %s", of(x), of(squares))
}

// Heads implements layers.Device.
func (d *Device) Heads(x compute.View, dim int, weight compute.Memory, _ float32,
	angles *layers.Tensor) {
	var how []string
	if weight != nil {
		how = append(how, "normalised")
	}
	if angles != nil {
		how = append(how, "turned by "+all(angles))
	}
	d.call("heads of %d in %s %s", dim, of(x), strings.Join(how, ", "))
}

// Cache is a KV cache that holds nothing.
type Cache struct{}

// Read implements compute.Cache.
func (Cache) Read(iter.Seq[compute.Span], func([]byte) error) error { return nil }

// Fill implements compute.Cache.
func (Cache) Fill(iter.Seq[compute.Span], func([]byte) error) error { return nil }

// CopyState implements compute.Cache.
func (Cache) CopyState(int, int) {}

// Group implements compute.Cache.
func (Cache) Group(int) int { return 0 }

// Free implements compute.Cache.
func (Cache) Free() error { return nil }

// NewCache implements layers.Device; it is no call.
func (d *Device) NewCache(compute.CacheShape) (compute.Cache, error) { return Cache{}, nil }

// WriteCache implements layers.Device.
func (d *Device) WriteCache(_ compute.Cache, layer int, k, v compute.View,
	scales compute.CacheScales, _ []int32) {
	d.call("write layer %d: keys %s, values %s", layer, of(k), of(v))
}

// StoreHeads implements layers.Device: it is the calls that it stands for.
func (d *Device) StoreHeads(c compute.Cache, layer int, q, k, v compute.View,
	args compute.HeadArgs, slots []int32) {
	if args.Angles != nil || args.QueryNorm != nil {
		d.Heads(q, args.Dim, args.QueryNorm, args.Eps, args.Angles)
		d.Heads(k, args.Dim, args.KeyNorm, args.Eps, args.Angles)
	}
	d.WriteCache(c, layer, k, v, args.Scales, slots)
}

// Attention implements layers.Device.
func (d *Device) Attention(_ compute.Cache, layer int, _ *compute.Batch,
	args compute.AttentionArgs, dst *layers.Tensor, q compute.View) {
	how := fmt.Sprintf("%d heads of %d", args.Heads, args.HeadDim)
	if args.Window > 0 {
		how += fmt.Sprintf(", window %d", args.Window)
	}
	if args.Cap > 0 {
		how += fmt.Sprintf(", capped at %g", args.Cap)
	}
	if args.Sinks != nil {
		how += ", sinks"
	}
	d.call("attention %s = %s over layer %d (%s)", all(dst), of(q), layer, how)
}

// AttentionAmong implements layers.Device.
func (d *Device) AttentionAmong(_ *compute.Batch, args compute.AttentionArgs, dst *layers.Tensor,
	q, k, v compute.View) {
	how := fmt.Sprintf("%d heads of %d", args.Heads, args.HeadDim)
	if args.Window > 0 {
		how += fmt.Sprintf(", window %d, %d ahead", args.Window, args.Ahead)
	}
	d.call("attention %s = %s among keys %s, values %s (%s)", all(dst), of(q), of(k), of(v), how)
}

// Delta implements layers.Device.
func (d *Device) Delta(_ compute.Cache, layer int, _ *compute.Batch, args *compute.DeltaArgs,
	dst *layers.Tensor, x compute.View) {
	d.call("delta rule %s = %s over layer %d (%d heads of %d, %d of values of %d, kernel %d)",
		all(dst), of(x), layer, args.KeyHeads, args.KeyDim, args.ValueHeads, args.ValueDim,
		args.Kernel)
}

// Scan implements layers.Device.
func (d *Device) Scan(_ compute.Cache, layer int, _ *compute.Batch, args *compute.ScanArgs,
	dst *layers.Tensor, x compute.View) {
	d.call("scan %s = %s over layer %d (%d heads of %d in %d parts, %d groups of %d, kernel %d)",
		all(dst), of(x), layer, args.ValueHeads, args.ValueDim, args.KeyHeads, args.Groups,
		args.KeyDim, args.Kernel)
}

// Convolve implements layers.Device.
func (d *Device) Convolve(_ compute.Cache, layer int, _ *compute.Batch,
	args *compute.ConvolutionArgs, dst *layers.Tensor, x compute.View) {
	d.call("convolve %s = %s over layer %d (%d channels, kernel %d)", all(dst), of(x), layer,
		args.Out(), args.Kernel)
}

// SigmoidGate implements layers.Device.
func (d *Device) SigmoidGate(x *layers.Tensor, gate compute.View) {
	d.call("gate %s by sigmoid of %s", all(x), of(gate))
}

// Mix implements layers.Device.
func (d *Device) Mix(sum, x, scores *layers.Tensor, mix *compute.Mixture) {
	d.Resize(sum, 2*x.Rows, x.Width)
	d.call("mix %s = %s by %s, %d of %d experts, in %d chunks", all(sum), all(x), all(scores),
		mix.PerToken, len(mix.Experts), mix.Chunks)
}

// Mixed implements layers.Device.
func (d *Device) Mixed(sum *layers.Tensor, mix *compute.Mixture) {
	d.Resize(sum, sum.Rows/2, sum.Width)
	biases := ""
	if mix.Experts[0].DownBias != nil {
		biases = ", biases added"
	}
	d.call("mixed %s%s", all(sum), biases)
}

// ExpertRows implements layers.Device: nothing is counted.
func (d *Device) ExpertRows(load *compute.ExpertLoad) []int64 { return load.Rows }

// Pool implements layers.Device.
func (d *Device) Pool() *pool.Pool { return d.pool }

// Group is a tensor parallel group of which only one rank is there; its calls are the device's.
type Group struct{ Device *Device }

// Begin implements layers.Comm; it is no call.
func (g Group) Begin() (enqueued bool, err error) { return false, nil }

// AllReduce implements layers.Comm.
func (g Group) AllReduce(x *layers.Tensor) error {
	g.Device.call("all-reduce %s", all(x))
	return nil
}

// Gather implements layers.Comm.
func (g Group) Gather(_, x *layers.Tensor, root int) error {
	g.Device.call("gather %s on rank %d", all(x), root)
	return nil
}

var (
	_ layers.Device = (*Device)(nil)
	_ layers.Comm   = Group{}
)
