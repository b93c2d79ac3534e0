//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package step

import "unsafe"

// The wire is little-endian, and so is the memory of every architecture named above: slices of
// fixed-size records cross by copying their memory. Elsewhere this file, and so the package, does
// not build.

// flat are the types whose memory is their encoding.
type flat interface {
	~uint8 | ~uint32 | ~uint64 | ~int32 | ~float32 | Row | Guess | Snapshot | TokenLogprob |
		bias
}

// A record added to flat must have no padding, or uninitialised bytes would travel.
var (
	_ [12]byte = [unsafe.Sizeof(TokenLogprob{})]byte{}
	_ [8]byte  = [unsafe.Sizeof(bias{})]byte{}
	_ [8]byte  = [unsafe.Sizeof(Snapshot{})]byte{}
	_ [20]byte = [unsafe.Sizeof(Row{})]byte{}
)

// memory returns the bytes of v, without copying.
func memory[T flat](v []T) []byte {
	size := int(unsafe.Sizeof(*new(T)))
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*size)
}

// rowWords returns the memory of v in words.
func rowWords(v []Row) [][rowSize / 4]uint32 {
	return unsafe.Slice((*[rowSize / 4]uint32)(unsafe.Pointer(unsafe.SliceData(v))), len(v))
}
