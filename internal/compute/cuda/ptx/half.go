package ptx

// halfArith decodes instructions of f16, bf16 and pairs of them. They round once.
func (d *decoder) halfArith(t typ) {
	one := typ{t.class, 16, 1}
	f := d.halfFunctionOf(one)
	if f == nil {
		d.failf("unknown instruction")
		return
	}
	d.perHalf(t, f)
}

// perHalf applies a function to each half of the operands.
func (d *decoder) perHalf(t typ, f func(a, b, c uint64) uint64) {
	if t.pack == 1 {
		d.perLane(t, t, f)
		return
	}
	d.perLane(t, t, func(a, b, c uint64) uint64 {
		return f(a&0xffff, b&0xffff, c&0xffff) | f(a>>16, b>>16, c>>16)<<16
	})
}

// halfFunctionOf is an instruction on one element, nil if there is none.
func (d *decoder) halfFunctionOf(t typ) func(a, b, c uint64) uint64 {
	switch d.st.opcode {
	case "neg":
		return func(a, _, _ uint64) uint64 { return a ^ 0x8000 }
	case "abs":
		return func(a, _, _ uint64) uint64 { return a &^ 0x8000 }
	case "min", "max":
		return d.halfMinMax(t)
	}
	f := map[string]func(a, b, c float64) float64{
		"add": func(a, b, _ float64) float64 { return addOdd(a, b) },
		"sub": func(a, b, _ float64) float64 { return addOdd(a, -b) },
		"mul": func(a, b, _ float64) float64 { return a * b },
		"fma": fmaOdd,
	}[d.st.opcode]
	if f == nil || d.mode() != nearest {
		return nil
	}
	ftz, sat, relu := d.st.has("ftz"), d.st.has("sat"), d.st.has("relu")
	return func(a, b, c uint64) uint64 {
		if ftz {
			a, b, c = flushHalf(a), flushHalf(b), flushHalf(c)
		}
		x := f(t.toFloat(a), t.toFloat(b), t.toFloat(c))
		if sat {
			x = saturate01(x)
		}
		if relu && x < 0 {
			x = 0
		}
		r := t.fromFloat(x, nearest, false)
		if ftz {
			r = flushHalf(r)
		}
		return r
	}
}

// flushHalf makes a zero of a subnormal f16, with its sign.
func flushHalf(b uint64) uint64 {
	if b&0x7c00 == 0 {
		return b & 0x8000
	}
	return b
}

// halfMinMax is min and max: the other operand for a NaN, or NaN with .NaN; -0 is below +0.
func (d *decoder) halfMinMax(t typ) func(a, b, c uint64) uint64 {
	smaller, nan := d.st.opcode == "min", d.st.has("NaN")
	if d.st.has("xorsign") || len(d.st.args) != 3 {
		return nil
	}
	ftz := d.st.has("ftz")
	return func(a, b, _ uint64) uint64 {
		if ftz {
			a, b = flushHalf(a), flushHalf(b)
		}
		x, y := t.toFloat(a), t.toFloat(b)
		switch {
		case x != x && y != y, nan && (x != x || y != y):
			return uint64(t.format().nan())
		case x != x:
			return b
		case y != y:
			return a
		case x == y && smaller:
			return a | b
		case x == y:
			return a & b
		case (x < y) == smaller:
			return a
		}
		return b
	}
}

// halfFunction decodes ex2 and tanh of f16 and bf16.
func (d *decoder) halfFunction(t typ, f func(float64) float64) {
	if d.st.opcode != "ex2" && d.st.opcode != "tanh" {
		d.failf("unknown instruction")
		return
	}
	one := typ{t.class, 16, 1}
	d.perHalf(t, func(a, _, _ uint64) uint64 {
		return one.fromFloat(f(one.toFloat(a)), nearest, false)
	})
}
