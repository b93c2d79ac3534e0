package cuda

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// What blocks of hopper.sm_90a.cu are: threads, output features of a product, rows of a copy's box,
// and query rows and stages of the ring of attention.
const (
	groupThreads  = 384
	groupFeatures = 128
	groupRows     = 128
	groupStages   = 4
)

// groupSize is a kernel for products of many rows: rows of a block, stages of the ring between
// copies and products, and bytes of sums that wait in shared memory.
type groupSize struct {
	rows, stages, sums int
	kernel             kernels.ID // of bfloat16
}

var (
	groups128  = groupSize{128, 6, 0, kernels.GemmGroupsBF16}
	groups256  = groupSize{256, 4, 0, kernels.GemmGroups256BF16}
	groupsTree = groupSize{128, 5, 4 * groupFeatures * 128, kernels.GemmGroupsTreeBF16}
)

// shared is the dynamic shared memory of a block.
func (s groupSize) shared() int {
	return s.stages*2*tileIn*(groupFeatures+s.rows) + s.sums
}

// warpGroups are the kernels of sm_90 for many rows. They compute the bits of the others, which
// compute few rows and what these do not, if wgmma adds as mma does: so it was measured
// (MMA-Sim, https://arxiv.org/abs/2511.10909), and so the device at hand shows before it uses them.
type warpGroups struct {
	able bool // the device has them
	on   bool
	why  string // not
}

// findWarpGroups decides whether the device uses its warp groups.
func (d *Device) findWarpGroups() error {
	g := &d.groups
	if d.dtype == compute.Float32 {
		g.why = "they multiply 16 bits"
		return nil
	}
	if !kernels.CompareProductsBF16.Fits(d.info.Major, d.info.Minor) {
		g.why = d.info.Arch() + " has none"
		return nil
	}
	if _, err := d.ctx.TensorMap(&driver.Tensor{Base: d.ring.there, Columns: 64, Rows: 16,
		Box: 16, Stride: 128}); err != nil {
		g.why = err.Error()
		return nil
	}
	g.able = true
	differing, of, err := d.CompareProducts()
	if err != nil {
		return fmt.Errorf("compare wgmma with mma: %w", err)
	}
	if g.on = differing == 0; !g.on {
		g.why = fmt.Sprintf("wgmma and mma have other bits in %d of %d sums", differing, of)
	}
	return nil
}

// UseWarpGroups has steps of many rows computed by warp groups, which the device must have, or not,
// whatever the bits.
func (d *Device) UseWarpGroups(on bool) {
	if on && !d.groups.able {
		d.check(fmt.Errorf("no warp groups: %s", d.groups.why))
		return
	}
	d.groups.on = on
}

// UseMultiprocessors has grids be those of a device of so many, and returns how many it had.
func (d *Device) UseMultiprocessors(n int) (before int) {
	before, d.info.Multiprocessors = d.info.Multiprocessors, n
	return before
}

// ManyRows says what computes many rows, and why.
func (d *Device) ManyRows() string {
	by := "mma: " + d.groups.why
	switch {
	case d.dtype == compute.Float32:
		by = "FMA in float32"
	case d.groups.on:
		by = "wgmma"
	}
	if l := d.library.describe(); l != "" {
		by += "; " + l
	}
	return by
}

// What CompareProducts compares: blocks of 64 by 256 sums of 64 products.
const (
	comparedBlocks = 2
	comparedIn     = 64
	comparedRows   = 64
	comparedCols   = 256
)

// ofAnySize is a number whose sums show how they are added: such numbers have very different sizes.
func ofAnySize(random *rand.Rand) float32 {
	return float32(random.NormFloat64() * math.Exp2(float64(random.IntN(13)-6)))
}

