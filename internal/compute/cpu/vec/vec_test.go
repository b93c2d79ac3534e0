package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// lengths cross every tail of the kernels and, with the last, a block of the sums.
var lengths = []int{0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 40, 47, 63, 64, 65,
	96, 100, 127, 128, 768, 1000, 4096, sumBlock + 37}

func random(r *rand.Rand, n int, scale float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * scale)
	}
	return x
}

// special has every kind of float32 a kernel may meet.
var special = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, inf, -inf, float32(math.NaN()),
	math.Float32frombits(0xffc01234),
	math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32,
	expMin, expMax, 88.73, -87.34, -104, 200, -200, 1e-20, -1e-20, 1e20, -1e20, 0.5, 6, -6, 9, -9,
}

func salted(r *rand.Rand, n int) []float32 {
	x := random(r, n, 3)
	for i := range x {
		if r.IntN(4) == 0 {
			x[i] = special[r.IntN(len(special))]
		}
	}
	return x
}

// sameBits compares bits, but takes any NaN for any other: which operand's payload survives is the
// compiler's choice.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func widened(x []float32) []float64 {
	wide := make([]float64, len(x))
	for i, v := range x {
		wide[i] = float64(v)
	}
	return wide
}

func clone(x []float32) []float32 { return append([]float32(nil), x...) }

// operations runs every float operation on copies of its operands and gives all results as one row.
var operations = []struct {
	name string
	run  func(o *Ops, a, b, c, d []float32) []float32
}{
	{"RMSNorm", func(o *Ops, a, b, c, d []float32) []float32 {
		o.RMSNorm(a, a, b,
			1e-6)
		return a
	}},
	{"LayerNorm", func(o *Ops, a, b, c, d []float32) []float32 {
		o.LayerNorm(a, b, c, d,
			1e-5)
		return a
	}},
	{"Add", func(o *Ops, a, b, c, d []float32) []float32 { o.Add(a, a, b); return a }},
	{"Mul", func(o *Ops, a, b, c, d []float32) []float32 { o.Mul(a, b); return a }},
	{"Axpy", func(o *Ops, a, b, c, d []float32) []float32 { o.Axpy(a, 0.37, b); return a }},
	{"AddProducts", func(o *Ops, a, b, c, d []float32) []float32 {
		o.AddProducts(a, b, c)
		return a
	}},
	{"Recur", func(o *Ops, a, b, c, d []float32) []float32 {
		for _, rows := range []int{1, 3} {
			n := len(a) / rows
			if n > 64 {
				n &^= 63
			}
			o.Recur(a, b[:n], c[:min(rows, len(c))], d, c, 0.9)
		}
		return append(b, a...)
	}},
	{"Fixed", func(o *Ops, a, b, c, d []float32) []float32 {
		sum, n := widened(a), len(a)
		o.FixedAxpy(sum[:n/3], 0.37, b, 3, n/3)
		o.FixedCut(c, d, sum)
		parts := append(clone(c), d...)
		o.FixedJoin(c, d)
		return append(parts, c...)
	}},
	{"Scale", func(o *Ops, a, b, c, d []float32) []float32 { o.Scale(a, b, 1.7); return a }},
	{"Div", func(o *Ops, a, b, c, d []float32) []float32 { o.Div(a, 1.7); return a }},
	{"SiluMul", func(o *Ops, a, b, c, d []float32) []float32 { o.SiluMul(a, b, c); return a }},
	{"Relu", func(o *Ops, a, b, c, d []float32) []float32 { o.Relu(a); return a }},
	{"GeluErf", func(o *Ops, a, b, c, d []float32) []float32 { o.GeluErf(a); return a }},
	{"GeluErfMul", func(o *Ops, a, b, c, d []float32) []float32 {
		o.GeluErfMul(a, b, c)
		return a
	}},
	{"Softmax", func(o *Ops, a, b, c, d []float32) []float32 { o.Softmax(a); return a }},
	{"ExpSum", func(o *Ops, a, b, c, d []float32) []float32 { return append(a, o.ExpSum(a, 1)) }},
	{"Rope", func(o *Ops, a, b, c, d []float32) []float32 {
		o.Rope(a, len(a), len(a)&^1, b, c)
		return a
	}},
	{"RopeHeads", func(o *Ops, a, b, c, d []float32) []float32 {
		o.Rope(a, min(len(a), 40), min(len(a)&^1, 32), b, c)
		return a
	}},
	{"sums", func(o *Ops, a, b, c, d []float32) []float32 {
		return []float32{o.Sum(a), o.Dot(a, b), o.Max(a)}
	}},
}

