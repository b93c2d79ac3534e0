package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// product is what the tensor cores multiply of input features at a time: each chunk is padded to a
// multiple with zeros.
const product = 16

// weight is a matrix in the device's memory: [out][chunks][padded] in the type that models run in,
// or codes.
type weight struct {
	d       *Device
	owned   *buffers // data, freed when the weight is
	data    driver.Ptr
	bytes   int
	out, in int
	chunks  int
	padded  int       // input features of a chunk
	codes   *coded    // nil of plain ones
	seen    *matrices // the weight alone, made when it is multiplied by first
}

// newWeight is memory for a weight.
func (d *Device) newWeight(bytes int) *weight {
	d.reclaim()
	p := d.alloc(bytes, "weights")
	w := &weight{d: d, data: p, bytes: bytes, owned: &buffers{values: p}}
	runtime.AddCleanup(w, d.reclaimed.add, w.owned)
	return w
}

// Out implements compute.Weight.
func (w *weight) Out() int { return w.out }

// In implements compute.Weight.
func (w *weight) In() int { return w.in }

// Bytes implements compute.Weight.
func (w *weight) Bytes() int { return w.bytes }

// Free implements compute.Weight.
func (w *weight) Free() {
	if w.data != 0 {
		b := *w.owned
		*w.owned, w.data = buffers{}, 0
		w.d.reclaimed.add(&b) // another goroutine may free it than the device's
	}
}

// paddedWidth is what a chunk of input features is padded to.
func paddedWidth(in, chunks int) int {
	return ((in+chunks-1)/chunks + product - 1) / product * product
}

// stacked are how many rows sources have together, and how many columns all have.
func stacked(sources []compute.Source) (out, in int, err error) {
	for i, s := range sources {
		rows, cols := s.RowHi-s.RowLo, s.ColHi-s.ColLo
		if i > 0 && cols != in || rows < 1 || cols < 1 {
			return 0, 0, fmt.Errorf("source %d of a weight is %d x %d, the first has %d columns",
				i, rows, cols, in)
		}
		out, in = out+rows, cols
	}
	return out, in, nil
}

// Pack makes a weight of the stacked sources in the type that models run in. Sources that are not
// finite are a *compute.NotFinite.
func (d *Device) Pack(chunks int, sources ...compute.Source) (compute.Weight, error) {
	out, in, err := stacked(sources)
	if err != nil {
		return nil, err
	}
	padded := paddedWidth(in, chunks)
	row := chunks * padded
	size := d.dtype.Size()
	w := d.newWeight(size * out * row)
	w.out, w.in, w.chunks, w.padded = out, in, chunks, padded
	to := w.data
	for i, s := range sources {
		if err := d.packSource(to, &s, chunks, padded); err != nil {
			w.Free()
			if bad := (*compute.NotFinite)(nil); errors.As(err, &bad) {
				bad.Source = i
			}
			return nil, err
		}
		to += driver.Ptr(size * row * (s.RowHi - s.RowLo))
	}
	if d.err != nil {
		return nil, d.err
	}
	if err := w.plan(); err != nil {
		w.Free()
		return nil, err
	}
	return w, nil
}

// packSource sends the rows of a source, as many at a time as a piece of staging has room for.
func (d *Device) packSource(to driver.Ptr, s *compute.Source, chunks, padded int) error {
	width := chunks * padded * d.dtype.Size() // in bytes
	for r := s.RowLo; r < s.RowHi; {
		if d.err != nil {
			return d.err
		}
		piece, err := d.staging.next(d)
		if err != nil {
			return fmt.Errorf("pinned memory to load through: %w", err)
		}
		rows := min(s.RowHi-r, len(piece)/width)
		if rows == 0 {
			return fmt.Errorf("a row of %d input features", chunks*padded)
		}
		p := packing{s: s, row: r, dtype: d.dtype, chunks: chunks, padded: padded,
			to: piece[:rows*width]}
		d.pool.Run(&p, rows)
		if p.bad.Load() {
			return p.find(rows)
		}
		if err := d.ctx.Upload(to, p.to, d.stream); err != nil {
			return err
		}
		to += driver.Ptr(rows * width)
		r += rows
	}
	return nil
}

// element is a number of a source as 32 bits.
func element(s *compute.Source, data []byte) float32 {
	switch s.DType {
	case compute.Float32:
		return *(*float32)(unsafe.Pointer(&data[0]))
	case compute.Float16:
		return half.FromF16(*(*uint16)(unsafe.Pointer(&data[0])))
	}
	return half.FromBF16(*(*uint16)(unsafe.Pointer(&data[0])))
}