// CompareProducts counts the sums that wgmma and mma compute with other bits, and all of them: of
// numbers of very different sizes, whose products cancel, so that what is lost of each shows. The
// device must have warp groups.
func (d *Device) CompareProducts() (differing, of int, err error) {
	const a = 2 * comparedBlocks * comparedRows * comparedIn
	const b = 2 * comparedBlocks * comparedCols * comparedIn
	const c = 4 * comparedBlocks * comparedRows * comparedCols
	const counts = 4 * comparedBlocks * 128
	host, err := d.ctx.Pin(a + b + c + counts)
	if err != nil {
		return 0, 0, err
	}
	random := rand.New(rand.NewPCG(90, 64))
	halves := unsafe.Slice((*uint16)(unsafe.Pointer(&host[0])), (a+b)/2)
	for i := range halves {
		halves[i] = rounded(ofAnySize(random), d.dtype)
	}
	// What 16 added the next 16 take away, nearly.
	for i := 16; i < len(halves); i += 32 {
		copy(halves[i:i+16], halves[i-16:i])
	}
	for i := range halves[:a/2] {
		if i%32 >= 16 {
			halves[i] ^= 0x8000
			if random.IntN(4) == 0 {
				halves[i]++
			}
		}
	}
	sums := unsafe.Slice((*float32)(unsafe.Pointer(&host[a+b])), c/4)
	for i := range sums {
		sums[i] = ofAnySize(random)
	}
	results := unsafe.Slice((*int32)(unsafe.Pointer(&host[a+b+c])), counts/4)
	for i := range results {
		results[i] = 1 // unless it is compared
	}
	there, err := d.ctx.Alloc(uint64(len(host)))
	if err != nil {
		return 0, 0, err
	}
	d.check(d.ctx.Upload(there, host, d.stream))
	launch(d, d.typed(kernels.CompareProductsBF16), [3]uint32{comparedBlocks, 1, 1},
		[3]uint32{128, 1, 1}, 0,
		kernels.CompareProductsParams{A: there, B: there + a, C: there + a + b,
			Differing: there + a + b + c})
	if d.err == nil {
		d.check(d.ctx.Download(host[a+b+c:], there+a+b+c, d.stream))
	}
	d.wait()
	for _, n := range results {
		differing += int(n)
	}
	d.free(there)
	if d.err == nil {
		d.check(d.ctx.Unpin(host))
	}
	// Of each block 256 columns were computed at once, then 128 of them, twice, then 64.
	return differing, c / 4 * 9 / 4, d.err
}

// attendGroupsShared is the dynamic shared memory of a block of attend_groups: stages of a tile of
// keys and values.
func attendGroupsShared(dim int) int {
	return 2 * dim * groupStages * 2 * tilePositions
}

// allowGroups lets the kernels have the shared memory they need.
func (d *Device) allowGroups(allow func(kernels.ID, int) error) error {
	shared := map[kernels.ID]int{
		kernels.AttendGroups64BF16:  attendGroupsShared(64),
		kernels.AttendGroups128BF16: attendGroupsShared(128),
	}
	for _, s := range []groupSize{groups128, groups256, groupsTree} {
		shared[s.kernel] = s.shared()
	}
	for _, bits := range []int{4, 8} {
		_, apart := d.codesStages(bits, false)
		_, whole := d.codesStages(bits, true)
		shared[codesKernel(bits)] = max(apart, whole)
	}
	for k, bytes := range shared {
		if !k.Fits(d.info.Major, d.info.Minor) {
			continue
		}
		if err := allow(k, bytes); err != nil {
			return err
		}
	}
	return nil
}

// byGroups says whether warp groups compute a product: of many rows, of a weight whose chunks end
// with products, and of inputs that copies take.
func (w *weight) byGroups(g *gemm, x driver.Ptr, ld int) bool {
	many := g.rows > groupRows/2
	if g.experts != 0 {
		many = g.pairs >= expertRows*g.groups && g.groups <= mostExperts &&
			(w.codes != nil || g.seen != nil)
	}
	return many && w.d.groups.on && w.in == w.chunks*w.padded && x%16 == 0 && ld%8 == 0 &&
		w.in%8 == 0 && (w.codes == nil || w.codes.byPairs(w.padded, g.experts != 0))
}

// Experts have so many rows at least where warp groups compute them: the rows that a block has room
// for, a quarter of which take the time of all. There may be so many of them.
const (
	expertRows  = groupRows / 4
	mostExperts = 512
)

// matrices are plain weights as copies of warp groups see them: tensors that begin at multiples of
// 2^grain bytes from an address on.
type matrices struct {
	tensors driver.TensorMap
	origin  driver.Ptr
	grain   int
}

// mostTensors is how many places a tensor may have.
const mostTensors = 1 << 31

// matrices are weights of a shape, at addresses of which 0 is none.
func (w *weight) matrices(list []driver.Ptr) (*matrices, error) {
	stride := driver.Ptr(2 * w.chunks * w.padded)
	m, last := &matrices{origin: w.data}, w.data
	for _, p := range list {
		if p != 0 {
			m.origin, last = min(m.origin, p), max(last, p)
		}
	}
	all := stride
	for _, p := range list {
		if p != 0 {
			all |= p - m.origin
		}
	}
	m.grain = bits.TrailingZeros64(uint64(all))
	places := int((last-m.origin)>>m.grain) + 1
	if places > mostTensors {
		return nil, fmt.Errorf("weights lie at %d places, %d at most", places, mostTensors)
	}
	var err error
	m.tensors, err = w.d.ctx.TensorMap(&driver.Tensor{Base: m.origin, Columns: w.chunks * w.padded,
		Rows: w.out, Stride: int(stride), Box: groupFeatures, Places: places, Apart: 1 << m.grain})
	return m, err
}

// tiles is how many of a product of so many rows there are.
func (s groupSize) tiles(out, rows int) int {
	return ceil(out, groupFeatures) * ceil(rows, s.rows)
}

// ceil is how many parts of a size have room for n.
func ceil(n, by int) int { return (n + by - 1) / by }

