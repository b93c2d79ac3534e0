package cpu

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
)

// productsTask is products that are computed side by side, each by one thread.
type productsTask struct {
	list    []compute.Product
	scratch []gemm.Scratch // by thread
}

const (
	// aloneBelow is how many bytes of weights are read by one thread sooner than others are woken.
	aloneBelow = 64 << 10
	// togetherFrom is how many multiply-adds of one product all threads share.
	togetherFrom = 1 << 23
)

// Products computes products of weights that Pack has made, none of which reads what another makes.
// Each is the work of one thread, unless it is so large that all should share it.
func (d *Device) Products(list []compute.Product) {
	bytes, largest := 0, 0
	for i := range list {
		w := list[i].Weight
		bytes += w.Bytes()
		largest = max(largest, list[i].X.Rows*w.Out()*w.In())
	}
	t := &d.products
	if len(list) < 2 || largest >= togetherFrom || d.pool.Threads() == 1 || bytes < aloneBelow {
		for i := range list {
			list[i].Compute()
		}
		return
	}
	if t.scratch == nil {
		t.scratch = make([]gemm.Scratch, d.pool.Threads())
	}
	t.list = list
	d.pool.Run(t, len(list))
	t.list = nil
}

// Do computes one of them.
func (t *productsTask) Do(chunk, thread int) {
	p, s := &t.list[chunk], &t.scratch[thread]
	w, x := p.Weight.(*weight), p.X
	if p.Add {
		w.MulAdd(nil, s, view(p.Dst), p.Dst.Stride, view(x), x.Stride, x.Rows)
		return
	}
	w.Mul(nil, s, view(p.Dst), p.Dst.Stride, view(x), x.Stride, x.Rows, nil)
}
