package cpu

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// Row operations: each row is computed by one thread, in an order of its own.

type rowOp uint8

const (
	opRMSNorm rowOp = iota
	opLayerNorm
	opAdd
	opAddBias
	opGated
	opClampedSwiGLU
	opRelu
	opRelu2
	opXIELU
	opGelu
	opGeluTanh
	opScale
	opTanhCap
	opClip
	opScaleRows
	opSigmoid
	opSigmoidGate
	opCopy
	opPick
	opSquares
	opNormAcross
	opHeads
	opCache
	opAddWeighted
	opCut
	opJoin
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
	ld, ldx     int // from one row to the next, of dst and of x
	perChunk    int
	dst, x      []float32
	a, b        []float32
	fixed       []float64 // sums, see [vec.Ops.FixedAxpy]
	eps         float32
	xielu       compute.XIELU
	gated       func(dst, gate, up []float32)
	heads       int
	headDim     int
	rot         int
	chunks      int // of K, each with a sum of its own
	at          []int32
	cache       *attention.Cache
	layer       int
	scales      compute.CacheScales
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
		t.cache.Write(t.layer, hi-lo, t.a[lo*t.ld:], t.b[lo*t.ld:], t.ld, t.at[lo:hi],
			t.scales)
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
		case opGated:
			t.gated(t.dst[r*w:r*w+w], t.x[r*2*w:r*2*w+w], t.x[r*2*w+w:r*2*w+2*w])
		case opClampedSwiGLU:
			t.clampedSwiGLU(t.dst[r*w:r*w+w], t.x[r*2*w:r*2*w+w], t.x[r*2*w+w:r*2*w+2*w])
		case opRelu:
			v.Relu(t.dst[r*w : r*w+w])
		case opRelu2:
			row := t.dst[r*w : r*w+w]
			v.Relu(row)
			v.Mul(row, row)
		case opXIELU:
			v.XIELU(t.dst[r*w:r*w+w], t.xielu)
		case opGelu:
			v.GeluErf(t.dst[r*w : r*w+w])
		case opGeluTanh:
			v.GeluTanh(t.dst[r*w : r*w+w])
		case opScale:
			v.Scale(t.dst[r*w:r*w+w], t.dst[r*w:r*w+w], t.eps)
		case opTanhCap:
			v.TanhCap(t.dst[r*w:r*w+w], t.eps)
		case opClip:
			for i, x := range t.dst[r*w : r*w+w] {
				t.dst[r*w+i] = min(max(x, -t.eps), t.eps)
			}
		case opScaleRows:
			v.Scale(t.dst[r*w:r*w+w], t.dst[r*w:r*w+w], t.a[r])
		case opSigmoid:
			v.Sigmoid(t.dst[r*w : r*w+w])
		case opSigmoidGate:
			gate := t.x[r*t.ldx : r*t.ldx+w]
			v.Sigmoid(gate)
			for i, g := range gate {
				t.dst[r*w+i] *= g
			}
		case opCopy:
			copy(t.dst[r*t.ld:r*t.ld+w], t.x[r*t.ldx:r*t.ldx+w])
		case opPick:
			from := int(t.at[r]) * t.ldx
			copy(t.dst[r*w:r*w+w], t.x[from:from+w])
		case opSquares:
			for h := range t.heads {
				head := t.x[r*t.ldx+h*t.headDim : r*t.ldx+(h+1)*t.headDim]
				t.dst[r*t.ld+h] = v.Dot(head, head)
			}
		case opNormAcross:
			x := t.dst[r*t.ld : r*t.ld+w]
			v.ScaleWeight(x, x, t.a, acrossFactor(t.x[r*t.ldx:r*t.ldx+t.heads], t.headDim, t.eps))
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
			at := int(t.at[r]) * w
			v.FixedAxpy(t.fixed[at:at+w], t.a[r], t.x[r*w:], t.chunks, t.rows*w)
		case opCut:
			low := t.dst[t.rows*w:]
			v.FixedCut(t.dst[r*w:r*w+w], low[r*w:r*w+w], t.fixed[r*w:r*w+w])
		case opJoin:
			low := t.dst[t.rows*w:]
			v.FixedJoin(t.dst[r*w:r*w+w], low[r*w:r*w+w])
		}
	}
}

