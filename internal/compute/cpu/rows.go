package cpu

// Row operations: each row is computed by one thread, in an order of its own.

type rowOp uint8

const (
	opRMSNorm rowOp = iota
	opLayerNorm
	opAdd
	opAddBias
	opSiluMul
	opRelu
	opGelu
	opSilu
	opHeads
)

// serialElements is the size of a row operation below which waking the other threads costs more than it
// saves.
const serialElements = 16 << 10

// rowTask is the one row operation in flight; a struct rather than a closure, so that a step allocates
// nothing.
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
}

func (t *rowTask) run() {
	if t.rows*t.width < serialElements || t.d.pool.Threads() == 1 {
		t.perChunk = t.rows
		t.Do(0, 0)
	} else {
		chunks := min(t.rows, 4*t.d.pool.Threads())
		t.perChunk = (t.rows + chunks - 1) / chunks
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
	w := t.width
	for r := lo; r < hi; r++ {
		switch t.op {
		case opRMSNorm:
			v.RMSNorm(t.dst[r*w:r*w+w], t.x[r*w:r*w+w], t.a, t.eps)
		case opLayerNorm:
			v.LayerNorm(t.dst[r*w:r*w+w], t.x[r*w:r*w+w], t.a, t.b, t.eps)
		case opAdd:
			v.Add(t.dst[r*w:r*w+w], t.x[r*w:r*w+w])
		case opAddBias:
			v.Add(t.dst[r*w:r*w+w], t.a)
		case opSiluMul:
			v.SiluMul(t.dst[r*w:r*w+w], t.x[r*2*w:r*2*w+w], t.x[r*2*w+w:r*2*w+2*w])
		case opRelu:
			v.Relu(t.dst[r*w : r*w+w])
		case opGelu:
			v.GeluErf(t.dst[r*w : r*w+w])
		case opSilu:
			v.Silu(t.dst[r*w : r*w+w])
		case opHeads:
			half := t.rot / 2
			cos, sin := t.a[r*2*half:r*2*half+half], t.a[r*2*half+half:r*2*half+2*half]
			for h := range t.heads {
				at := r*t.ld + h*t.headDim
				x := t.dst[at : at+t.headDim]
				if t.b != nil {
					v.RMSNorm(x, x, t.b, t.eps)
				}
				v.Rope(x, t.headDim, t.rot, cos, sin)
			}
		}
	}
}

// RMSNorm normalises rows rows of x ([rows][width]) by their root mean square into dst.
func (d *Device) RMSNorm(dst, x, weight []float32, rows int, eps float32) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.x, t.a, t.eps = opRMSNorm, rows, len(weight), dst, x, weight, eps
	t.run()
}

// LayerNorm normalises rows rows of x ([rows][width]) by mean and variance into dst.
func (d *Device) LayerNorm(dst, x, weight, bias []float32, rows int, eps float32) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.x, t.a, t.b, t.eps = opLayerNorm, rows, len(weight), dst, x, weight, bias, eps
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

// SiluMul computes dst = silu(gate)·up: x is [rows][2·width], gate first, dst [rows][width].
func (d *Device) SiluMul(dst, x []float32, rows, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst, t.x = opSiluMul, rows, width, dst, x
	t.run()
}

// Activation names an element-wise non-linearity.
type Activation uint8

// The activations of two-matrix feed-forward blocks.
const (
	ReLU Activation = iota
	GELU
	SiLU
)

// Activate applies a to x ([rows][width]) in place.
func (d *Device) Activate(a Activation, x []float32, rows, width int) {
	t := &d.rows
	t.op, t.rows, t.width, t.dst = [...]rowOp{opRelu, opGelu, opSilu}[a], rows, width, x
	t.run()
}

// Heads prepares the heads of queries or keys in place: an RMS norm over each head when weight is not nil
// (Qwen3's q_norm and k_norm), then the rotary embedding of the first rot dimensions. x is [rows][ld] with
// heads·headDim values at the front of each row; rope is [rows][rot]: rot/2 cosines, then rot/2 sines.
func (d *Device) Heads(x []float32, ld, rows, heads, headDim int, weight []float32, eps float32, rope []float32, rot int) {
	t := &d.rows
	t.op, t.rows, t.width, t.ld, t.dst, t.a, t.b = opHeads, rows, heads*headDim, ld, x, rope, weight
	t.eps, t.heads, t.headDim, t.rot = eps, heads, headDim, rot
	t.run()
}
