package cpu

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// Row operations: each row is computed by one thread, in an order of its own.

type rowOp uint8

const (
	opRMSNorm rowOp = iota
	opLayerNorm
	opAdd
	opAddBias
	opSiluMul
	opGeluTanhMul
	opRelu
	opGelu
	opGeluTanh
	opScale
	opTanhCap
	opScaleRows
	opHeads
	opCache
	opAddWeighted
	opSumChunks
)

// serialElements is the size of a row operation below which waking the other threads costs more
// than it saves.
const serialElements = 16 << 10

// mostElements is the size from which one is cut also on one thread: an element may take what many
// multiply-adds do, an exponential.
const mostElements = pool.MostWork >> 5

// cacheRows is how many consecutive rows of one sequence share cache lines in the KV cache.
const cacheRows = 16

// rowTask is the one row operation in flight; a struct rather than a closure, so that a step
// allocates nothing.
type rowTask struct {
	d           *Device
	op          rowOp
	rows, width int
	ld          int
	perChunk    int
	dst, x      []float32
	a, b        []float32
	eps         float32
	heads       int
	headDim     int
	rot         int
	chunks      int // of K, each with a sum of its own
	at          []int32
	cache       *attention.Cache
	layer       int
}

func (t *rowTask) run() {
	size, chunks := t.rows*t.width, 1
	if threads := t.d.pool.Threads(); threads > 1 && size >= serialElements {
		chunks = 4 * threads
	}
	chunks = min(t.rows, max(chunks, (size+mostElements-1)/mostElements))
	if chunks <= 1 {
		t.perChunk = t.rows
		t.Do(0, 0)
	} else {
		t.perChunk = (t.rows + chunks - 1) / chunks
		if t.op == opCache {
			t.perChunk = (t.perChunk + cacheRows - 1) / cacheRows * cacheRows
		}
		t.d.pool.Run(t, (t.rows+t.perChunk-1)/t.perChunk)
	}
	// Keep no reference to the caller's memory.
	*t = rowTask{d: t.d}
}

// Do runs one chunk of rows.
func (t *rowTask) Do(chunk, _ int) {
	v := t.d.vec
	lo := chunk * t.perChunk
	hi := min(lo+t.perChunk, t.rows)
	if t.op == opCache {
		t.cache.Write(t.layer, hi-lo, t.a[lo*t.ld:], t.b[lo*t.ld:], t.ld, t.at[lo:hi])
		return
	}
	w := t.width
	for r := lo; r < hi; r++ {
		switch t.op {
		case opRMSNorm:
			v.RMSNorm(t.dst[r*w:r*w+w], t.x[r*w:r*w+w], t.a, t.eps)
		case opLayerNorm:
			v.LayerNorm(t.dst[r*w:r*w+w], t.x[r*w:r*w+w], t.a, t.b, t.eps)
		case opAdd:
			v.Add(t.dst[r*w:r*w+w], t.dst[r*w:r*w+w], t.x[r*w:r*w+w])
		case opAddBias:
			v.Add(t.dst[r*w:r*w+w], t.dst[r*w:r*w+w], t.a)
		case opSiluMul:
			v.SiluMul(t.dst[r*w:r*w+w], t.x[r*2*w:r*2*w+w], t.x[r*2*w+w:r*2*w+2*w])
		case opGeluTanhMul:
			v.GeluTanhMul(t.dst[r*w:r*w+w], t.x[r*2*w:r*2*w+w], t.x[r*2*w+w:r*2*w+2*w])
		case opRelu:
			v.Relu(t.dst[r*w : r*w+w])
		case opGelu:
			v.GeluErf(t.dst[r*w : r*w+w])
		case opGeluTanh:
			v.GeluTanh(t.dst[r*w : r*w+w])
		case opScale:
			v.Scale(t.dst[r*w:r*w+w], t.eps)
		case opTanhCap:
			v.TanhCap(t.dst[r*w:r*w+w], t.eps)
		case opScaleRows:
			v.Scale(t.dst[r*w:r*w+w], t.a[r])
		case opHeads:
			half := t.rot / 2
			cos, sin := t.a[r*2*half:r*2*half+half], t.a[r*2*half+half:r*2*half+2*half]
			for h := range t.heads {
				at := r*t.ld + h*t.headDim
				x := t.dst[at : at+t.headDim]
				if t.b != nil {
					v.RMSNorm(x, x, t.b, t.eps)
				}
				if t.rot > 0 {
					v.Rope(x, t.headDim, t.rot, cos, sin)
				}
			}
		case opAddWeighted:
			n := w / t.chunks
			sum := t.dst[int(t.at[r])*w : int(t.at[r])*w+w]
			for c := range t.chunks {
				from := (c*t.rows + r) * n
				v.Axpy(sum[c*n:c*n+n], t.a[r], t.x[from:from+n])
			}
		case opSumChunks:
			n := w / t.chunks
			gemm.TreeSum(t.dst[r*n:r*n+n], t.x[r*w:r*w+w], t.chunks)
		}
	}
}

