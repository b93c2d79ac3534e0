package collective

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func TestSumTree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, ranks := range []int{1, 2, 4, 8} {
		for _, n := range []int{0, 1, 2, 3, 7, 8, 9, 15, 16, 31, 64, 69, block - 1, block, block +
			1, 2*block + 5} {
			parts := make([][]float32, ranks)
			for p := range parts {
				parts[p] = make([]float32, n)
				for i := range parts[p] {
					// Magnitudes far apart, so that another order gives other bits.
					parts[p][i] = float32(r.NormFloat64() * math.Pow(10, float64(r.IntN(12)-6)))
				}
			}
			want := make([]float32, n)
			for i := range want {
				level := make([]float32, ranks)
				for p := range parts {
					level[p] = parts[p][i]
				}
				for len(level) > 1 {
					for j := range len(level) / 2 {
						level[j] = level[2*j] + level[2*j+1]
					}
					level = level[:len(level)/2]
				}
				want[i] = level[0]
			}
			dst := parts[r.IntN(ranks)] // in place
			SumTree(dst, parts)
			for i := range want {
				if math.Float32bits(dst[i]) != math.Float32bits(want[i]) {
					t.Fatalf("%d ranks, element %d of %d: got %v, want %v", ranks, i, n, dst[i],
						want[i])
				}
			}
		}
	}
}

func TestErrorNamesMissing(t *testing.T) {
	err := &Error{Op: "all-reduce", Rank: 2, Missing: []int{1, 3}, Err: ErrTimeout}
	if got := err.Error(); got != "all-reduce on rank 2: waiting for rank 1, 3: timed out" {
		t.Error(got)
	}
	err = &Error{Op: "barrier", Rank: 0, Err: ErrClosed}
	if got := err.Error(); got != "barrier on rank 0: group is closed" {
		t.Error(got)
	}
}

// BenchmarkSumTree adds what ranks bring in a step of decoding, and in one of a prompt.
func BenchmarkSumTree(b *testing.B) {
	for _, ranks := range []int{2, 4, 8} {
		for _, n := range []int{1 << 10, 4 << 10, 256 << 10} {
			b.Run(fmt.Sprintf("ranks=%d/bytes=%d", ranks, 4*n), func(b *testing.B) {
				parts := make([][]float32, ranks)
				for p := range parts {
					parts[p] = make([]float32, n)
				}
				b.SetBytes(int64(4 * n * ranks))
				b.ReportAllocs()
				for b.Loop() {
					SumTree(parts[0], parts)
				}
			})
		}
	}
}

// TestShare divides any number of elements without a gap.
func TestShare(t *testing.T) {
	for _, ranks := range []int{1, 2, 4, 8} {
		for n := range 3000 {
			at := 0
			for rank := range ranks {
				from, to := Share(rank, ranks, n)
				if from != at || to < from {
					t.Fatalf("%d ranks, %d elements: rank %d has [%d, %d), want it to start at %d",
						ranks, n, rank, from, to, at)
				}
				at = to
			}
			if at != n {
				t.Fatalf("%d ranks share %d of %d elements", ranks, at, n)
			}
		}
	}
}
