package gemm

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// The figures printed beside a benchmark's own come from the same matrix in the same minute: the
// memory bandwidth of a virtual machine changes with its neighbours.

var benchVariants = func() []variant {
	v := []variant{{set: isa.Best(), kind: BF16}, {set: isa.Best(), kind: F32}}
	if isa.Best() == isa.AVX512BF16 {
		v = append(v, variant{set: isa.AVX512BF16, kind: BF16, rounded: true})
	}
	return v
}()

// patterned packs a matrix without random numbers, which would take longer than the benchmark.
func patterned(b *testing.B, p *pool.Pool, v variant, n, k, chunks int) *Matrix {
	b.Helper()
	line, _ := encode(v.kind, filled(k, 0.25))
	s := make([]Source, 0, n)
	const rows = 64
	data := make([]byte, 0, rows*len(line))
	for range rows {
		data = append(data, line...)
	}
	for at := 0; at < n; at += rows {
		s = append(s, Source{Kind: v.kind, Data: data, Rows: rows, Cols: k, RowHi: min(rows, n-at),
			ColHi: k})
	}
	return mustPack(b, p, v.options(chunks), s...)
}

// readSum touches every cache line of memory, in four streams, and does nothing else.
func readSum(data []byte) uint64 {
	v := unsafe.Slice((*[8]uint64)(unsafe.Pointer(&data[0])), len(data)/64)
	n := len(v) / 4
	v0, v1, v2, v3 := v[:n], v[n:][:n], v[2*n:][:n], v[3*n:][:n]
	var a, b, c, d uint64
	for i := range v0 {
		a += v0[i][0]
		b += v1[i][0]
		c += v2[i][0]
		d += v3[i][0]
	}
	return a + b + c + d
}

var readSink uint64

// readBandwidth is the median of a few reads of the packed weights by the given number of threads,
// in GB/s.
func readBandwidth(m *Matrix, threads int) float64 {
	var times []time.Duration
	part := len(m.mem.Bytes()) / threads &^ 63
	repeat := 1 + (64<<20)/len(m.mem.Bytes())
	for range 7 {
		start := time.Now()
		var wg sync.WaitGroup
		for i := range threads {
			wg.Go(func() {
				s := uint64(0)
				for range repeat {
					s += readSum(m.mem.Bytes()[i*part:][:part])
				}
				if i == 0 {
					readSink += s
				}
			})
		}
		wg.Wait()
		times = append(times, time.Since(start)/time.Duration(repeat))
	}
	slices.Sort(times)
	return float64(part*threads) / float64(times[len(times)/2].Nanoseconds())
}

func BenchmarkGEMV(b *testing.B) {
	for _, v := range benchVariants {
		for _, shape := range [][3]int{{256, 256, 1}, {256, 256, 8}, {3072, 1024, 1}, {1024, 3072,
			8}, {151936, 1024, 1}} {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%v/%dx%d/chunks=%d/threads=%d", v, shape[0], shape[1], shape[2],
					threads), func(b *testing.B) {
					p := newPool(b, threads)
					m := patterned(b, p, v, shape[0], shape[1], shape[2])
					x, dst := filled(m.K(), 1), make([]float32, m.N())
					var s Scratch
					b.ReportAllocs()
					for b.Loop() {
						m.Mul(p, &s, dst, m.N(), x, m.K(), 1, nil)
					}
					ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
					b.ReportMetric(float64(m.Bytes())/ns, "GB/s")
					b.ReportMetric(readBandwidth(m, threads), "read-GB/s")
					runtime.KeepAlive(m)
				})
			}
		}
	}
}

// l1Rate is the speed of the highest tile on data that stays in the L1 cache: what the cores can
// do.
func l1Rate(m *Matrix, threads int) float64 {
	const k, repeat = 64, 20000
	rows := m.kernels.rows
	run := m.kernels.kernels[rows][1]
	pairs := k / 2
	best := time.Duration(1 << 62)
	for range 5 {
		start := time.Now()
		var wg sync.WaitGroup
		for range threads {
			wg.Go(func() {
				x, c := make([]float32, rows*k), make([]float32, rows*m.kernels.nr)
				for range repeat {
					run(m.base, m.stride, unsafe.Pointer(&x[0]), k*4, pairs, 0,
						unsafe.Pointer(&c[0]), uintptr(m.kernels.nr)*4, m.base, 0)
				}
			})
		}
		wg.Wait()
		best = min(best, time.Since(start))
	}
	return 2 * float64(threads*rows*m.kernels.nr*k*repeat) / float64(best.Nanoseconds())
}

func BenchmarkGEMM(b *testing.B) {
	for _, v := range benchVariants {
		for _, shape := range [][3]int{{2, 3072, 1024}, {4, 3072, 1024}, {6, 3072, 1024}, {16, 3072,
			1024}, {96, 3072, 1024}, {96, 1024, 3072}, {512, 3072, 1024}, {2, 65536,
			1024}, {4, 65536, 1024}, {8, 65536, 1024}, {16, 65536, 1024}} {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%v/m=%d/%dx%d/threads=%d", v, shape[0], shape[1], shape[2],
					threads), func(b *testing.B) {
					p := newPool(b, threads)
					m := patterned(b, p, v, shape[1], shape[2], 1)
					rows := shape[0]
					x, dst := filled(rows*m.K(), 1), make([]float32, rows*m.N())
					var s Scratch
					for b.Loop() {
						m.Mul(p, &s, dst, m.N(), x, m.K(), rows, nil)
					}
					ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
					b.ReportMetric(2*float64(rows)*float64(m.N())*float64(m.K())/ns, "GFLOP/s")
					b.ReportMetric(l1Rate(m, threads), "L1-GFLOP/s")
					b.ReportMetric(float64(m.Bytes())/ns, "GB/s")
				})
			}
		}
	}
}

func BenchmarkPack(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			p := newPool(b, threads)
			const n, k = 16384, 1024
			src := Source{Kind: BF16, Data: make([]byte, n*k*2), Rows: n, Cols: k, RowHi: n,
				ColHi: k}
			b.SetBytes(n * k * 2)
			for b.Loop() {
				m, err := Pack(p, Options{Kind: BF16, Chunks: 1, ISA: isa.Best()}, src)
				if err != nil {
					b.Fatal(err)
				}
				m.Free()
			}
		})
	}
}
