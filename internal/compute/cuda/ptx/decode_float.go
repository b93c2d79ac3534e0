package ptx

import "math"

func asTernary1(f func(d, a *lanes32)) func(d, a, b, c *lanes32) {
	return func(d, a, _, _ *lanes32) { f(d, a) }
}

func asTernary2(f func(d, a, b *lanes32)) func(d, a, b, c *lanes32) {
	return func(d, a, b, _ *lanes32) { f(d, a, b) }
}

// op emits an instruction of a result and up to three operands.
func (d *decoder) op(exec execFunc, dst int32, srcs ...int32) {
	in := inst{exec: exec, d: dst, a: none, b: none, c: none}
	for i, p := range []*int32{&in.a, &in.b, &in.c}[:len(srcs)] {
		*p = srcs[i]
	}
	d.emit(in)
}

// mode is the rounding of a statement: nearest if it names none.
func (d *decoder) mode() rounding {
	switch d.st.hasAny("rz", "rm", "rp", "rna", "rzi", "rmi", "rpi") {
	case "rz", "rzi":
		return toZero
	case "rm", "rmi":
		return down
	case "rp", "rpi":
		return up
	case "rna":
		return tiesAway
	}
	return nearest
}

// float32Op emits an f32 instruction: exact is its result rounded to odd, for the modes that the
// fast functions do not have.
func (d *decoder) float32Op(t typ, fast func(d, a, b, c *lanes32),
	exact func(a, b, c float64) float64) {
	n := len(d.st.args) - 1
	srcs := make([]int32, n)
	for i := range srcs {
		srcs[i] = d.src(d.st.args[i+1], t)
	}
	if mode := d.mode(); mode != nearest {
		fast = func(out, a, b, c *lanes32) {
			for i := range out {
				out[i] = float32Format.encode(
					exact(laneFloat(a, i), laneFloat(b, i), laneFloat(c, i)), mode, false)
			}
		}
	}
	var exec execFunc
	switch {
	case d.st.has("ftz"):
		exec = flushed(fast, n)
	case n == 1:
		exec = apply1(func(d, a *lanes32) { fast(d, a, nil, nil) })
	case n == 2:
		exec = apply2(func(d, a, b *lanes32) { fast(d, a, b, nil) })
	default:
		exec = apply3(fast)
	}
	if d.st.has("sat") {
		exec = saturated(exec)
	}
	d.op(exec, d.dst(d.st.args[0], t), srcs...)
}

func laneFloat(l *lanes32, i int) float64 {
	if l == nil {
		return 0
	}
	return float64(math.Float32frombits(l[i]))
}

// floatArith decodes add, sub, mul, fma, mad, div, min, max, neg and abs of floats.
func (d *decoder) floatArith(t typ) {
	operands := map[string]int{"neg": 2, "abs": 2, "fma": 4, "mad": 4}[d.st.opcode]
	if operands == 0 {
		operands = 3
	}
	if (d.st.opcode == "min" || d.st.opcode == "max") && len(d.st.args) == 4 {
		operands = 4
	}
	if !d.arity(operands, operands) {
		return
	}
	switch {
	case t.bits == 16:
		d.halfArith(t)
	case t.bits == 32 && t.pack == 1:
		d.float32Arith(t)
	case t.bits == 64:
		d.float64Arith(t)
	default:
		d.failf("unknown type")
	}
}

func (d *decoder) float32Arith(t typ) {
	switch d.st.opcode {
	case "add":
		d.fastOrExact(t, d.ops.floats["add"], func(a, b, _ float64) float64 { return addOdd(a, b) })
	case "sub":
		d.fastOrExact(t, d.ops.floats["sub"],
			func(a, b, _ float64) float64 { return addOdd(a, -b) })
	case "mul":
		d.fastOrExact(t, d.ops.floats["mul"], func(a, b, _ float64) float64 { return a * b })
	case "div":
		d.fastOrExact(t, d.ops.floats["div"], func(a, b, _ float64) float64 { return divOdd(a, b) })
	case "fma", "mad":
		if d.plain() {
			d.op(apply3(d.ops.fma), d.dst(d.st.args[0], t), d.src(d.st.args[1], t),
				d.src(d.st.args[2], t), d.src(d.st.args[3], t))
			return
		}
		d.float32Op(t, d.ops.fma, fmaOdd)
	case "neg":
		d.float32Op(t, asTernary1(negF32), nil)
	case "abs":
		d.float32Op(t, asTernary1(absF32), nil)
	case "min", "max":
		d.minMaxF32(t)
	}
}

// plain says that an f32 instruction rounds to nearest and changes nothing else.
func (d *decoder) plain() bool {
	return d.mode() == nearest && d.st.hasAny("ftz", "sat") == ""
}

func (d *decoder) fastOrExact(t typ, fast func(d, a, b *lanes32),
	exact func(a, b, c float64) float64) {
	if d.plain() {
		d.op(apply2(fast), d.dst(d.st.args[0], t), d.src(d.st.args[1], t),
			d.src(d.st.args[2], t))
		return
	}
	d.float32Op(t, asTernary2(fast), exact)
}