// Every instruction set gives the bits of the portable kernels, on ordinary rows and on rows salted
// with infinities, NaN, zeros of both signs and subnormals, and touches nothing beyond its
// operands.
func TestSameBitsOnEveryISA(t *testing.T) {
	portable := New(isa.Portable)
	for _, i := range isa.All() {
		o := New(i)
		for _, op := range operations {
			t.Run(fmt.Sprintf("%v/%s", i, op.name), func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, 2))
				for _, n := range lengths {
					for _, make := range []func() []float32{
						func() []float32 { return random(r, n, 2) },
						func() []float32 { return salted(r, n) },
					} {
						var got, want [4][]float32
						for k := range got {
							// Guard elements on both sides.
							row := append(append(random(r, 8, 1), make()...), random(r, 8, 1)...)
							got[k], want[k] = clone(row), clone(row)
						}
						in := func(s []float32) []float32 { return s[8 : 8+n : 8+n] }
						g := op.run(o, in(got[0]), in(got[1]), in(got[2]), in(got[3]))
						w := op.run(portable, in(want[0]), in(want[1]), in(want[2]), in(want[3]))
						for k := range w {
							if !sameBits(g[k], w[k]) {
								t.Fatalf("n=%d: element %d is %v (%#x), portable %v (%#x)", n, k,
									g[k], math.Float32bits(g[k]), w[k], math.Float32bits(w[k]))
							}
						}
						for k := range got {
							for j := range got[k] {
								if !sameBits(got[k][j], want[k][j]) {
									t.Fatalf("n=%d: operand %d changed at %d", n, k, j-8)
								}
							}
						}
					}
				}
			})
		}
	}
}

// A row's result does not depend on where it lies in memory.
func TestAlignmentDoesNotMatter(t *testing.T) {
	o := New(isa.Best())
	r := rand.New(rand.NewPCG(3, 4))
	x := random(r, 1003, 1)
	want := o.Dot(x, x)
	buf := make([]float32, 1100)
	for off := range 17 {
		y := buf[off : off+len(x)]
		copy(y, x)
		if got := o.Dot(y, y); got != want {
			t.Fatalf("offset %d: %v, want %v", off, got, want)
		}
	}
}

func ulps(got float32, want float64) float64 {
	w := float32(want)
	if sameBits(got, w) {
		return 0
	}
	if w == 0 {
		return math.Abs(float64(got)) / 0x1p-149
	}
	_, e := math.Frexp(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, max(e-24, -149))
}

func TestExpAccuracy(t *testing.T) {
	o := New(isa.Best())
	r := rand.New(rand.NewPCG(5, 6))
	var worst float64
	x, y := make([]float32, 1024), make([]float32, 1024)
	check := func() {
		copy(y, x)
		o.ExpSum(y, 0)
		for i, v := range x {
			want := math.Exp(float64(v))
			if want < 0x1p-126 {
				if y[i] != 0 && y[i] != 0x1p-126 {
					t.Fatalf("exp(%v) = %v, want 0", v, y[i])
				}
				continue
			}
			if u := ulps(y[i], want); !(u <= worst) {
				worst = u
			}
		}
	}
	for range 200 {
		for i := range x {
			x[i] = float32(r.Float64()*178 - 89)
		}
		check()
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		check()
		for i := range x { // around the multiples of ln(2)/2, where the reduction changes sign
			x[i] = float32((float64(r.IntN(254)-126) + 0.5 + r.NormFloat64()*1e-6) * math.Ln2)
		}
		check()
	}
	if worst > 1.5 {
		t.Errorf("worst error %.3f ulp, want at most 1.5", worst)
	}
	t.Logf("worst error %.3f ulp", worst)

	for _, c := range []struct{ x, want float32 }{
		{0, 1}, {float32(math.Copysign(0, -1)), 1}, {-inf, 0}, {inf, inf}, {89, inf}, {1e30, inf},
		{-88, 0}, {-1e30, 0},
		{float32(math.NaN()), float32(math.NaN())}, {math.SmallestNonzeroFloat32, 1},
	} {
		for _, i := range isa.All() {
			y := []float32{c.x}
			if New(i).ExpSum(y, 0); !sameBits(y[0], c.want) {
				t.Errorf("%v: exp(%v) = %v, want %v", i, c.x, y[0], c.want)
			}
		}
	}
}

