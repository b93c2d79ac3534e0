package gemm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// benchCodes are what is measured.
var benchCodes = []struct {
	name    string
	codes   compute.Codes
	rounded bool
}{
	{"int4/32", compute.Codes{Type: compute.Code4, Values: int4, Group: 32}, false},
	{"int4/128", compute.Codes{Type: compute.Code4, Values: int4, Group: 128}, false},
	{"nf4/64", compute.Codes{Type: compute.Code4, Values: nf4, Group: 64}, false},
	{"int8/32", compute.Codes{Type: compute.Code8, Group: 32}, false},
	{"int8/row", compute.Codes{Type: compute.Code8}, false},
	{"e4m3/128", compute.Codes{Type: compute.CodeE4M3, Group: 128}, false},
	{"int4/32-dots", compute.Codes{Type: compute.Code4, Values: int4, Group: 32}, true},
	{"int4/128-dots", compute.Codes{Type: compute.Code4, Values: int4, Group: 128}, true},
	{"int8/32-dots", compute.Codes{Type: compute.Code8, Group: 32}, true},
	{"int8/row-dots", compute.Codes{Type: compute.Code8}, true},
	{"q4k", compute.Codes{Type: compute.Code4, Values: uint4, Group: 32, Super: 8,
		Offset: []float32{}}, true},
	{"q5k", compute.Codes{Type: compute.Code8, Group: 32, Super: 8, Offset: []float32{}}, true},
	{"q6k", compute.Codes{Type: compute.Code8, Group: 16, Super: 16}, true},
	{"mxfp4", compute.Codes{Type: compute.Code4, Values: e2m1, Group: 32}, true},
	{"iq4nl", compute.Codes{Type: compute.Code4, Values: iq4, Group: 32}, true},
}

// patternedCodes packs a matrix without random numbers.
func patternedCodes(b *testing.B, p *pool.Pool, q compute.Codes, rounded bool, n, k int) *Matrix {
	b.Helper()
	q.Rows, q.Cols = min(256, n), k
	q.Code = make([]byte, q.Rows*k)
	for i := range q.Code {
		q.Code[i] = byte(i * 7 % 32)
	}
	q.Scale = filled(q.Rows*q.Groups(), 0.25)
	if q.Super > 0 {
		q.Factor = filled(q.Rows*q.Supers(), 0.0625)
	}
	if q.Offset != nil {
		q.Offset, q.OffsetFactor = q.Scale, q.Factor
	}
	sources := make([]compute.Codes, n/q.Rows)
	for i := range sources {
		sources[i] = q
	}
	return mustPackCodes(b, p, codeSet{isa.Best(), rounded}, 1, sources...)
}

// fast is the time, in ns, that a tenth of the samples do not exceed: other work of the machine is
// not in it.
func fast(times []time.Duration) float64 {
	slices.Sort(times)
	return float64(times[len(times)/10].Nanoseconds())
}

// BenchmarkCodesRow multiplies one row with matrices of a few megabytes, of which there are as many
// as no cache has, and reads as many bytes in between.
func BenchmarkCodesRow(b *testing.B) {
	for _, c := range benchCodes {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", c.name, threads), func(b *testing.B) {
				p := newPool(b, threads)
				const k, count = 4096, 32
				n := 1024
				if c.codes.Type != compute.Code4 {
					n /= 2
				}
				var matrices []*Matrix
				for range count {
					matrices = append(matrices, patternedCodes(b, p, c.codes, c.rounded, n, k))
				}
				x, dst := filled(k, 1), make([]float32, n)
				var s Scratch
				var own, read []time.Duration
				for b.Loop() {
					for i, m := range matrices {
						start := time.Now()
						m.Mul(p, &s, dst, n, x, k, 1, nil)
						own = append(own, time.Since(start))
						start = time.Now()
						p.Run(readTask{matrices[(i+count/2)%count], threads * 4}, threads*4)
						read = append(read, time.Since(start))
					}
				}
				o, r, size := fast(own), fast(read), float64(matrices[0].Bytes())
				b.ReportMetric(size/o, "GB/s")
				b.ReportMetric(size/r, "read-GB/s")
				b.ReportMetric(r/o, "of-read")
			})
		}
	}
}

// readTask reads a part of a packed matrix per chunk.
type readTask struct {
	m     *Matrix
	parts int
}

// Do reads a part.
func (t readTask) Do(part, thread int) {
	size := len(t.m.mem.Bytes()) / t.parts &^ 255
	sum := readSum(t.m.mem.Bytes()[part*size:][:size])
	if thread == 0 {
		readSink += sum
	}
}

// BenchmarkCodesRows multiplies some rows with a matrix, and with one of bfloat16 of the same shape
// in between.
func BenchmarkCodesRows(b *testing.B) {
	for _, c := range benchCodes {
		for _, rows := range []int{1, 2, 3, 4, 5, 6, 8, 12, 16, 64, 512} {
			for _, threads := range []int{1} {
				b.Run(fmt.Sprintf("%s/m=%d/threads=%d", c.name, rows, threads),
					func(b *testing.B) {
						p := newPool(b, threads)
						n, k := 512, 2048
						if rows > 50 { // a sample is shorter than a turn of the scheduler
							n, k = 64, 1024
						}
						m := patternedCodes(b, p, c.codes, c.rounded, n, k)
						plain := patterned(b, p, variant{set: isa.Best(), kind: BF16}, n, k, 1)
						x, dst := filled(rows*k, 1), make([]float32, rows*n)
						var s Scratch
						var own, bf16 []time.Duration
						for b.Loop() {
							start := time.Now()
							m.Mul(p, &s, dst, n, x, k, rows, nil)
							own = append(own, time.Since(start))
							start = time.Now()
							plain.Mul(p, &s, dst, n, x, k, rows, nil)
							bf16 = append(bf16, time.Since(start))
						}
						o, f := fast(own), fast(bf16)
						flops := 2 * float64(rows*n*k)
						b.ReportMetric(flops/o, "GFLOP/s")
						b.ReportMetric(flops/f, "bf16-GFLOP/s")
						b.ReportMetric(f/o, "of-bf16")
					})
			}
		}
	}
}

func BenchmarkPackCodes(b *testing.B) {
	for _, c := range benchCodes {
		b.Run(c.name, func(b *testing.B) {
			q := c.codes
			q.Rows, q.Cols = 1024, 4096
			q.Code = make([]byte, q.Rows*q.Cols)
			q.Scale = filled(q.Rows*q.Groups(), 0.25)
			b.SetBytes(int64(len(q.Code)))
			for b.Loop() {
				m, err := PackCodes(nil, Options{Chunks: 1, ISA: isa.Best()}, q)
				if err != nil {
					b.Fatal(err)
				}
				m.Free()
			}
		})
	}
}