// rounded is a number in the type of 16 bits that models run in.
func rounded(v float32, dtype compute.DType) uint16 {
	if dtype == compute.Float16 {
		return half.ToF16(v)
	}
	return half.ToBF16(v)
}

// Retire frees a weight: the device's memory needs no time to be found again.
func (d *Device) Retire(w compute.Weight) { w.Free() }

// Reserve implements layers.Device.
func (d *Device) Reserve([]compute.Weight) error { return nil }

// Product implements compute.Weight.
func (w *weight) Product(dst, x compute.View, bias compute.Memory) {
	w.multiply(dst, x, at(bias), 0)
}

// ProductAdded implements compute.Weight.
func (w *weight) ProductAdded(dst, x compute.View) { w.multiply(dst, x, 0, 1) }

// partsBytes bounds the memory that the chunks of a product are kept in before they are added.
const partsBytes = 128 << 20

// multiply computes dst = x·Wᵀ + bias, or adds to it. Chunks are kept apart, then added as a tree.
func (w *weight) multiply(dst, x compute.View, bias driver.Ptr, add int32) {
	d := w.d
	defer of(dst.Memory).written()
	if w.chunks == 1 {
		w.launch(gemm{dst: first(dst), ld: dst.Stride, x: x, bias: bias, add: add, rows: x.Rows})
		return
	}
	chunks, kept := w.added(x)
	most := max(1, partsBytes/(4*kept*w.out))
	for from := 0; from < x.Rows; from += most {
		rows := min(most, x.Rows-from)
		part := x
		part.From, part.Rows = x.From+from*x.Stride, rows
		if rows < x.Rows {
			chunks, kept = w.added(part)
		}
		parts := d.parts.grow(d, 4*kept*rows*w.out)
		w.launch(gemm{dst: parts, ld: w.out, chunk: rows * w.out, x: part, rows: rows,
			whole: chunks == 1})
		if m := of(dst.Memory); bias == 0 && rows*w.out == m.floats {
			d.pending = pending{sums: m, parts: parts, chunks: chunks, rows: rows, width: w.out}
			if add != 0 {
				d.pending.sums, d.pending.onto = nil, m
			}
			return
		}
		n := rows * w.out
		elements(d, kernels.SumChunks, n, kernels.SumChunksParams{Parts: parts,
			Y: first(dst) + driver.Ptr(4*from*dst.Stride), Bias: bias, Chunks: int32(chunks),
			Rows: int32(rows), Width: int32(w.out), LDY: int32(dst.Stride), Add: add})
	}
}

// added is how many sums of a row a product of several chunks leaves to be added, and how many it
// keeps on the way.
func (w *weight) added(x compute.View) (sums, kept int) {
	g := gemm{ld: w.out, chunk: x.Rows * w.out, x: x, rows: x.Rows, whole: w.d.library.fast}
	in, ld := w.inputs(&g)
	switch byLibrary := w.byLibrary(&g, in, ld) != nil; {
	case byLibrary && g.whole:
		return 1, 1
	case byLibrary || !w.addsChunks(&g, in, ld):
		return w.chunks, w.chunks
	case w.codes != nil:
		return 1, 2 // a sum of two chunks waits behind the others
	}
	return 1, 1
}

// ProductChunks implements compute.Weight.
func (w *weight) ProductChunks(dst *compute.Tensor, x compute.View) {
	w.d.Resize(dst, w.chunks*x.Rows, w.out)
	w.launch(gemm{dst: at(dst.Memory), ld: w.out, chunk: x.Rows * w.out, x: x, rows: x.Rows})
}

// gemm is a product to be launched: rows of x, which may be picked, to rows of dst, chunks apart.
type gemm struct {
	dst       driver.Ptr
	ld, chunk int
	x         compute.View
	bias      driver.Ptr
	add       int32
	rows      int
	// Of a grouped product, the addresses of its experts' weights, biases, scales, offsets and
	// orders, where the rows of each begin, and which row of x each of them is; groups are the
	// experts, pairs the rows of all.
	experts, biases, scales, offsets, orders, first, picked driver.Ptr
	groups, pairs                                           int
	seen                                                    *matrices // of the experts, plain ones
	whole                                                   bool      // dst gets the chunks' sums
}

// size is a kernel for products.
type size struct {
	features, rows, threads, stages int
	kernel                          kernels.ID // of bfloat16
}

// Kernels of codes follow the plain ones.
const (
	codes4 = kernels.Gemm8BF16Codes4 - kernels.Gemm8BF16
	codes8 = kernels.Gemm8BF16Codes8 - kernels.Gemm8BF16
)

