package double

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// CUBLASLt is the library without a GPU: products on the host. It has an algorithm that adds as the
// machine's tensor cores do (ptx, mma.sync), and one that adds in another order, which it lists
// first.
type CUBLASLt struct {
	// Own says that it has the other one alone.
	Own bool
	// Fail, if not nil, is asked before each call, by its name in cuBLASLt.
	Fail func(call string) error
	// Observe, if not nil, is told of each product.
	Observe func(p *driver.Product)
}

// CUBLASLtRelease is the version of the library.
const CUBLASLtRelease = 130100

// Algorithms are known by their first word.
const (
	asKernels = iota + 1
	backwards
)

// Version implements driver.CUBLASLt.
func (l *CUBLASLt) Version() int { return CUBLASLtRelease }

// Open implements driver.CUBLASLt.
func (l *CUBLASLt) Open(c driver.Context) (driver.Products, error) {
	if err := l.fails("cublasLtCreate"); err != nil {
		return nil, err
	}
	return &products{l, c.(*Context)}, nil
}

func (l *CUBLASLt) fails(call string) error {
	if l.Fail == nil {
		return nil
	}
	return l.Fail(call)
}

type products struct {
	l *CUBLASLt
	c *Context
}

// Algorithms implements driver.Products.
func (x *products) Algorithms(*driver.Product, int) ([]driver.Algorithm, error) {
	if err := x.l.fails("cublasLtMatmulAlgoGetHeuristic"); err != nil {
		return nil, err
	}
	list := []driver.Algorithm{{backwards}}
	if !x.l.Own {
		list = append(list, driver.Algorithm{asKernels})
	}
	return list, nil
}

// Fits implements driver.Products. It refuses what the library would: memory that is not aligned.
func (x *products) Fits(p *driver.Product, a *driver.Algorithm) bool {
	return (a[0] == asKernels || a[0] == backwards) && p.LDX%8 == 0 && p.LDW%8 == 0 && p.LDY%4 == 0
}

// product is one that a stream was asked for.
type product struct {
	driver.Product
	by      driver.Algorithm
	y, x, w driver.Ptr
	observe func(*driver.Product)
}

// Multiply implements driver.Products.
func (x *products) Multiply(p *driver.Product, a *driver.Algorithm, y, in, w, workspace driver.Ptr,
	s driver.Stream) error {
	const call = "cublasLtMatmul"
	if err := x.l.fails(call); err != nil {
		return err
	}
	if (y|in|w|workspace)%driver.ProductAlign != 0 || !x.Fits(p, a) {
		return fmt.Errorf("%s: CUBLAS_STATUS_INVALID_VALUE (7)", call)
	}
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	return x.c.enqueue(work{call: call, product: &product{*p, *a, y, in, w, x.l.Observe}}, s)
}

// Close implements driver.Products.
func (x *products) Close() error { return x.l.fails("cublasLtDestroy") }

// multiply is a product whose turn has come.
func (c *Context) multiply(p *product) error {
	if p.observe != nil {
		p.observe(&p.Product)
	}
	width := p.In * p.Chunks
	w, err := c.numbers(p, p.w, p.Out, p.LDW, width)
	if err != nil {
		return err
	}
	x, err := c.numbers(p, p.x, p.Rows, p.LDX, width)
	if err != nil {
		return err
	}
	row := make([]byte, 4*p.Out)
	for chunk := range p.Chunks {
		from := chunk * p.In
		for r := range p.Rows {
			at := uint64(p.y) + uint64(4*(chunk*p.Apart+r*p.LDY))
			if p.Add {
				if err := c.memory.Read(row, at); err != nil {
					return err
				}
			}
			for o := range p.Out {
				sum := p.sum(w[o*width+from:][:p.In], x[r*width+from:][:p.In])
				if p.Add {
					sum += math.Float32frombits(binary.LittleEndian.Uint32(row[4*o:]))
				}
				binary.LittleEndian.PutUint32(row[4*o:], math.Float32bits(sum))
			}
			if err := c.memory.Write(at, row); err != nil {
				return err
			}
		}
	}
	return nil
}

// numbers are rows that lie stride numbers apart.
func (c *Context) numbers(p *product, at driver.Ptr, rows, stride, width int) ([]float32, error) {
	raw, all := make([]byte, 2*width), make([]float32, 0, rows*width)
	widen := half.FromBF16
	if p.Float16 {
		widen = half.FromF16
	}
	for r := range rows {
		if err := c.memory.Read(raw, uint64(at)+uint64(2*r*stride)); err != nil {
			return nil, err
		}
		for i := range width {
			all = append(all, widen(binary.LittleEndian.Uint16(raw[2*i:])))
		}
	}
	return all, nil
}

// sum is that of the products of two rows: of 16 at a time, which are added first, or all from the
// last one on.
func (p *product) sum(w, x []float32) (sum float32) {
	if p.by[0] == backwards {
		for i := len(w) - 1; i >= 0; i-- {
			sum += w[i] * x[i]
		}
		return sum
	}
	const together = 16
	for i := 0; i < len(w); i += together {
		var part float32
		for k := range together {
			part += float32(w[i+k] * x[i+k])
		}
		sum += part
	}
	return sum
}

var (
	_ driver.CUBLASLt = (*CUBLASLt)(nil)
	_ driver.Products = (*products)(nil)
)