// closeTo accepts an error of tol relative to scale.
func closeTo(t *testing.T, what string, got float32, want, scale, tol float64) {
	t.Helper()
	if !(math.Abs(float64(got)-want) <= tol*scale) {
		t.Fatalf("%s = %v, want %v (error %.2e of %.2e)", what, got, want,
			math.Abs(float64(got)-want), scale)
	}
}

func TestActivations(t *testing.T) {
	o := New(isa.Best())
	var x []float32
	for v := -20.0; v <= 20; v += 1.0 / 512 {
		x = append(x, float32(v))
	}
	for _, c := range []struct {
		name string
		run  func(x []float32)
		want func(v float64) float64
	}{
		{"silu", func(x []float32) { o.SiluMul(x, x, slices.Repeat([]float32{1}, len(x))) },
			func(v float64) float64 { return v / (1 + math.Exp(-v)) }},
		{"gelu erf", o.GeluErf,
			func(v float64) float64 { return 0.5 * v * math.Erfc(-v/math.Sqrt2) }},
		{"relu", o.Relu, func(v float64) float64 { return max(v, 0) }},
	} {
		y := clone(x)
		c.run(y)
		for i, v := range x {
			closeTo(t, fmt.Sprintf("%s(%v)", c.name, v), y[i], c.want(float64(v)),
				math.Abs(float64(v))+1e-30, 2e-7)
		}
	}
}

func TestNorms(t *testing.T) {
	o := New(isa.Best())
	r := rand.New(rand.NewPCG(7, 8))
	for _, n := range lengths[1:] {
		x, w, b := random(r, n, 3), random(r, n, 1), random(r, n, 1)
		for i := range x {
			x[i] += 5
		}
		var sq, sum, dev float64
		for _, v := range x {
			sq += float64(v) * float64(v)
			sum += float64(v)
		}
		mean := sum / float64(n)
		for _, v := range x {
			dev += (float64(v) - mean) * (float64(v) - mean)
		}
		rms, ln := make([]float32, n), make([]float32, n)
		o.RMSNorm(rms, x, w, 1e-6)
		o.LayerNorm(ln, x, w, b, 1e-5)
		rs := 1 / math.Sqrt(sq/float64(n)+1e-6)
		std := 1 / math.Sqrt(dev/float64(n)+1e-5)
		for i, v := range x {
			want := float64(v) * rs * float64(w[i])
			closeTo(t, fmt.Sprintf("n=%d rmsnorm[%d]", n, i), rms[i], want, math.Abs(want)+1e-30,
				5e-7)
			want = (float64(v)-mean)*std*float64(w[i]) + float64(b[i])
			// The row's own size over its deviation scales the rounding error of x - mean.
			closeTo(t, fmt.Sprintf("n=%d layernorm[%d]", n, i), ln[i], want,
				1+math.Abs(float64(w[i]))*(3+math.Abs(float64(v)*std)), 1e-6)
		}
	}
}

func TestReductions(t *testing.T) {
	o := New(isa.Best())
	r := rand.New(rand.NewPCG(9, 10))
	for _, n := range append(lengths[1:], 151936) {
		a, b := random(r, n, 2), random(r, n, 2)
		var sum, abs, dot, absDot, exps float64
		best := 0
		for i := range a {
			sum += float64(a[i])
			abs += math.Abs(float64(a[i]))
			dot += float64(a[i]) * float64(b[i])
			absDot += math.Abs(float64(a[i]) * float64(b[i]))
			if a[i] > a[best] {
				best = i
			}
		}
		m := float64(a[best])
		for _, v := range a {
			exps += math.Exp(float64(v) - m)
		}
		closeTo(t, "sum", o.Sum(a), sum, abs, 5e-7)
		closeTo(t, "dot", o.Dot(a, b), dot, absDot, 5e-7)
		if got := o.Max(a); got != a[best] {
			t.Fatalf("n=%d: Max = %v, want %v", n, got, a[best])
		}
		e := clone(a)
		closeTo(t, "expsum", o.ExpSum(e, float32(m)), exps, exps, 1e-6)
		p := clone(a)
		o.Softmax(p)
		for i, v := range a {
			want := math.Exp(float64(v)-m) / exps
			closeTo(t, "softmax", p[i], want, want, 2e-6)
		}
	}
}

