package cuda

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// split is a kernel of split.cu: what attention it computes, in units of a block, rows times heads
// of a group, and in segments of 2^segment tiles.
type split struct {
	kernel        kernels.ID // of bfloat16
	codes, latent bool
	units         int
	segment       int
}

// A latent's outputs are long: in longer segments there is less of them to fold.
var splits = [...]split{
	{kernels.SplitBF16, false, false, 32, 2},
	{kernels.SplitCodesBF16, true, false, 32, 2},
	{kernels.SplitLatentBF16, false, true, 16, 3},
	{kernels.SplitLatentCodesBF16, true, true, 16, 3},
}

// The latents that split.cu is for, the largest heads, and the dimensions of values that its blocks
// have of these.
const (
	splitLatent, splitLatentValues = 576, 512
	splitHead                      = 256
	splitValues                    = 128
	splitWarps                     = 4
)

// splits is the kernel of split.cu that computes a layer's attention, nil where none does.
func (d *Device) splits(y *cache, l *compute.CacheLayer, args *compute.AttentionArgs) *split {
	codes, latent := y.shape.DType.Scaled(), l.Kind == compute.Latent
	fits := l.Dim <= splitHead
	if latent {
		fits = l.Dim == splitLatent && l.Values == splitLatentValues
	}
	if !fits || args.Ahead != 0 || d.dtype == compute.Float32 ||
		!codes && y.shape.DType != d.dtype {
		return nil
	}
	for i := range splits {
		if k := &splits[i]; k.codes == codes && k.latent == latent {
			return k
		}
	}
	return nil
}

// shared is the dynamic shared memory of a block: stages of a tile of keys and values, or latents,
// and scales, then the queries, and of each sixteen of them scores, weights, sums and what outputs
// are multiplied by. Rows have a multiple of 32 dimensions.
func (k *split) shared(dim, stages int) int {
	size, gap, tiles := 2, 16, k.units/warpRows
	if k.codes {
		size = 1
	}
	dim = 32 * ceil(dim, 32)
	row, scales := dim*size+gap, 0
	if !k.latent {
		row += splitValues*size + gap
	}
	if k.codes {
		scales = 4
		if !k.latent {
			scales = 8
		}
	}
	const exchanged = 4*warpRows*tilePositions + 2*warpRows*tilePositions + 512 + 256
	return stages*tilePositions*(row+scales) + tiles*(2*warpRows*dim+exchanged)
}

// stages is how many tiles a block has room for: two if a multiprocessor then has two blocks as
// well, or has one anyway.
func (k *split) stages(dim, room int) int {
	two := k.shared(dim, 2)
	if 2*two <= room || 2*k.shared(dim, 1) > room && two <= room {
		return 2
	}
	return 1
}

// mostShared is what a block has at most.
func (k *split) mostShared(room int) (most int) {
	if k.latent {
		return k.shared(splitLatent, k.stages(splitLatent, room))
	}
	for dim := 32; dim <= splitHead; dim += 32 {
		most = max(most, k.shared(dim, k.stages(dim, room)))
	}
	return most
}

// unpacking is how a cache's codes become the device's numbers of 16 bits. Those of float16 are
// smaller than what codes stand for, so that weights times scales are not.
func (d *Device) unpacking(y *cache) kernels.UnpackingParams {
	bf16 := d.dtype == compute.BFloat16
	pair := func(v uint32) int32 { return int32(v<<16 | v) }
	switch y.shape.DType {
	case compute.Int8:
		if bf16 { // 128 and the last 7 bits, less 128, or 256 where the first is set
			return kernels.UnpackingParams{Shift: 8, Bits: pair(0x7f), Flip: pair(0x4300),
				By: pair(0x3f80), Less: pair(0x80), Plus: pair(0xc300), Factor: 1}
		}
		// 1,024 + 128 and the integer, less those: 2^-6 of it.
		return kernels.UnpackingParams{Shift: 8, Bits: pair(0xff), Flip: pair(0x6480),
			By: pair(0x2400), Plus: pair(0xcc80), Factor: 1 << 6}
	case compute.E4M3:
		if bf16 { // the bits are those of a number 2^120 times smaller
			return kernels.UnpackingParams{Shift: 4, Bits: pair(0x07f0), Sign: pair(0x8000),
				By: pair(0x7b80), Plus: pair(0x8000), Factor: 1}
		}
		// And of float16 2^8 times.
		return kernels.UnpackingParams{Shift: 1, Bits: pair(0x3f80), Sign: pair(0x8000),
			By: pair(0x3c00), Plus: pair(0x8000), Factor: 1 << 8}
	}
	return kernels.UnpackingParams{}
}

// attendSplit makes dst what the queries of q find.
func (d *Device) attendSplit(k *split, b *compute.Batch, y *cache, layer int,
	args *compute.AttentionArgs, dst *compute.Tensor, q compute.View) {
	l := &y.shape.Layers[layer]
	group, values := args.Heads/args.KVHeads, l.ValueDim()
	it := d.itemsOf(b, sharing{group, k.units, k.units})
	p := kernels.SplitParams{A: d.attended(b, y, layer, args, dst, q), Codes: d.unpacking(y),
		HeadBytes: int32(y.headBytes(l)), Dim: int32(l.Dim), Group: int32(group),
		Segment: int32(k.segment), Stages: int32(k.stages(l.Dim, d.info.Shared))}
	shared := k.shared(l.Dim, int(p.Stages))
	blocks := args.KVHeads * ceil(group, k.units)
	if !k.latent {
		blocks *= ceil(values, splitValues)
	}
	run := func(items, segments int) {
		launch(d, d.typed(k.kernel), [3]uint32{uint32(items), uint32(blocks), uint32(segments)},
			[3]uint32{32 * splitWarps, 1, 1}, shared, p)
	}
	if it.many > 0 {
		p.A.Items = it.manyAt
		run(it.many, 1)
	}
	if it.few == 0 {
		return
	}
	p.A.Items = it.fewAt
	positions := tilePositions << k.segment
	segments := d.segmentsOf(y, positions)
	apart := d.apart(it.few*blocks, segments, splitBlocks,
		partBytes(q.Rows, args.Heads, segments, values))
	if apart > 1 {
		d.inParts(&p.A, q.Rows, segments, values)
	}
	run(it.few, apart)
	if apart > 1 {
		d.fold(&p.A, it, values, positions)
	}
}

// splitBlocks is how many blocks a multiprocessor is given at most, where each has some segments.
const splitBlocks = 8
