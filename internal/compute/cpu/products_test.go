package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
)

// TestProducts wants of a list of products, some of which read what one before them makes, what
// each makes when they are computed one after the other.
func TestProducts(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		d, err := cpu.New(cpu.Options{Threads: threads, DType: compute.BFloat16})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		r := rand.New(rand.NewPCG(41, uint64(threads)))
		for _, adapters := range []int{1, 2, 4, 6, 9} {
			t.Run(fmt.Sprintf("%d/%d", threads, adapters), func(t *testing.T) {
				const rows, in, rank, out = 3, 700, 24, 300
				x := *cpu.Over(random(adapters*rows*in), adapters*rows, in)
				first := random(adapters * rows * out)
				var list []compute.Product
				var low compute.Tensor
				dst := *cpu.Over(slices.Clone(first), adapters*rows, out)
				d.Resize(&low, adapters*rows, rank)
				part := func(of *compute.Tensor, i int) compute.View {
					v := of.Below(i * rows)
					v.Rows = rows
					return v
				}
				for i := range adapters {
					a, b := packed(t, d, r, 8, rank, in), packed(t, d, r, 1, out-50, rank-8)
					c := packed(t, d, r, 1, 50, 8)
					defer func() { a.Free(); b.Free(); c.Free() }()
					made, to := part(&low, i), part(&dst, i)
					list = append(list,
						compute.Product{Weight: a, X: part(&x, i), Dst: made},
						compute.Product{Weight: b, X: made.Columns(8, rank-8),
							Dst: to.Columns(50, out-50), Add: true, After: true},
						compute.Product{Weight: c, X: made.Columns(0, 8), Dst: to.Columns(0, 50),
							Add: true, After: true})
				}
				for i := range list {
					list[i].Compute()
				}
				want := slices.Clone(dst.Floats())
				for range 5 {
					copy(dst.Floats(), first)
					clear(low.Floats())
					d.Products(list)
					if !slices.Equal(dst.Floats(), want) {
						t.Fatal("other sums than one after the other")
					}
				}
				if n := testing.AllocsPerRun(3, func() { d.Products(list) }); n > 0 {
					t.Errorf("%v allocations", n)
				}
			})
		}
	}
}