// RMSNorm makes dst the rows of x divided by their root mean square and multiplied by a weight.
func (d *Device) RMSNorm(dst, x *compute.Tensor, weight compute.Memory, eps float32) {
	d.Resize(dst, x.Rows, x.Width)
	t := &d.rows
	t.of(opRMSNorm, dst)
	t.x, t.a, t.eps = floats(x.Memory), floats(weight), eps
	t.run()
}

// LayerNorm makes dst the rows of x normalised by mean and variance; dst may be x.
func (d *Device) LayerNorm(dst, x *compute.Tensor, weight, bias compute.Memory, eps float32) {
	if dst != x {
		d.Resize(dst, x.Rows, x.Width)
	}
	t := &d.rows
	t.of(opLayerNorm, dst)
	t.x, t.a, t.b, t.eps = floats(x.Memory), floats(weight), floats(bias), eps
	t.run()
}

// of has the task change all of x.
func (t *rowTask) of(op rowOp, x *compute.Tensor) {
	t.op, t.rows, t.width, t.dst = op, x.Rows, x.Width, floats(x.Memory)
}

// Add computes sum += x.
func (d *Device) Add(sum, x *compute.Tensor) {
	t := &d.rows
	t.of(opAdd, sum)
	t.x = floats(x.Memory)
	t.run()
}

// AddBias adds a bias to each row of x.
func (d *Device) AddBias(x *compute.Tensor, bias compute.Memory) {
	t := &d.rows
	t.of(opAddBias, x)
	t.a = floats(bias)
	t.run()
}

// GatedProduct makes dst what a gating makes of the product of x with w, plus bias unless that is
// nil, in which gate and up lie side by side: they may lie in both. dst is for products with next.
// What is ungated lies in dst alone.
func (d *Device) GatedProduct(g compute.Gating, dst, both *compute.Tensor, w compute.Weight,
	x compute.View, bias compute.Memory, next compute.Weight) {
	if g.Ungated {
		d.Resize(dst, x.Rows, w.Out())
		w.Product(dst.All(), x, bias)
		d.Activate(g.Activation, dst)
		return
	}
	m, one := w.(*weight)
	n, then := next.(*weight)
	if !one || !then || bias != nil || g.Limit > 0 || !m.Gates(x.Rows) || !n.TakesBlocks(x.Rows) {
		d.Resize(both, x.Rows, w.Out())
		w.Product(both.All(), x, bias)
		d.Gate(g, dst, both)
		return
	}
	d.Resize(dst, x.Rows, m.N()/2)
	to := dst.Memory.(*memory)
	m.MulGated(d.pool, &d.gemm, &to.blocks, view(x), x.Stride, x.Rows,
		d.gatedBlocks[g.Activation])
	to.inBlocks = true
}

// siluBlocks makes rows of blocks of SiLU's gating.
func (d *Device) siluBlocks(dst []uint16, gate, up []float32) {
	if n := d.vec.SiluMulBlocks(dst, gate, up); n < len(gate) {
		gate = gate[n:]
		d.vec.SiluMul(gate, gate, up[n:])
		amx.Round(dst[n*amx.Block:], gate)
	}
}

// Gate makes dst of rows in which gate and up lie side by side, and may change those.
func (d *Device) Gate(g compute.Gating, dst, both *compute.Tensor) {
	d.Resize(dst, both.Rows, both.Width/2)
	t := &d.rows
	t.of(opGated, dst)
	t.x, t.gated = floats(both.Memory), d.gated[g.Activation]
	if g.Limit > 0 {
		t.op, t.eps = opClampedSwiGLU, g.Limit
	}
	t.run()
}

