package driver

import "fmt"

// CUBLASLt is NVIDIA's library of products, which has kernels for architectures that this project
// has none of their own for, and others where they are the faster ones: cublaslt is that one,
// double what stands for it. Its errors name the call.
type CUBLASLt interface {
	// Version is the library's: 120904 is 12.9.4.
	Version() int
	// Open makes what products need of a device, made current in the calling thread.
	Open(c Context) (Products, error)
}

// CUBLASLtVersion is a version as people write it.
func CUBLASLtVersion(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100) }

// CUBLASLtWorkspace is what an algorithm may have of the device's memory to work in, as NVIDIA
// recommends for Hopper; CUBLASLtBytes bounds that and the library's kernels, which are loaded when
// they are needed.
const (
	CUBLASLtWorkspace = 32 << 20
	CUBLASLtBytes     = CUBLASLtWorkspace + 256<<20
)

// Products are products of a device. Its thread makes all calls.
type Products interface {
	// Algorithms lists ways to compute a product, at most so many, in the order in which the
	// library expects them to be fast.
	Algorithms(p *Product, most int) ([]Algorithm, error)
	// Fits says whether an algorithm, of another product's list, can compute this one.
	Fits(p *Product, a *Algorithm) bool
	// Multiply enqueues a product. Memory begins at multiples of ProductAlign; workspace has
	// CUBLASLtWorkspace bytes.
	Multiply(p *Product, a *Algorithm, y, x, w, workspace Ptr, s Stream) error
	Close() error
}

// ProductAlign is what memory of a Product begins at multiples of, in bytes.
const ProductAlign = 16

// Product is y = x·Wᵀ, or y += x·Wᵀ, of numbers of 16 bits, in float32. In has several chunks: they
// lie side by side in rows of W and of x, and each has rows of y of its own.
type Product struct {
	Float16               bool // numbers are, not bfloat16
	Out, In, Rows, Chunks int  // In is a chunk's
	LDW, LDX, LDY, Apart  int  // how many numbers a row is from the next, and a chunk of y
	Add                   bool
	// Divided allows algorithms that divide a sum among blocks, which add their parts in an order
	// that depends on how many there are.
	Divided bool
}

// Algorithm is a way to compute products (cublasLtMatmulAlgo_t).
type Algorithm [8]uint64
