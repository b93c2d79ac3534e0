package gemm

import (
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
	"golang.org/x/sys/unix"
)

// amxVariant is products in the order of TDPBF16PS, or the test is skipped.
func amxVariant(t *testing.T) variant {
	t.Helper()
	if !isa.Available(isa.AMX) {
		t.Skip("this machine has no AMX (see scripts/simulate)")
	}
	return variant{set: isa.AMX, kind: BF16, rounded: true}
}

// TestTilesAgree multiplies numbers of any bits, and those whose products are denormals or nearly,
// by tiles and by AVX-512, and wants the same bits.
func TestTilesAgree(t *testing.T) {
	v := amxVariant(t)
	r := rand.New(rand.NewPCG(21, 22))
	for round := range 60 {
		q := newProblem(r, BF16, 1+r.IntN(100), 1+r.IntN(300), 5+r.IntN(60))
		bits := func() float32 {
			switch u := uint16(r.Uint32()); round % 3 {
			case 0: // products around the smallest normal number
				return half.FromBF16(u&0x807f | uint16(60+r.IntN(9))<<7)
			case 1: // denormals, too
				return half.FromBF16(u&0x807f | uint16(r.IntN(4)*r.IntN(64))<<7)
			default:
				return half.FromBF16(u)
			}
		}
		for i := range q.x {
			q.x[i] = bits()
		}
		for i := range q.w {
			q.w[i] = bits()
		}
		q.data, q.w = encode(BF16, q.w)
		m := mustPack(t, nil, v.options(1<<r.IntN(4)), q.source())
		var s Scratch
		got := make([]float32, q.rows*q.n)
		m.Mul(nil, &s, got, q.n, q.x, q.ldx, q.rows, nil)
		for row := 0; row < q.rows; {
			rows := min(1+r.IntN(4), q.rows-row)
			want := make([]float32, rows*q.n)
			m.Mul(nil, &s, want, q.n, q.x[row*q.ldx:], q.ldx, rows, nil)
			sameSlice(t, "rows by tiles", got[row*q.n:(row+rows)*q.n], want)
			row += rows
		}
		if round%3 != 1 || q.rows*q.n > 2000 {
			continue
		}
		for row := range q.rows {
			for n := range q.n {
				want, _ := v.element(q.row(row), q.weight(n), m.Chunks())
				if !same(got[row*q.n+n], want) {
					t.Fatalf("[%d, %d] = %x, want %x", row, n,
						math.Float32bits(got[row*q.n+n]), math.Float32bits(want))
				}
			}
		}
	}
}

// TestTilesUnderSignals multiplies on several threads while all are interrupted by signals and
// collections: no product has other bits, so no tile is lost.
func TestTilesUnderSignals(t *testing.T) {
	v := amxVariant(t)
	q := newProblem(rand.New(rand.NewPCG(23, 24)), BF16, 64, 200, 40)
	m := mustPack(t, nil, v.options(1), q.source())
	var first Scratch
	want := make([]float32, q.rows*q.n)
	m.Mul(nil, &first, want, q.n, q.x, q.ldx, q.rows, nil)
	previous := runtime.GOMAXPROCS(4)
	defer runtime.GOMAXPROCS(previous)
	var stop atomic.Bool
	var products, wrong atomic.Int64
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			var s Scratch
			got := make([]float32, len(want))
			for !stop.Load() {
				m.Mul(nil, &s, got, q.n, q.x, q.ldx, q.rows, nil)
				products.Add(1)
				for i := range got {
					if !same(got[i], want[i]) {
						wrong.Add(1)
						break
					}
				}
			}
		})
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if err := unix.Kill(os.Getpid(), unix.SIGURG); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
	}
	stop.Store(true)
	running.Wait()
	if wrong.Load() > 0 || products.Load() == 0 {
		t.Errorf("%d of %d products have other bits", wrong.Load(), products.Load())
	}
}