// clampedSwiGLU computes compute.Gating with a limit; gate is changed.
func (t *rowTask) clampedSwiGLU(dst, gate, up []float32) {
	const alpha = 1.702
	for i, g := range gate {
		gate[i] = min(g, t.eps)
		dst[i] = alpha * gate[i]
	}
	t.d.vec.Sigmoid(dst)
	for i, s := range dst {
		u := min(max(up[i], -t.eps), t.eps)
		dst[i] = float32(gate[i]*s) * (u + 1)
	}
}

// Scale multiplies x by a factor.
func (d *Device) Scale(x *compute.Tensor, factor float32) {
	t := &d.rows
	t.of(opScale, x)
	t.eps = factor
	t.run()
}

// ScaleRows multiplies each row of x by a factor of its own, [rows][1].
func (d *Device) ScaleRows(x, factors *compute.Tensor) {
	d.scaleRows(x, floats(factors.Memory))
}

func (d *Device) scaleRows(x *compute.Tensor, factors []float32) {
	t := &d.rows
	t.of(opScaleRows, x)
	t.a = factors
	t.run()
}

// TanhCap replaces each v of x by limit·tanh(v/limit).
func (d *Device) TanhCap(x *compute.Tensor, limit float32) {
	t := &d.rows
	t.of(opTanhCap, x)
	t.eps = limit
	t.run()
}

// Clip replaces each v of x by min(max(v, -limit), limit).
func (d *Device) Clip(x *compute.Tensor, limit float32) {
	t := &d.rows
	t.of(opClip, x)
	t.eps = limit
	t.run()
}

// Activate applies an activation to x.
func (d *Device) Activate(a compute.Activation, x *compute.Tensor) {
	t := &d.rows
	t.of([...]rowOp{compute.ReLU: opRelu, compute.GELU: opGelu,
		compute.GELUTanh: opGeluTanh, compute.ReLU2: opRelu2}[a], x)
	t.run()
}

// XIELU applies an activation whose numbers are learned to x.
func (d *Device) XIELU(a compute.XIELU, x *compute.Tensor) {
	t := &d.rows
	t.of(opXIELU, x)
	t.xielu = a
	t.run()
}

// Sigmoid replaces each v of x by the logistic function of it.
func (d *Device) Sigmoid(x *compute.Tensor) {
	t := &d.rows
	t.of(opSigmoid, x)
	t.run()
}

// SigmoidGate multiplies x by the logistic function of gate, which is as large, and changed.
func (d *Device) SigmoidGate(x *compute.Tensor, gate compute.View) {
	t := &d.rows
	t.of(opSigmoidGate, x)
	t.x, t.ldx = view(gate), gate.Stride
	t.run()
}

// Zero makes x zero.
func (d *Device) Zero(x *compute.Tensor) { clear(floats(x.Memory)) }

// Copy makes dst the values of x, which has as many rows and columns.
func (d *Device) Copy(dst, x compute.View) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.x = opCopy, x.Rows, x.Width, view(dst), view(x)
	t.ld, t.ldx = dst.Stride, x.Stride
	t.run()
}

// Pick makes dst the given rows of x, in that order.
func (d *Device) Pick(dst *compute.Tensor, x compute.View, rows []int32) {
	d.Resize(dst, len(rows), x.Width)
	t := &d.rows
	t.of(opPick, dst)
	t.x, t.ldx, t.at = view(x), x.Stride, rows
	t.run()
}

// Heads prepares the heads of queries or keys, which fill x: an RMS norm over each head when weight
// is not nil (Qwen3's q_norm and k_norm), then the rotary embedding of the first dimensions by
// angles, nil for none: of each row half as many cosines as dimensions are turned, then as many
// sines.
func (d *Device) Heads(x compute.View, headDim int, weight compute.Memory, eps float32,
	angles *compute.Tensor) {
	t := &d.rows
	t.op, t.rows, t.width, t.ld, t.dst = opHeads, x.Rows, x.Width, x.Stride, view(x)
	t.b, t.eps, t.heads, t.headDim = floats(weight), eps, x.Width/headDim, headDim
	if angles != nil {
		t.a, t.rot = floats(angles.Memory), angles.Width
	}
	t.run()
}