func TestMaxPassesOverNaN(t *testing.T) {
	nan := float32(math.NaN())
	long := make([]float32, 100)
	for i := range long {
		long[i] = float32(i % 10)
	}
	for _, i := range isa.All() {
		o := New(i)
		for _, c := range []struct {
			x    []float32
			want float32
		}{
			{nil, -inf}, {[]float32{nan}, -inf}, {[]float32{nan, -inf}, -inf},
			{[]float32{nan, 2, nan, 2}, 2}, {[]float32{-inf, -inf}, -inf}, {[]float32{1, inf, inf},
				inf},
			{long, 9}, {long[10:], 9}, {[]float32{-5, -4, -4, -6, -7, -8, -9, -10, -4}, -4},
		} {
			if got := o.Max(c.x); got != c.want {
				t.Errorf("%v: Max(%v) = %v, want %v", i, c.x, got, c.want)
			}
		}
	}
}

// The rotation of each pair against float64, for several heads at once and with a part that does
// not rotate.
func TestRope(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, c := range []struct{ headDim, rot, heads int }{{32, 32, 1}, {64, 64, 3}, {80, 32, 2},
		{20, 20, 1}, {128, 128, 2}, {6, 2, 2}, {16, 0, 1}} {
		x := random(r, c.headDim*c.heads, 1)
		half := c.rot / 2
		cos, sin := make([]float32, half), make([]float32, half)
		for i := range cos {
			s, co := math.Sincos(17 * math.Pow(10000, -float64(i)/float64(max(half, 1))))
			cos[i], sin[i] = float32(co), float32(s)
		}
		y := clone(x)
		New(isa.Best()).Rope(y, c.headDim, c.rot, cos, sin)
		for h := range c.heads {
			for i := range c.headDim {
				at := h*c.headDim + i
				want := float64(x[at])
				switch {
				case i < half:
					want = float64(x[at])*float64(cos[i]) - float64(x[at+half])*float64(sin[i])
				case i < c.rot:
					want = float64(x[at])*float64(cos[i-half]) +
						float64(x[at-half])*float64(sin[i-half])
				}
				closeTo(t, fmt.Sprintf("%+v rope[%d]", c, at), y[at], want, 10, 1e-7)
			}
		}
	}
}

// Every 16-bit pattern widens and narrows back to itself (NaN becomes quiet), and the conversions
// of a row are those of its elements on every instruction set.
func TestHalfRoundTrip(t *testing.T) {
	all := make([]uint16, 1<<16)
	for i := range all {
		all[i] = uint16(i)
	}
	f := make([]float32, len(all))
	back := make([]uint16, len(all))
	for _, i := range isa.All() {
		o := New(i)
		o.FromF16(f, all)
		o.ToF16(back, f)
		for b, got := range back {
			want := uint16(b)
			if b&0x7c00 == 0x7c00 && b&0x3ff != 0 {
				want |= 0x200
			}
			if got != want || math.Float32bits(f[b]) != math.Float32bits(half.FromF16(uint16(b))) {
				t.Fatalf("%v: f16 %#04x widens to %v and back to %#04x, want %#04x", i, b, f[b],
					got, want)
			}
		}
		o.FromBF16(f, all)
		o.ToBF16(back, f)
		for b, got := range back {
			want := uint16(b)
			if b&0x7f80 == 0x7f80 && b&0x7f != 0 {
				want |= 0x40
			}
			if got != want {
				t.Fatalf("%v: bf16 %#04x back to %#04x, want %#04x", i, b, got, want)
			}
		}
	}
}

func TestHalfRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	var x []float32
	for range 20000 {
		x = append(x, math.Float32frombits(r.Uint32()))
		// Around the range of binary16, and exact ties of both formats.
		x = append(x, float32(r.NormFloat64()*math.Exp(r.NormFloat64()*6)))
		h := uint16(r.Uint32())
		for _, y := range []float32{(half.FromF16(h) + half.FromF16(h^1)) / 2,
			math.Float32frombits(uint32(h)<<16 | 0x8000)} {
			x = append(x, y, math.Nextafter32(y, inf), math.Nextafter32(y, -inf))
		}
	}
	x = append(x, 65504, 65519, 65519.996, 65520, 65536, -65520, 0x1p-24, 0x1p-25, 0x1.000002p-25,
		0x1.8p-25, math.MaxFloat32, 3.3961775e38)
	dst := make([]uint16, len(x))
	for _, i := range isa.All() {
		o := New(i)
		for _, c := range []struct {
			name   string
			narrow func([]uint16, []float32)
			scalar func(float32) uint16
		}{{"bf16", o.ToBF16, half.ToBF16}, {"f16", o.ToF16, half.ToF16}} {
			c.narrow(dst, x)
			for k, v := range x {
				if want := c.scalar(v); dst[k] != want {
					t.Fatalf("%v: %s(%v) = %#04x, want %#04x", i, c.name, v, dst[k], want)
				}
			}
		}
	}
	// Every length ends with the scalar conversion.
	for n := range 40 {
		o := New(isa.Best())
		got := make([]uint16, n+1)
		got[n] = 0xabcd
		o.ToBF16(got[:n], x)
		for k := range n {
			if got[k] != half.ToBF16(x[k]) {
				t.Fatalf("n=%d: element %d", n, k)
			}
		}
		if got[n] != 0xabcd {
			t.Fatalf("n=%d: wrote beyond the row", n)
		}
	}
}

// TestToBF16Pairs wants each element at its place, and nothing anywhere else.
func TestToBF16Pairs(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	for _, set := range isa.All() {
		o := New(set)
		for n := range 70 {
			x := make([]float32, n)
			for i := range x {
				x[i] = math.Float32frombits(r.Uint32())
			}
			step := 16 + r.IntN(30)
			got := make([]uint16, max(0, (n-1)/16*step+16))
			want := slices.Clone(got)
			for i, v := range x {
				want[i/16*step+2*(i%8)+i/8%2] = half.ToBF16(v)
			}
			o.ToBF16Pairs(got, step, x)
			if !slices.Equal(got, want) {
				t.Fatalf("%v: %d elements by %d: %x, want %x", set, n, step, got, want)
			}
		}
	}
}

func TestNoAllocation(t *testing.T) {
	o := New(isa.Best())
	x := random(rand.New(rand.NewPCG(15, 16)), 300, 1)
	h := make([]uint16, 300)
	if n := testing.AllocsPerRun(10, func() {
		o.RMSNorm(x, x, x, 1)
		o.Softmax(x)
		o.Rope(x, 100, 100, x[:50], x[50:100])
		o.ToBF16(h, x)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A length mismatch is an ordinary Go panic and reaches no kernel.
func TestShortOperandPanics(t *testing.T) {
	o := New(isa.Best())
	long, short := make([]float32, 16), make([]float32, 15)
	for name, f := range map[string]func(){
		"Add":     func() { o.Add(long, long, short[:15:15]) },
		"RMSNorm": func() { o.RMSNorm(long, long, short[:15:15], 1) },
		"SiluMul": func() { o.SiluMul(long, long, short[:15:15]) },
		"Rope":    func() { o.Rope(long, 16, 34, long, long) },
		"ToBF16":  func() { o.ToBF16(make([]uint16, 16), short[:15:15]) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic", name)
				}
			}()
			f()
		}()
	}
}

func BenchmarkVec(b *testing.B) {
	r := rand.New(rand.NewPCG(17, 18))
	x, y, w := random(r, 4096, 1), random(r, 4096, 1), random(r, 4096, 1)
	for _, i := range isa.All() {
		o := New(i)
		for name, f := range map[string]func(){
			"RMSNorm": func() { o.RMSNorm(y, x, w, 1e-6) },
			"Add":     func() { o.Add(y, y, x) },
			"SiluMul": func() { o.SiluMul(y, x, w) },
			"ExpSum":  func() { copy(y, x); o.ExpSum(y, 1) },
			"GeluErf": func() { copy(y, x); o.GeluErf(y) },
			"Softmax": func() { copy(y, x); o.Softmax(y) },
			"Max":     func() { o.Max(x) },
			"Recur":   func() { o.Recur(y, x[:64], w[:64], x[64:128], w[64:128], 0.5) },
		} {
			b.Run(fmt.Sprintf("%v/%s/4096", i, name), func(b *testing.B) {
				for range b.N {
					f()
				}
			})
		}
	}
}
