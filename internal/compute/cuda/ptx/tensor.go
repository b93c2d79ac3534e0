package ptx

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// TensorMap describes a tensor in global memory for cp.async.bulk.tensor, as cuTensorMapEncodeTiled
// does. What its 128 bytes hold is this package's own.
type TensorMap struct {
	// Base is the tensor's address, a multiple of 16.
	Base uint64
	// ElementBytes is 1, 2, 4 or 8.
	ElementBytes uint32
	// Dims are the elements in each dimension, the innermost first: one to five.
	Dims []uint32
	// Strides are the bytes from one element to the next in each dimension but the innermost:
	// multiples of 16.
	Strides []uint64
	// Box is how many elements a copy has in each dimension, at most 256.
	Box []uint32
	// Swizzle is the pattern in shared memory: 0, 32, 64 or 128 bytes.
	Swizzle int
}

// TensorMapBytes is the size of an encoded TensorMap. It must lie at a multiple of 64.
const TensorMapBytes = 128

// Encode is the map as kernels get it. The error says what is not possible in it.
func (t *TensorMap) Encode() ([TensorMapBytes]byte, error) {
	var b [TensorMapBytes]byte
	n := len(t.Dims)
	if n < 1 || n > 5 || len(t.Strides) != n-1 || len(t.Box) != n {
		return b, errors.New("ptx: a tensor map of another number of dimensions, strides or boxes")
	}
	if t.Base%16 != 0 {
		return b, fmt.Errorf("ptx: a tensor at %#x, which is no multiple of 16", t.Base)
	}
	switch t.ElementBytes {
	case 1, 2, 4, 8:
	default:
		return b, fmt.Errorf("ptx: elements of %d bytes", t.ElementBytes)
	}
	s, ok := swizzleOf(t.Swizzle)
	inner := uint64(t.Box[0]) * uint64(t.ElementBytes)
	if !ok || inner%16 != 0 || t.Swizzle > 0 && inner > uint64(t.Swizzle) {
		return b, fmt.Errorf("ptx: rows of %d bytes with a swizzle of %d", inner, t.Swizzle)
	}
	put := binary.LittleEndian
	put.PutUint32(b[0:], tensorMagic)
	b[4], b[5], b[6] = byte(n), byte(s), byte(t.ElementBytes)
	put.PutUint64(b[8:], t.Base)
	for i := range n {
		if t.Dims[i] == 0 || t.Box[i] == 0 || t.Box[i] > 256 {
			return b, fmt.Errorf("ptx: dimension %d of %d elements in boxes of %d", i, t.Dims[i],
				t.Box[i])
		}
		put.PutUint32(b[16+4*i:], t.Dims[i])
		put.PutUint32(b[36+4*i:], t.Box[i])
		if i > 0 {
			if t.Strides[i-1]%16 != 0 {
				return b, fmt.Errorf("ptx: a stride of %d bytes, no multiple of 16", t.Strides[i-1])
			}
			put.PutUint64(b[56+8*i:], t.Strides[i-1])
		}
	}
	return b, nil
}

const tensorMagic = 0x70616d74

// tensor is a decoded map.
type tensor struct {
	rank    int
	swizzle swizzle
	element uint64
	base    uint64
	dims    [5]uint32
	box     [5]uint32
	strides [5]uint64
}

func decodeTensor(b []byte) (t tensor, ok bool) {
	get := binary.LittleEndian
	if get.Uint32(b) != tensorMagic || b[4] < 1 || b[4] > 5 {
		return t, false
	}
	t.rank, t.swizzle, t.element, t.base = int(b[4]), swizzle(b[5]), uint64(b[6]), get.Uint64(b[8:])
	for i := range t.rank {
		t.dims[i], t.box[i] = get.Uint32(b[16+4*i:]), get.Uint32(b[36+4*i:])
		if i > 0 {
			t.strides[i] = get.Uint64(b[56+8*i:])
		}
	}
	return t, true
}

// swizzle is how the 16-byte pieces of shared memory are exchanged (PTX ISA 5.5.6): the piece's
// number within a row of 32, 64 or 128 bytes is combined with that of the row.
type swizzle uint8

const (
	noSwizzle swizzle = iota
	swizzle32
	swizzle64
	swizzle128
)

func swizzleOf(bytes int) (swizzle, bool) {
	s, ok := map[int]swizzle{0: noSwizzle, 32: swizzle32, 64: swizzle64, 128: swizzle128}[bytes]
	return s, ok
}

// place is where a byte goes: bits 7 and up are added to bits 4 and up, one, two or three of them.
func (s swizzle) place(a uint64) uint64 { return a ^ a>>7&(1<<s-1)<<4 }