// RMSNorm normalises rows rows of x ([rows][width]) by their root mean square into dst.
func (d *Device) RMSNorm(dst, x, weight []float32, rows int, eps float32) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.x = opRMSNorm, rows, len(weight), dst, x
	t.a, t.eps = weight, eps
	t.run()
}

// LayerNorm normalises rows rows of x ([rows][width]) by mean and variance into dst.
func (d *Device) LayerNorm(dst, x, weight, bias []float32, rows int, eps float32) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.x = opLayerNorm, rows, len(weight), dst, x
	t.a, t.b, t.eps = weight, bias, eps
	t.run()
}

// Add computes dst += x, both [rows][width].
func (d *Device) Add(dst, x []float32, rows, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.x = opAdd, rows, width, dst, x
	t.run()
}

// AddBias adds bias to each of rows rows of dst ([rows][len(bias)]).
func (d *Device) AddBias(dst, bias []float32, rows int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.a = opAddBias, rows, len(bias), dst, bias
	t.run()
}

// Gate computes dst = a(gate)·up, a being SiLU or GELUTanh: x is [rows][2·width], gate first, dst
// [rows][width].
func (d *Device) Gate(a compute.Activation, dst, x []float32, rows, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.x = opSiluMul, rows, width, dst, x
	if a == compute.GELUTanh {
		t.op = opGeluTanhMul
	}
	t.run()
}

// Scale multiplies x ([rows][width]) by a factor in place.
func (d *Device) Scale(x []float32, factor float32, rows, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.eps = opScale, rows, width, x, factor
	t.run()
}

// ScaleRows multiplies each row of x ([rows][width]) by a factor of its own in place.
func (d *Device) ScaleRows(x, factors []float32, rows, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.a = opScaleRows, rows, width, x, factors
	t.run()
}

// TanhCap replaces each v of x ([rows][width]) by limit·tanh(v/limit).
func (d *Device) TanhCap(x []float32, limit float32, rows, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.eps = opTanhCap, rows, width, x, limit
	t.run()
}

// Activate applies a to x ([rows][width]) in place.
func (d *Device) Activate(a compute.Activation, x []float32, rows, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst = [...]rowOp{compute.ReLU: opRelu, compute.GELU: opGelu,
		compute.GELUTanh: opGeluTanh}[a], rows, width, x
	t.run()
}

// Heads prepares the heads of queries or keys in place: an RMS norm over each head when weight is
// not nil (Qwen3's q_norm and k_norm), then the rotary embedding of the first rot dimensions, 0
// for none. x is
// [rows][ld] with heads·headDim values at the front of each row; rope is [rows][rot]: rot/2
// cosines, then rot/2 sines.
func (d *Device) Heads(x []float32, ld, rows, heads, headDim int, weight []float32,
	eps float32, rope []float32, rot int) {
	t := &d.rows
	t.op, t.rows, t.width, t.ld, t.dst, t.a, t.b = opHeads, rows, heads*headDim, ld, x, rope, weight
	t.eps, t.heads, t.headDim, t.rot = eps, heads, headDim, rot
	t.run()
}

// WriteCache stores the keys and values of rows rows in the layer: row r is k[r·ld:] and v[r·ld:],
// and goes to slots[r], which no other row may have. v is nil for a layer that keeps latents.
func (d *Device) WriteCache(c *attention.Cache, layer, rows int, k, v []float32, ld int,
	slots []int32) {
	t := &d.rows
	if v == nil {
		v = k
	}
	width := c.Config().Layers[layer].Width()
	t.op, t.rows, t.width, t.ld, t.a, t.b = opCache, rows, width, ld, k, v
	t.cache, t.layer, t.at = c, layer, slots
	t.run()
}

// AddWeighted adds weight[i]·parts[c][i] to dst[at[i]][c] for each i and each chunk c: dst is
// [..][chunks][width], parts, as LinearChunks computes them, [chunks][len(at)][width]. No two of at
// may be equal.
func (d *Device) AddWeighted(dst, parts, weight []float32, at []int32, chunks, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.chunks = opAddWeighted, len(at), chunks*width, chunks
	t.dst, t.x, t.a, t.at = dst, parts, weight, at
	t.run()
}

// SumChunks computes dst[r] as the tree sum (see [gemm.TreeSum]) of the chunks of row r: dst is
// [rows][width], parts [rows][chunks][width].
func (d *Device) SumChunks(dst, parts []float32, rows, chunks, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.chunks = opSumChunks, rows, chunks*width, chunks
	t.dst, t.x = dst, parts
	t.run()
}
