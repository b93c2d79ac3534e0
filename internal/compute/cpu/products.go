package cpu

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
)

// productsTask is products that are computed side by side: runs of them, each by one thread.
type productsTask struct {
	list    []compute.Product
	runs    []run
	scratch []gemm.Scratch // by thread
}

// run is some products of a list, one after the other.
type run struct{ from, to int32 }

const (
	// aloneBelow is how many bytes of weights are read by one thread sooner than others are woken.
	aloneBelow = 64 << 10
	// togetherFrom is how many multiply-adds of one product all threads share.
	togetherFrom = 1 << 23
)

// Products computes products of weights that Pack has made, of which those that are After another
// one read what that makes. Each is the work of one thread, with those after it where there are
// enough such runs for all threads; one so large that all should share it has them all.
func (d *Device) Products(list []compute.Product) {
	bytes, largest, first := 0, 0, 0
	for i := range list {
		w := list[i].Weight
		bytes += w.Bytes()
		largest = max(largest, list[i].X.Rows*w.Out()*w.In())
		if !list[i].After {
			first++
		}
	}
	t, threads := &d.products, d.pool.Threads()
	if len(list) < 2 || largest >= togetherFrom || threads == 1 || bytes < aloneBelow {
		for i := range list {
			list[i].Compute()
		}
		return
	}
	if t.scratch == nil {
		t.scratch = make([]gemm.Scratch, threads)
	}
	t.list = list
	if first >= threads {
		t.runs = t.runs[:0]
		for i := range list {
			if !list[i].After {
				t.runs = append(t.runs, run{from: int32(i)})
			}
			t.runs[len(t.runs)-1].to = int32(i) + 1
		}
		d.pool.Run(t, len(t.runs))
	} else {
		for _, after := range [...]bool{false, true} {
			t.runs = t.runs[:0]
			for i := range list {
				if list[i].After == after {
					t.runs = append(t.runs, run{int32(i), int32(i) + 1})
				}
			}
			d.pool.Run(t, len(t.runs))
		}
	}
	t.list = nil
}

// Do computes a run.
func (t *productsTask) Do(chunk, thread int) {
	s := &t.scratch[thread]
	for i := t.runs[chunk].from; i < t.runs[chunk].to; i++ {
		p := &t.list[i]
		w, x := p.Weight.(*weight), p.X
		if p.Add {
			w.MulAdd(nil, s, view(p.Dst), p.Dst.Stride, view(x), x.Stride, x.Rows)
			continue
		}
		w.Mul(nil, s, view(p.Dst), p.Dst.Stride, view(x), x.Stride, x.Rows, nil)
	}
}