var sizes = [...]size{
	{64, 8, 128, 5, kernels.Gemm8BF16},
	{64, 16, 128, 5, kernels.Gemm16BF16},
	{64, 32, 128, 4, kernels.Gemm32BF16},
	{128, 64, 256, 4, kernels.Gemm64BF16},
	{128, 128, 256, 3, kernels.Gemm128BF16},
}

// weights are the bytes of a step's weights of so many bits: a step is 64 input features.
func (s *size) weights(bits int) int { return s.features * tileIn * bits / 8 }

// shared is the dynamic shared memory of a block whose stages have room for a step: its weights,
// scales and offsets of four groups, and inputs of 16 bits.
func (s *size) shared(bits int) int {
	step := s.weights(bits) + s.rows*tileIn*2
	if bits < 16 {
		step += 2 * 4 * 4 * s.features
	}
	return s.stages * step
}

// staticShared bounds the shared memory that kernels for products have beside, and what the device
// takes of it for a block.
const staticShared = 2 << 10

// mostUnits is how many steps a block's stages may have room for.
func (s *size) mostUnits(d *Device, bits int) int {
	return (d.info.Shared - staticShared) / s.shared(bits)
}

// onTheirWay is how many bytes of weights a multiprocessor waits for at a time, so that memory is
// never idle: HBM3e of 4.8 TB/s, from which they come after a microsecond, has 37,000 for each of
// 132.
const onTheirWay = 64 << 10

// alone says that a block takes more than half of a multiprocessor's registers.
func (s *size) alone(bits int) bool { return s.rows > 64 || s.rows > 32 && bits < 16 }

// unit is how many steps a stage has room for, where so many blocks have something to compute, each
// so many steps: as many as it takes for onTheirWay, while all blocks have room. It changes no
// bits.
func (s *size) unit(d *Device, bits, blocks, steps int) int {
	each := 1 // blocks of a multiprocessor
	if n := max(1, d.info.Multiprocessors); !s.alone(bits) {
		each = ceil(blocks, n)
	}
	wanted := (onTheirWay - 1) / (each * (s.stages - 1) * s.weights(bits))
	room := ((d.info.Shared+staticShared/2)/each - staticShared) / s.shared(bits)
	return max(1, min(wanted+1, room, s.mostUnits(d, bits), ceil(steps, s.stages)))
}

// sizeFor is the kernel for so many rows. Which one it is changes no bits.
func sizeFor(rows int) *size {
	for i := range sizes {
		if s := &sizes[i]; rows <= s.rows {
			return s
		}
	}
	return &sizes[len(sizes)-1]
}

// allowShared lets kernels have the shared memory they need.
func (d *Device) allowShared() error {
	allow := func(k kernels.ID, bytes int) error { // a kernel of bfloat16
		k = d.typed(k)
		if bytes > d.info.Shared {
			return fmt.Errorf("CUDA device %s has %d bytes of shared memory for a block: "+
				"kernel %s needs %d", d.info.Name, d.info.Shared, k.Name(), bytes)
		}
		if err := d.ctx.AllowShared(d.functions[k], bytes); err != nil {
			return fmt.Errorf("shared memory of kernel %s: %w", k.Name(), err)
		}
		return nil
	}
	var all error
	for i := range sizes {
		s := &sizes[i]
		for of, bits := range map[kernels.ID]int{0: 16, codes4: 4, codes8: 8} {
			units := max(1, s.mostUnits(d, bits))
			all = errors.Join(all, allow(s.kernel+of, units*s.shared(bits)))
		}
	}
	for _, dim := range []int{64, 128} {
		all = errors.Join(all, allow(attendKernel(kernels.Attend64BF16, dim), attendShared(dim)),
			allow(attendKernel(kernels.AttendFew64BF16, dim), fewShared(dim)),
			allow(attendKernel(kernels.AttendSegments64BF16, dim), segmentsShared(dim)))
	}
	for i := range splits {
		k := &splits[i]
		all = errors.Join(all, allow(k.kernel, k.mostShared(d.info.Shared)))
	}
	return errors.Join(all, d.allowGroups(allow))
}

// A block of order_columns has so many threads, for so many columns.
const (
	orderBlock   = 256
	orderColumns = 512
)