// minMaxF32 decodes min and max, with .NaN, .xorsign.abs and three operands.
func (d *decoder) minMaxF32(t typ) {
	base := minF32
	if d.st.opcode == "max" {
		base = maxF32
	}
	nan, xorSign := d.st.has("NaN"), d.st.has("xorsign")
	if !nan && !xorSign && len(d.st.args) == 3 {
		d.fastOrExact(t, base, nil)
		return
	}
	d.float32Op(t, func(out, a, b, c *lanes32) {
		x, y, r := *a, *b, lanes32{}
		if xorSign {
			absF32(&x, a)
			absF32(&y, b)
		}
		base(&r, &x, &y)
		if c != nil {
			base(&r, &r, c)
		}
		for i := range r {
			anyNaN := isNaN32(a[i]) || isNaN32(b[i]) || c != nil && isNaN32(c[i])
			if xorSign {
				r[i] |= (a[i] ^ b[i]) & (1 << 31)
			}
			if nan && anyNaN {
				r[i] = float32Format.nan()
			}
		}
		*out = r // which may be one of the operands
	}, nil)
}

func isNaN32(b uint32) bool { return b&0x7fffffff > 0x7f800000 }

func (d *decoder) float64Arith(t typ) {
	if d.mode() != nearest {
		d.failf("only .rn is known for f64")
		return
	}
	var f func(a, b, c float64) float64
	switch d.st.opcode {
	case "add":
		f = func(a, b, _ float64) float64 { return a + b }
	case "sub":
		f = func(a, b, _ float64) float64 { return a - b }
	case "mul":
		f = func(a, b, _ float64) float64 { return a * b }
	case "div":
		f = func(a, b, _ float64) float64 { return a / b }
	case "fma", "mad":
		f = math.FMA
	case "neg":
		f = func(a, _, _ float64) float64 { return -a }
	case "abs":
		f = func(a, _, _ float64) float64 { return math.Abs(a) }
	case "min":
		f = func(a, b, _ float64) float64 { return minMax64(a, b, math.Min) }
	case "max":
		f = func(a, b, _ float64) float64 { return minMax64(a, b, math.Max) }
	}
	d.perLane(t, t, func(a, b, c uint64) uint64 {
		return math.Float64bits(f(math.Float64frombits(a), math.Float64frombits(b),
			math.Float64frombits(c)))
	})
}

// minMax64 returns the other operand for a NaN.
func minMax64(a, b float64, f func(a, b float64) float64) float64 {
	switch {
	case a != a:
		return b
	case b != b:
		return a
	}
	return f(a, b)
}

// perLane emits an instruction with operands of one type and a result of another.
func (d *decoder) perLane(dst, src typ, f func(a, b, c uint64) uint64) {
	srcs := make([]int32, len(d.st.args)-1)
	for i := range srcs {
		srcs[i] = d.src(d.st.args[i+1], src)
	}
	o := operands{typeBank(dst), typeBank(src), typeBank(src), typeBank(src)}
	d.op(perLane(o, f), d.dst(d.st.args[0], dst), srcs...)
}

// functions are the f32 instructions of one operand that the ISA calls approximate, and the exact
// ones beside them.
var functions = map[string]func(float64) float64{
	"rcp": reciprocal, "sqrt": math.Sqrt, "rsqrt": reciprocalRoot, "ex2": exp2,
	"lg2": math.Log2, "sin": math.Sin, "cos": math.Cos, "tanh": math.Tanh,
}

// floatFunction decodes rcp, sqrt, rsqrt, ex2, lg2, sin, cos and tanh. The functions of float64,
// rounded once, stand for the approximations; silicon may differ in the last bits.
func (d *decoder) floatFunction(t typ) {
	if !d.arity(2, 2) {
		return
	}
	f := functions[d.st.opcode]
	switch {
	case t.bits == 16:
		d.halfFunction(t, f)
	case d.st.opcode == "ex2" && t.bits == 32 && d.st.has("ftz"):
		d.op(apply1(exp2Flushed), d.dst(d.st.args[0], t), d.src(d.st.args[1], t))
	case t.bits == 32:
		exact := map[string]func(a, b, c float64) float64{
			"rcp":  func(a, _, _ float64) float64 { return divOdd(1, a) },
			"sqrt": func(a, _, _ float64) float64 { return sqrtOdd(a) },
		}[d.st.opcode]
		if exact == nil && d.mode() != nearest {
			d.failf("a rounding is not known")
			return
		}
		d.float32Op(t, asTernary1(function32(f)), exact)
	default:
		if d.mode() != nearest {
			d.failf("only .rn is known for f64")
			return
		}
		d.perLane(t, t, func(a, _, _ uint64) uint64 {
			return math.Float64bits(f(math.Float64frombits(a)))
		})
	}
}