// tensorCopy decodes cp.async.bulk.tensor in tile mode.
func (d *decoder) tensorCopy() {
	args := d.st.args
	op := &bulkOp{tensor: true, load: d.st.hasPrefix("mbarrier")}
	want := 2
	if op.load {
		want = 3
	}
	if d.st.has("L2::cache_hint") && len(args) == want+1 {
		args = args[:want]
	}
	if len(args) != want {
		d.failf("unknown operands")
		return
	}
	in := inst{exec: op.exec, d: none, c: none, ext: &extra{}}
	shared, mapped := args[1], args[0]
	if op.load {
		shared, mapped = mapped, shared
		in.c, op.mbarrier.wide, op.mbarrier.offset = d.memoryAddress(args[2], sharedSpace)
	}
	if len(mapped.elems) != 1 {
		d.failf("coordinates are wanted")
		return
	}
	for _, o := range d.elements(mapped.elems[0]) {
		in.ext.srcs = append(in.ext.srcs, d.src(o, u32Type))
	}
	in.a, op.shared, op.sharedAt = d.memoryAddress(shared, sharedSpace)
	in.b, op.other, op.otherAt = d.memoryAddress(mapped, genericSpace)
	d.emit(in)
}

// tensorMap reads the map of a lane's copy, in parameters or in global memory.
func (op *bulkOp) tensorMap(w *warp, in *inst, lane int) tensor {
	w.ea[lane] = w.value(op.other, in.b, lane) + op.otherAt
	if w.ea[lane]%64 != 0 {
		w.failLane(lane, "a tensor map at %#x, which is no multiple of 64", w.ea[lane])
	}
	var b []byte
	addr := w.ea[lane]
	if at := addr - paramWindow; at < windowSize {
		if at+TensorMapBytes > uint64(w.kernel.ParamBytes) {
			w.failLane(lane, "a tensor map beyond the parameters")
		}
		b = w.cta.launch.params[at : at+TensorMapBytes]
	} else {
		r := w.globalRun(addr, TensorMapBytes, lane)
		b = r.in.data[r.at : r.at+r.n]
	}
	t, ok := decodeTensor(b)
	if !ok || t.rank != len(in.ext.srcs) {
		w.failLane(lane, "no tensor map of %d dimensions at %#x", len(in.ext.srcs), addr)
	}
	return t
}

// tensorRuns are the rows of a box. Rows outside the tensor, and what of a row is, are zeros in a
// load and left out of a store.
func (op *bulkOp) tensorRuns(w *warp, in *inst, lane int, shared uint64) []run {
	t := op.tensorMap(w, in, lane)
	if pattern := uint64(128) << t.swizzle; t.swizzle != noSwizzle && shared%pattern != 0 {
		// The pattern repeats every 256, 512 or 1024 bytes, and is one of addresses.
		w.failLane(lane, "a swizzled tensor at shared %#x, which is no multiple of %d", shared,
			pattern)
	}
	var first [5]int64
	for i, r := range in.ext.srcs {
		first[i] = int64(int32(w.r32[r][lane]))
	}
	rows := 1
	for i := 1; i < t.rank; i++ {
		rows *= int(t.box[i])
	}
	inner := uint64(t.box[0]) * t.element
	var all []run
	for n := range rows {
		at, inside := t.row(first, n)
		all = append(all, t.cut(w, lane, at, inside, first[0], shared+uint64(n)*inner, op.load)...)
	}
	return all
}

// row is the address of the first element of a box's row n, and whether the row is in the tensor.
func (t *tensor) row(first [5]int64, n int) (at uint64, inside bool) {
	at, inside = t.base, true
	for i := 1; i < t.rank; i++ {
		c := first[i] + int64(n%int(t.box[i]))
		n /= int(t.box[i])
		if c < 0 || c >= int64(t.dims[i]) {
			inside = false
		}
		at += uint64(c) * t.strides[i]
	}
	return at, inside
}

// cut makes runs of one row: of zeros before and behind the tensor, and of its elements.
func (t *tensor) cut(w *warp, lane int, at uint64, inside bool, x int64, shared uint64,
	load bool) []run {
	size, n := t.element, int64(t.box[0])
	from, to := min(max(0, -x), n), max(0, min(n, int64(t.dims[0])-x))
	if !inside || from >= to {
		from, to = n, n
	}
	var all []run
	zeros := func(a, b int64) {
		if load && b > a {
			all = append(all, run{shared: shared + uint64(a)*size, n: uint64(b-a) * size,
				swizzle: t.swizzle})
		}
	}
	zeros(0, from)
	if to > from {
		addr, bytes := at+uint64(x+from)*size, uint64(to-from)*size
		a, off, err := w.cta.mem.span(addr, bytes)
		if err != nil {
			w.failLane(lane, "a tensor beyond its memory: %v", err)
		}
		all = append(all, run{a, off, shared + uint64(from)*size, bytes, t.swizzle})
	}
	zeros(to, n)
	return all
}