// addsChunks says whether blocks of warp groups compute all chunks of a product and add them: where
// they are enough to keep half of the device busy, for the others write and read each chunk.
func (w *weight) addsChunks(g *gemm, x driver.Ptr, ld int) bool {
	return (w.chunks == 2 || w.chunks == 4 || w.chunks == 8) && w.byGroups(g, x, ld) &&
		2*groupsTree.tiles(w.out, g.rows) >= w.d.info.Multiprocessors
}

// sizeOfGroups is the kernel for a product: that of 256 rows does in a turn what takes others two,
// in 8/5 of the time.
func (w *weight) sizeOfGroups(g *gemm) groupSize {
	if w.codes != nil || g.experts != 0 {
		return groups128
	}
	if g.whole {
		return groupsTree
	}
	turns := func(s groupSize) int {
		return ceil(w.chunks*s.tiles(w.out, g.rows), w.d.info.Multiprocessors)
	}
	if 8*turns(groups256) < 5*turns(groups128) {
		return groups256
	}
	return groups128
}

// bandShare is the part of the L2 cache that inputs may have which blocks at work share.
const bandShare = 3

// launchGroups enqueues a product of inputs that lie ld apart.
func (w *weight) launchGroups(g *gemm, x driver.Ptr, ld int) {
	d, s := w.d, w.sizeOfGroups(g)
	rows, tiles := g.rows, s.tiles(w.out, g.rows)
	if g.experts != 0 {
		// Each expert may have a tile that is not full.
		rows, tiles = g.pairs, ceil(w.out, groupFeatures)*(ceil(g.pairs, s.rows)+g.groups)
	}
	turns := tiles
	if !g.whole {
		turns *= w.chunks
	}
	inputs := d.tensorMap(&driver.Tensor{Base: x, Columns: w.in, Rows: rows, Stride: 2 * ld,
		Box: groupRows})
	t := kernels.TiledParams{Experts: g.experts, First: g.first, Bias: g.bias, Biases: g.biases,
		Y: g.dst, ChunkStride: uint64(g.chunk), Out: int32(w.out), Rows: int32(rows),
		Kpad: int32(w.padded), Chunks: int32(w.chunks), LDY: int32(g.ld), Add: g.add,
		Band:   int32(max(1, d.info.L2/bandShare/(2*w.in*s.rows))),
		Groups: int32(g.groups)}
	grid := [3]uint32{uint32(max(1, min(turns, d.info.Multiprocessors))), 1, 1}
	if w.codes != nil {
		w.launchCodes(g, x, ld, grid, kernels.CodesGroupsParams{X: inputs, T: t, W: w.data})
		return
	}
	seen := g.seen
	if seen == nil {
		if w.seen == nil || w.seen.origin != w.data {
			var err error
			w.seen, err = w.matrices(nil)
			d.check(err)
		}
		seen = w.seen
	}
	launch(d, d.typed(s.kernel), grid, [3]uint32{groupThreads, 1, 1}, s.shared(),
		kernels.GemmGroupsParams{W: seen.tensors, X: inputs, T: t, Origin: uint64(seen.origin),
			Grain: int32(seen.grain)})
}

// tensorMap describes a tensor to copies.
func (d *Device) tensorMap(t *driver.Tensor) (m driver.TensorMap) {
	if d.err != nil {
		return m
	}
	m, err := d.ctx.TensorMap(t)
	d.check(err)
	return m
}

// mapLayers describes the rows of the layers of a cache that attendGroups reads.
func (c *cache) mapLayers() {
	d, size := c.d, c.shape.BlockSize
	c.box = tilePositions
	for size%c.box != 0 {
		c.box /= 2
	}
	c.maps = make([]driver.TensorMap, len(c.layers))
	for i := range c.shape.Layers {
		l := &c.shape.Layers[i]
		if d.groups.able && c.shape.DType == d.dtype && l.Kind == compute.KeysValues &&
			(l.Dim == 64 || l.Dim == 128) {
			c.maps[i] = d.tensorMap(&driver.Tensor{Base: c.layers[i], Columns: l.Dim,
				Rows: c.places[i].Blocks * 2 * l.Heads * size, Stride: 2 * l.Dim, Box: c.box})
		}
	}
}

// attendGroups has warp groups compute the attention of many rows, of a grid of items and heads of
// keys. Blocks begin in the order of the heads, and items from the last on.
func (d *Device) attendGroups(y *cache, layer int, p kernels.AttendParams, dim int,
	grid [3]uint32) {
	grid[0], grid[1] = grid[1], grid[0]
	kernel := attendKernel(kernels.AttendGroups64BF16, dim)
	launch(d, d.typed(kernel), grid, [3]uint32{groupThreads, 1, 1}, attendGroupsShared(dim),
		kernels.AttendGroupsParams{Map: y.maps[layer], Box: int32(y.box), A: p})
}

// manyUnits is how many query rows a block has that computes many: rows of a sequence times heads
// of a group.
func (d *Device) manyUnits() int {
	if d.groups.on {
		return groupRows
	}
	return manyWarps * warpRows
}
