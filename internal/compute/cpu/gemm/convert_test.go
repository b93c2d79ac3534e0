package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// The vector conversions agree with the Go ones.
func TestVectorConversions(t *testing.T) {
	if !isa.Available(isa.AVX2) {
		t.Skip("this machine has no AVX2")
	}
	r := rand.New(rand.NewPCG(2, 2))
	src := make([]float32, 4096+5)
	for i := range src {
		src[i] = math.Float32frombits(r.Uint32())
		if i%8 == 0 { // ties, infinities, NaNs whose payload rounding would carry away
			src[i] = math.Float32frombits([]uint32{0x3f808000, 0x3f818000, 0x7f800000, 0xff800000,
				0x7f800001, 0xffffffff, 0x7f7fffff, 0x80000001}[i/8%8])
		}
	}
	got, floats := make([]uint16, len(src)), make([]float32, len(src))
	halfRow(got, src)
	roundRow(floats, src)
	for i := range src {
		want := half.ToBF16(src[i])
		flushed := uint32(half.ToBF16(amx.Flushed(src[i]))) << 16
		if got[i] != want || math.Float32bits(floats[i]) != flushed {
			t.Fatalf("bf16 of %x: %#x and %x, want %#x and %x", math.Float32bits(src[i]), got[i],
				math.Float32bits(floats[i]), want, flushed)
		}
	}
	// Every finite binary16 as a weight, times one.
	data := make([]byte, 2<<16)
	for i := range 1 << 16 {
		data[2*i], data[2*i+1] = byte(i), byte(i>>8)
	}
	m := mustPack(t, nil, Options{Kind: F16, Chunks: 1, ISA: isa.Best()}, Source{Kind: F16,
		Data: data, Rows: 1 << 16, Cols: 1, RowHi: 1 << 16, ColHi: 1})
	var s Scratch
	dst := make([]float32, 1<<16)
	m.Mul(nil, &s, dst, 1<<16, []float32{1}, 1, 1, nil)
	for i, v := range dst {
		want := half.FromF16(uint16(i))
		if i == 0x8000 {
			want = 0 // 0 + 1·(-0)
		}
		if !same(v, want) {
			t.Fatalf("binary16 %#x: %v, want %v", i, v, want)
		}
	}
}