// StoreHeads does to the heads of queries and of keys what Heads does, and stores keys and values
// as WriteCache does.
func (d *Device) StoreHeads(c compute.Cache, layer int, q, k, v compute.View,
	args compute.HeadArgs, slots []int32) {
	if args.Angles != nil || args.QueryNorm != nil {
		d.Heads(q, args.Dim, args.QueryNorm, args.Eps, args.Angles)
		d.Heads(k, args.Dim, args.KeyNorm, args.Eps, args.Angles)
	}
	d.WriteCache(c, layer, k, v, args.Scales, slots)
}

// Squares makes dst the sums of squares of the heads that fill x, one of each head.
func (d *Device) Squares(dst, x compute.View, headDim int) {
	t := &d.rows
	t.op, t.rows, t.width, t.heads, t.headDim = opSquares, x.Rows, x.Width, x.Width/headDim, headDim
	t.dst, t.ld, t.x, t.ldx = view(dst), dst.Stride, view(x), x.Stride
	t.run()
}

// NormAcross multiplies x by a weight and by the reciprocal of the root mean square of heads whose
// sums of squares are given: they may be more than x has.
func (d *Device) NormAcross(x compute.View, weight compute.Memory, squares compute.View,
	headDim int, eps float32) {
	t := &d.rows
	t.op, t.rows, t.width, t.heads, t.headDim = opNormAcross, x.Rows, x.Width, squares.Width,
		headDim
	t.dst, t.ld, t.x, t.ldx = view(x), x.Stride, view(squares), squares.Stride
	t.a, t.eps = floats(weight), eps
	t.run()
}

// acrossFactor is the reciprocal of the root mean square of heads with the given sums of squares.
func acrossFactor(squares []float32, headDim int, eps float32) float32 {
	sum := float32(0)
	for _, s := range squares {
		sum += s
	}
	n := float32(len(squares) * headDim)
	return float32(1 / math.Sqrt(float64(sum/n+eps)))
}

// WriteCache stores the keys and values of k's and v's rows in the layer: row r goes to slots[r],
// which no other row may have; a negative slot leaves it out. v is empty for a layer that keeps
// latents.
func (d *Device) WriteCache(c compute.Cache, layer int, k, v compute.View,
	scales compute.CacheScales, slots []int32) {
	t := &d.rows
	if v.Memory == nil {
		v = k
	}
	t.op, t.rows, t.width, t.ld = opCache, k.Rows, k.Width+v.Width, k.Stride
	t.a, t.b = view(k), view(v)
	t.cache, t.layer, t.scales, t.at = c.(*attention.Cache), layer, scales, slots
	t.run()
}

// addWeighted adds weight[i]·parts[c][i] to dst[at[i]] for each i and each chunk c: dst is
// [..][width], parts, as ProductChunks makes them, [chunks][len(at)][width]. No two of at may be
// equal. The sums are fixed-point (see [vec.Ops.FixedAxpy]): their bits do not depend on the order
// of calls.
func (d *Device) addWeighted(dst []float64, parts, weight []float32, at []int32, chunks, width int,
) {
	t := &d.rows
	t.op, t.rows, t.width, t.chunks = opAddWeighted, len(at), width, chunks
	t.fixed, t.x, t.a, t.at = dst, parts, weight, at
	t.run()
}

// cut makes dst, [2][rows][width], the high and the low parts of fixed-point sums.
func (d *Device) cut(dst []float32, sums []float64, rows, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.fixed = opCut, rows, width, dst, sums
	t.run()
}

// join adds the low parts of sums to the high ones: it undoes cut.
func (d *Device) join(dst []float32, rows, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst = opJoin, rows, width, dst
	t.run()
}
