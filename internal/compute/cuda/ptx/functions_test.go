package ptx

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"
)

const functionsPerThread = 24

// TestFloatFunctions compares CUDA C's functions with those of package math, within the errors that
// NVIDIA documents for them.
func TestFloatFunctions(t *testing.T) {
	const n = 100
	r := rand.New(rand.NewPCG(8, 8))
	x, y := make([]float32, n), make([]float32, n)
	for i := range n {
		x[i], y[i] = float32(r.NormFloat64()*3), float32(r.NormFloat64()*3)
	}
	for _, file := range []string{"functions.121.ptx", "functions.129.ptx"} {
		_, mod := parseFile(t, file)
		mem := NewMemory(1 << 20)
		out, err := mem.Alloc(n * functionsPerThread * 4)
		if err != nil {
			t.Fatal(err)
		}
		m := &Machine{Memory: mem, Check: true}
		if _, err := m.Launch(mod.Kernel("floats"), [3]uint32{2, 1, 1}, [3]uint32{64, 1, 1}, 0,
			params(upload(t, mem, x), upload(t, mem, y), out, int32(n))); err != nil {
			t.Fatal(err)
		}
		got := download[float32](t, mem, out, n*functionsPerThread)
		for i := range n {
			for k, want := range floatFunctions(x[i], y[i]) {
				g := float64(got[i*functionsPerThread+k])
				if !(math.Abs(g-want) <= 2e-6*math.Abs(want)+2e-6) {
					t.Errorf("%s: function %d of %g and %g: %g, want %g", file, k, x[i], y[i], g,
						want)
				}
			}
		}
	}
}

// floatFunctions is what a thread of floats in testdata/functions.cu writes.
func floatFunctions(x, y float32) []float64 {
	a, b := float64(x), float64(y)
	last := math.Asin(float64(x * 0.01))
	if x > y {
		last = math.Atan2(a, b)
	}
	return []float64{math.Exp(a), math.Log(math.Abs(a)), math.Sin(float64(x * 100000)), math.Cos(b),
		math.Tanh(a), math.Pow(math.Abs(a), b), a / b, math.Sqrt(math.Abs(a)),
		1 / math.Sqrt(math.Abs(b)), math.Mod(a, b), math.Erf(a), math.Log1p(math.Abs(b)),
		math.Exp2(a), a*b + 1, math.Floor(a) + math.Ceil(b)*4,
		math.Round(a) + math.Trunc(b) + math.RoundToEven(float64(x*3)), math.Exp(a), a / b,
		math.Copysign(a, b) + max(0, a-b), a*b + 1e-3, math.Cbrt(a), math.Expm1(a), math.Hypot(a,
			b),
		last}
}

func TestWordFunctions(t *testing.T) {
	const n = 200
	r := rand.New(rand.NewPCG(9, 9))
	x, y := make([]uint32, n), make([]uint32, n)
	for i := range n {
		x[i], y[i] = r.Uint32(), r.Uint32()
		if i%3 == 0 {
			x[i], y[i] = x[i]>>20, y[i]>>24
		}
	}
	for _, file := range []string{"functions.121.ptx", "functions.129.ptx"} {
		_, mod := parseFile(t, file)
		mem := NewMemory(1 << 20)
		out, err := mem.Alloc(n * functionsPerThread * 8)
		if err != nil {
			t.Fatal(err)
		}
		m := &Machine{Memory: mem, Check: true}
		if _, err := m.Launch(mod.Kernel("words"), [3]uint32{4, 1, 1}, [3]uint32{64, 1, 1}, 0,
			params(upload(t, mem, x), upload(t, mem, y), out, int32(n))); err != nil {
			t.Fatal(err)
		}
		got := download[uint64](t, mem, out, n*functionsPerThread)
		for i := range n {
			for k, want := range wordFunctions(x[i], y[i]|1) {
				if g := got[i*functionsPerThread+k]; g != want {
					t.Errorf("%s: function %d of %#x and %#x: %#x, want %#x", file, k, x[i], y[i]|1,
						g,
						want)
				}
			}
		}
	}
}

