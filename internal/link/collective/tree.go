package collective

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
)

// MaxRanks is the largest group whose sum is defined.
const MaxRanks = 8

// ValidRanks reports whether a group of n ranks is a perfect tree: 1, 2, 4 or 8.
func ValidRanks(n int) bool { return n == 1 || n == 2 || n == 4 || n == 8 }

// SumTree sets dst to the sum of the parts, one per rank, in fp32 as a balanced binary tree over
// the ranks: (0+1), ((0+1)+(2+3)), (((0+1)+(2+3))+((4+5)+(6+7))). Each element's bits depend on the
// parts' elements and on nothing else, so it does not matter which rank adds or in how many pieces
// (only the payload of a NaN may differ). All slices have the length of dst, which may be one of
// the parts. It panics unless there are 1, 2, 4 or 8 parts.
func SumTree(dst []float32, parts [][]float32) {
	switch {
	case !ValidRanks(len(parts)):
		panic(fmt.Sprintf("sum of %d parts", len(parts)))
	case len(parts) == 1:
		copy(dst, parts[0])
	case len(parts) == 2:
		ops.Add(dst, parts[0], parts[1])
	default:
		var scratch [2 * levels][block]float32
		for from := 0; from < len(dst); from += block {
			sumBlock(dst[from:min(from+block, len(dst))], parts, from, scratch[:])
		}
	}
}

var ops = vec.New(isa.Best())

const (
	// block is how many elements are summed at a time, so that partial sums stay in the nearest
	// cache.
	block = 1024
	// levels is how many levels of the tree of MaxRanks have partial sums to keep.
	levels = 2
)

// sumBlock sums the parts' elements from an index on. dst is written when all of them have been
// read. Each level of the tree takes two blocks of scratch.
func sumBlock(dst []float32, parts [][]float32, from int, scratch [][block]float32) {
	if len(parts) == 2 {
		ops.Add(dst, parts[0][from:], parts[1][from:])
		return
	}
	half := len(parts) / 2
	left, right := scratch[0][:len(dst)], scratch[1][:len(dst)]
	sumBlock(left, parts[:half], from, scratch[2:])
	sumBlock(right, parts[half:], from, scratch[2:])
	ops.Add(dst, left, right)
}

// Share returns the part of n elements that a rank adds up when ranks share the work: equal parts
// of whole cache lines, the last ones shorter or empty.
func Share(rank, ranks, n int) (from, to int) {
	const line = 16 // elements
	each := (n + ranks*line - 1) / (ranks * line) * line
	return min(rank*each, n), min((rank+1)*each, n)
}