// ordered is where the inputs of a product are, side by side, rows of x, in the order of a weight's
// columns, if it has one.
func (w *weight) ordered(g *gemm, x driver.Ptr) driver.Ptr {
	rows := max(g.rows, g.pairs)
	y, order := w.d.ordered.grow(w.d, 2*rows*w.in), driver.Ptr(0)
	if w.codes != nil {
		order = w.codes.order
	}
	launch(w.d, kernels.OrderColumns,
		[3]uint32{uint32(rows), uint32((w.in + orderColumns - 1) / orderColumns), 1},
		[3]uint32{orderBlock, 1, 1}, 0, kernels.OrderColumnsParams{X: x, Y: y,
			Order: order, Orders: g.orders, First: g.first, Picked: g.picked,
			Width: int32(w.in), LDX: int32(g.x.Stride), Experts: int32(g.groups)})
	return y
}

// inputs is where the numbers of 16 bits are that a product multiplies, and how far apart its rows.
func (w *weight) inputs(g *gemm) (x driver.Ptr, ld int) {
	return of(g.x.Memory).half(false) + driver.Ptr(2*g.x.From), g.x.Stride
}

// launch enqueues a product.
func (w *weight) launch(g gemm) {
	d := w.d
	if d.dtype == compute.Float32 {
		w.launchFloat(&g)
		return
	}
	s := sizeFor(g.rows)
	if g.groups > 0 {
		// Most experts have few of the rows: a second tile, for those that have more, ends at once.
		s = sizeFor(max((g.rows+1)/2, 2*g.pairs/g.groups))
	}
	groups := max(g.groups, 1)
	kernel := d.typed(s.kernel)
	bits, q := 16, kernels.QuantisedParams{Group: 1}
	if w.codes != nil {
		bits, q = w.codes.bits(), w.codes.params(d.dtype)
		q.Scales, q.Offsets = g.scales, g.offsets
		if kernel += codes4; bits == 8 {
			kernel += codes8 - codes4
		}
	}
	x, ld := w.inputs(&g)
	if w.codes != nil && w.codes.order != 0 {
		x, ld, g.picked = w.ordered(&g, x), w.in, 0
	}
	if a := w.byLibrary(&g, x, ld); a != nil {
		w.launchLibrary(&g, a, x, ld)
		return
	}
	if g.whole || w.byGroups(&g, x, ld) {
		if g.picked != 0 {
			x, ld = w.ordered(&g, x), w.in
		}
		w.launchGroups(&g, x, ld)
		return
	}
	p := kernels.GemmParams{W: w.data, Experts: g.experts, First: g.first, Picked: g.picked,
		X: x, Bias: g.bias, Biases: g.biases, Y: g.dst,
		ChunkStride: uint64(g.chunk), Out: int32(w.out), Rows: int32(g.rows), In: int32(w.in),
		Kpad: int32(w.padded), Chunks: int32(w.chunks), LDX: int32(ld),
		LDY: int32(g.ld), Add: g.add, Q: q}
	features := ceil(w.out, s.features)
	blocks := features * w.chunks
	if g.groups > 0 {
		blocks *= min(g.groups, g.pairs)
	}
	unit := s.unit(d, bits, blocks, ceil(w.padded, tileIn))
	p.Unit = int32(unit)
	if w.in%(8*w.chunks) == 0 && x%16 == 0 && ld%8 == 0 && (w.codes == nil || q.Lead%8 == 0) {
		p.Aligned = 1
	}
	grid := [3]uint32{uint32(features), uint32(ceil(g.rows, s.rows)),
		uint32(groups * w.chunks)}
	launch(d, kernel, grid, [3]uint32{uint32(s.threads), 1, 1}, unit*s.shared(bits), p)
}

// floatFeatures are the output features of a block of products of float32, floatThreads its
// threads.
const (
	floatFeatures = 64
	floatThreads  = 64
)

// launchFloat enqueues a product of float32.
func (w *weight) launchFloat(g *gemm) {
	kernel, tile := kernels.Gemm4F32, 4
	if g.rows > 16 {
		kernel, tile = kernels.Gemm32F32, 32
	}
	groups := max(g.groups, 1)
	launch(w.d, kernel, [3]uint32{uint32((w.out + floatFeatures - 1) / floatFeatures),
		uint32((g.rows + tile - 1) / tile), uint32(groups * w.chunks)},
		[3]uint32{floatThreads, 1, 1}, 0, kernels.GemmF32Params{W: w.data, Experts: g.experts,
			First: g.first, Picked: g.picked, X: first(g.x), Bias: g.bias, Biases: g.biases,
			Y: g.dst, ChunkStride: uint64(g.chunk), Out: int32(w.out), Rows: int32(g.rows),
			In: int32(w.in), Kpad: int32(w.padded), Chunks: int32(w.chunks),
			LDX: int32(g.x.Stride), LDY: int32(g.ld), Add: g.add})
}
