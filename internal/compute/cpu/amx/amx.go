// Package amx multiplies by the tiles of Intel's AMX: rows of x by panels of 32 columns of w, codes
// by MultiplyCodes, and bfloat16 in the order of TDPBF16PS. A piece of K is cut into blocks of 32
// steps, the last one shorter; the products of a block's even steps are one chain of fused
// multiply-adds from zero, those of its odd steps another; the sum of the two is added to the
// accumulator. Denormals are taken as zero, and become zero (Intel SDM vol. 2). So an element has
// the same bits among any other rows and columns.
package amx

import (
	"math"

	"github.com/eagleray/eagleray/internal/sys/half"
)

// Block is both the rows of x and the steps of K that lie together: a block of x is [Block][Block]
// numbers. A panel of w has as many columns, its steps two by two: [K/2][Block][2].
const Block = 32

// BlockBytes is what a block of x takes, and what Block steps of a panel take.
const BlockBytes = 2 * Block * Block

// Row is where row r of x begins, in numbers, of which each Block rows have so many blocks.
func Row(r, blocks int) int { return r/Block*blocks*Block*Block + r%Block*Block }

// Round rounds a row of x to bfloat16, to nearest even, into the blocks that have it: dst begins
// with its place in the first one. Denormals become zero. If the row's length is odd, a zero
// follows.
func Round(dst []uint16, row []float32) { RoundScaled(dst, row, 1, 0) }

// RoundScaled is Round of the row times a scale. The memory so many bytes from the row on is
// fetched meanwhile: the next one, from where the processor does not expect it.
func RoundScaled(dst []uint16, row []float32, scale float32, ahead int) {
	const block = Block * Block
	full := len(row) / Block
	if full > 0 {
		roundBlocks(&dst[:(full-1)*block+Block][0], &row[0], full, scale, ahead)
	}
	rest := row[full*Block:]
	if len(rest) == 0 {
		return
	}
	dst = dst[full*block:][:Block]
	for i, v := range rest {
		dst[i] = half.ToBF16(Flushed(v * scale))
	}
	if len(rest)%2 > 0 {
		dst[len(rest)] = 0
	}
}

// Flushed is v, or zero of its sign for a denormal: how tiles take it.
func Flushed(v float32) float32 {
	if u := math.Float32bits(v); u&0x7f800000 == 0 {
		return math.Float32frombits(u & 0x80000000)
	}
	return v
}
