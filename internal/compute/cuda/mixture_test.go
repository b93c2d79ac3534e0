package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
)

// TestSeveralInward refuses several experts of a row that read it times weights of their own.
func TestSeveralInward(t *testing.T) {
	d, err := cuda.New(cuda.Options{Driver: &double.Driver{}, DType: compute.BFloat16, Threads: 1,
		PTX: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
	mix := &compute.Mixture{Routing: compute.Routing{PerToken: 2, Inward: true}, Chunks: 8}
	for range 3 {
		mix.Experts = append(mix.Experts, compute.Expert{GateUp: s.pack(1, 32, 16),
			Down: s.pack(8, 16, 16)})
	}
	d.Mix(new(compute.Tensor), s.tensor(2, 16), s.tensor(2, 3), mix)
	if err := d.Err(); err == nil || !strings.Contains(err.Error(), "2 experts of a row") {
		t.Errorf("%v", err)
	}
}

// TestScoresOfNoNumber wants a row whose scores are no numbers to do nothing to the others.
func TestScoresOfNoNumber(t *testing.T) {
	const hidden, inner, experts = 16, 16, 6
	for _, rows := range []int{5, 70} {
		for _, o := range []compute.Routing{{PerToken: 2},
			{PerToken: 2, Sigmoid: true, Groups: 3, TopGroups: 2, Best: 2}} {
			t.Run(fmt.Sprintf("%d rows, %d groups", rows, o.Groups), func(t *testing.T) {
				d := machine(t, &double.Driver{Check: true})
				mixture := func(bad float32) []float32 {
					s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
					mix := &compute.Mixture{Routing: o, Chunks: 8,
						Gating: compute.Gating{Activation: compute.SiLU}}
					for range experts {
						mix.Experts = append(mix.Experts, compute.Expert{
							GateUp: s.pack(1, 2*inner, hidden), Down: s.pack(8, hidden, inner)})
					}
					x, scores := s.tensor(rows, hidden), s.tensor(rows, experts)
					y := new(compute.Tensor)
					for e := range experts {
						scores.Row(1)[e] += bad
					}
					scores.Memory.Filled()
					d.Mix(y, x, scores, mix)
					return append([]float32(nil), y.Floats()...)
				}
				want, got := mixture(0), mixture(float32(math.NaN()))
				sameBits(t, "the first row", got[:hidden], want[:hidden])
				sameBits(t, "rows behind it", got[2*hidden:], want[2*hidden:])
				if err := d.Err(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