// widen is an int as C converts it to a longer unsigned type.
func widen(v int32) uint64 { return uint64(int64(v)) }

// wordFunctions is what a thread of words in testdata/functions.cu writes.
func wordFunctions(a, b uint32) []uint64 {
	w := uint64(a)<<32 | uint64(b)
	sa, sb := int32(a), int32(b)
	hi, _ := bits.Mul32(a, b)
	hi64, _ := bits.Mul64(w, w)
	permuted := a>>16&0xff<<24 | b>>24<<16 | a&0xff<<8 | b>>8&0xff
	return []uint64{
		uint64(a/b) + uint64(a%b)*7,
		widen(sa / sb),
		w / (uint64(b) | uint64(a)<<7 | 1),
		w % (uint64(a) + 3),
		uint64(int64(w) / (int64(sb) | 1)),
		uint64(uint32(bits.OnesCount32(a)+bits.LeadingZeros32(b)+firstSet(a)) + bits.Reverse32(b)),
		uint64(bits.OnesCount64(w)+bits.LeadingZeros64(w)) + bits.Reverse64(w),
		uint64(permuted),
		(uint64(b)<<32 | uint64(a)) << (a & 31) >> 32,
		uint64(hi) + widen(int32(int64(sa)*int64(sb)>>32)) + hi64,
		widen(int32(uint8(a)) + int32(int8(b)) + int32(int16(a>>3)) + int32(uint16(b))),
		widen(int32(int8(a>>8)))<<3 ^ widen(int32(int16(b))),
		uint64(a>>(b&31) | a<<((32-b&31)&31)),
		uint64(int64(w) >> (a & 63)),
		uint64(uint32(min(sa, sb)) + max(a, b) + uint32(max(sa, -sa))),
		uint64([8]int{2, 3, 5, 7, 11, 13, 17, 19}[a&7] * [8]int{2, 3, 5, 7, 11, 13, 17, 19}[b&7]),
		shorts(a, b),
		uint64(collatz(a&0xffff) + 1000*collatz(b&0xff)),
		loopSum(a, b),
		[7]uint64{11, uint64(b), uint64(a ^ b), uint64(a + b), w, 5, 6}[a%7],
		uint64(int64(int32(clampFloat(float32(sa))))) + uint64(uint32(float32(b>>8)*2.5)),
		uint64(float64(w)*0.5) ^ uint64(-int64(a)),
		widen(dot(sa, sb)),
		uint64(uint32(max(int64(sa>>3)-int64(sb>>2), int64(sb>>2)-int64(sa>>3))) + 9),
	}
}

// clampFloat is a float that fits in an int.
func clampFloat(f float32) float64 { return min(float64(f), 1<<31-1) }

func firstSet(a uint32) int {
	if a == 0 {
		return 0
	}
	return bits.TrailingZeros32(a) + 1
}

func shorts(a, b uint32) uint64 {
	var p [6]int16
	for k := range uint32(6) {
		p[(k+a)%6] = int16(b >> k)
	}
	return widen(int32(p[a%6])) + widen(int32(p[b%6]))
}

func collatz(n uint32) (steps int) {
	for ; n > 1 && steps < 200; steps++ {
		if n&1 != 0 {
			n = 3*n + 1
		} else {
			n /= 2
		}
	}
	return steps
}

func loopSum(a, b uint32) (sum uint64) {
	for k := range a & 15 {
		if k == b&7 {
			continue
		}
		if sum += uint64(k * b); sum > 1000000 {
			break
		}
	}
	return sum
}

func dot(a, b int32) int32 {
	sum := int32(5)
	for k := range 4 {
		sum += int32(int8(a>>(8*k))) * int32(int8(b>>(8*k)))
	}
	return sum
}
