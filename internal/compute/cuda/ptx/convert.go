package ptx

import (
	"math"
)

// floatFormat is the format of a float's type.
func (t typ) format() format {
	switch {
	case t.class == 'e':
		return e4m3Format
	case t.class == 'v':
		return e5m2Format
	case t.class == 't':
		return bfloatFormat
	case t.class == 'q':
		return tf32Format
	case t.bits == 16:
		return halfFormat
	}
	return float32Format
}

// toFloat is a value of any type as float64; integers of more than 53 bits are rounded to odd.
func (t typ) toFloat(v uint64) float64 {
	switch {
	case t.class == 'f' && t.bits == 64:
		return math.Float64frombits(v)
	case t.class == 'f' && t.bits == 32 || t.class == 'q':
		return float64(math.Float32frombits(uint32(v)))
	case t.class == 'f' && t.bits == 16:
		return float64(halfToFloat(uint16(v)))
	case t.class == 't':
		return float64(math.Float32frombits(uint32(v) << 16))
	case t.integer():
		return intToFloat(t, v)
	}
	return t.format().decode(uint32(v))
}

// intToDouble rounds to nearest.
func intToDouble(t typ, v uint64) float64 {
	if v = t.extended(v); t.signed() {
		return float64(int64(v))
	}
	return float64(v)
}

func intToFloat(t typ, v uint64) float64 {
	v = t.extended(v)
	negative := t.signed() && int64(v) < 0
	if negative {
		v = -v
	}
	if v >= 1<<53 {
		sticky := uint64(0)
		if v&2047 != 0 {
			sticky = 1
		}
		v = v>>11 | sticky
		f := float64(v) * 2048
		if negative {
			return -f
		}
		return f
	}
	if negative {
		return -float64(v)
	}
	return float64(v)
}

// fromFloat is a float64 in a float's type.
func (t typ) fromFloat(x float64, mode rounding, saturate bool) uint64 {
	if t.class == 'f' && t.bits == 64 {
		return math.Float64bits(x)
	}
	r := uint64(t.format().encode(x, mode, saturate))
	if t.class == 'q' {
		return r << 13 // tf32 lies in the upper bits of a register of 32
	}
	return r
}

// integral rounds to an integer.
func integral(x float64, mode rounding) float64 {
	switch mode {
	case toZero:
		return math.Trunc(x)
	case down:
		return math.Floor(x)
	case up:
		return math.Ceil(x)
	}
	return math.RoundToEven(x)
}

// toInt is a float as an integer, clamped to the type's range (PTX ISA 9.7.9.21).
func (t typ) toInt(x float64, src typ, mode rounding) uint64 {
	if x != x {
		if src.bits == 64 || t.bits == 64 {
			return 1 << (t.bits - 1)
		}
		return 0
	}
	x = integral(x, mode)
	if t.signed() {
		limit := math.Ldexp(1, t.bits-1)
		switch {
		case x >= limit:
			return 1<<(t.bits-1) - 1
		case x < -limit:
			return t.truncated(1 << (t.bits - 1))
		}
		return t.truncated(uint64(int64(x)))
	}
	switch {
	case x <= 0:
		return 0
	case x >= math.Ldexp(1, t.bits):
		return t.truncated(math.MaxUint64)
	}
	return uint64(x)
}

// clampInt is cvt.sat between integers.
func clampInt(v uint64, src, dst typ) uint64 {
	v = src.extended(v)
	negative := src.signed() && int64(v) < 0
	if dst.signed() {
		most, least := int64(1)<<(dst.bits-1)-1, int64(-1)<<(dst.bits-1)
		switch {
		case negative && int64(v) < least:
			return dst.truncated(uint64(least))
		case !negative && v > uint64(most):
			return uint64(most)
		}
		return dst.truncated(v)
	}
	most := uint64(math.MaxUint64) >> (64 - dst.bits)
	switch {
	case negative:
		return 0
	case v > most:
		return most
	}
	return v
}

// convert decodes cvt.
func (d *decoder) convert() {
	ts := d.st.types()
	if len(ts) != 2 {
		d.failf("two types are wanted")
		return
	}
	dst, src := ts[0], ts[1]
	switch {
	case dst.class == 'p' || src.class == 'p':
		d.failf("unknown types")
	case dst.pack == 2 && src.pack == 1:
		d.convertPair(dst, src)
	case dst.pack == 2:
		d.convertPacked(dst, src)
	case src.pack == 2:
		d.failf("unknown types")
	default:
		if d.arity(2, 2) && !d.fastConvert(dst, src) {
			d.convertOne(dst, src)
		}
	}
}

// fastConvert decodes conversions that kernels make often.
func (d *decoder) fastConvert(dst, src typ) bool {
	if d.st.hasAny("sat", "satfinite", "ftz", "relu") != "" {
		return false
	}
	a := d.st.args[1]
	if a.kind != nameOperand || !d.declared(a.name) || !d.declared(d.st.args[0].name) {
		return false
	}
	if bankOf(d.register(a.name)) != typeBank(src) ||
		bankOf(d.register(d.st.args[0].name)) != typeBank(dst) {
		return false
	}
	var exec execFunc
	switch {
	case src.integer() && src.bits == 32 && dst.integer() && dst.bits == 64:
		exec = apply1(wider[uint32])
		if src.signed() {
			exec = apply1(wider[int32])
		}
	case src.integer() && src.bits == 64 && dst.integer() && dst.bits == 32:
		exec = apply1(truncate)
	case src.integer() && src.bits == 32 && dst.integer() && dst.bits == 32:
		exec = apply1(mov[lanes32])
	case src == types["s32"] && dst == types["f32"] && d.mode() == nearest:
		exec = apply1(intsToFloats)
	case src == types["bf16"] && dst == types["f32"]:
		exec = apply1(widenBfloats)
	case src == types["f16"] && dst == types["f32"]:
		exec = apply1(widenHalves)
	case src == types["f32"] && dst == types["bf16"] && d.mode() == nearest:
		exec = apply1(narrowBfloats)
	case src == types["f32"] && dst == types["f16"] && d.mode() == nearest:
		exec = apply1(narrowHalves)
	default:
		return false
	}
	d.op(exec, d.dst(d.st.args[0], dst), d.src(a, src))
	return true
}

func intsToFloats(d, a *lanes32) {
	z := d.floats()
	for i := range z {
		z[i] = float32(int32(a[i]))
	}
}

func widenBfloats(d, a *lanes32) {
	for i := range d {
		d[i] = a[i] << 16
	}
}

func narrowBfloats(d, a *lanes32) {
	for i, x := range a.floats() {
		d[i] = uint32(floatToBfloat(x))
	}
}

func narrowHalves(d, a *lanes32) {
	for i, x := range a.floats() {
		d[i] = uint32(floatToHalf(x))
	}
}

func widenHalves(d, a *lanes32) {
	z := d.floats()
	for i := range z {
		z[i] = halfToFloat(uint16(a[i]))
	}
}

// convertOne decodes any cvt of one value.
func (d *decoder) convertOne(dst, src typ) {
	f := d.converter(dst, src)
	a, r := d.anySrc(d.st.args[1], src), d.anyDst(d.st.args[0], dst)
	if a == none || r == none {
		return
	}
	o := operands{d: bankOf(r), a: bankOf(a)}
	// A destination that is wider than the type has the sign of a signed one (PTX ISA 9.4.1).
	wider := dst.signed() && (o.d == bank64 && dst.bits < 64 || o.d == bank32 && dst.bits < 32)
	registerBits := d.registerBits(d.st.args[0])
	d.op(perLane(o, func(a, _, _ uint64) uint64 {
		v := f(src.truncated(a))
		if wider {
			return dst.extended(v) << (64 - registerBits) >> (64 - registerBits)
		}
		return v
	}), r, a)
}

// registerBits is the width of a declared register, 32 for others.
func (d *decoder) registerBits(o operand) int {
	for s := d.st.scope; s != nil; s = s.parent {
		if t, ok := s.reg(o.name); ok {
			return t.width()
		}
	}
	return 32
}

// converter is a cvt of one value.
func (d *decoder) converter(dst, src typ) func(uint64) uint64 {
	mode, sat := d.mode(), d.st.hasAny("sat", "satfinite") != ""
	whole := d.st.hasAny("rni", "rzi", "rmi", "rpi") != ""
	relu, ftz := d.st.has("relu"), d.st.has("ftz")
	switch {
	case src.integer() && dst.integer():
		if sat {
			return func(v uint64) uint64 { return clampInt(v, src, dst) }
		}
		return func(v uint64) uint64 { return dst.truncated(src.extended(v)) }
	case src.integer() && dst.bits == 64:
		if mode != nearest {
			d.failf("only .rn is known for f64")
		}
		return func(v uint64) uint64 { return math.Float64bits(intToDouble(src, v)) }
	case src.integer():
		return func(v uint64) uint64 {
			x := src.toFloat(v)
			if sat {
				x = min(1, max(0, x))
			}
			return dst.fromFloat(x, mode, false)
		}
	case dst.integer():
		if !whole && d.st.hasAny("rn", "rz", "rm", "rp") == "" {
			mode = toZero
		}
		return func(v uint64) uint64 {
			if ftz && src.bits == 32 {
				v = uint64(flush(uint32(v)))
			}
			return dst.toInt(src.toFloat(v), src, mode)
		}
	}
	return func(v uint64) uint64 {
		if ftz && src.bits == 32 {
			v = uint64(flush(uint32(v)))
		}
		x := src.toFloat(v)
		if whole {
			x = integral(x, mode)
		}
		if sat && dst.bits >= 16 && !d.narrow(dst) {
			x = saturate01(x)
		}
		if relu && !(x > 0) && x == x {
			x = 0
		}
		v = dst.fromFloat(x, mode, sat)
		if ftz && dst.bits == 32 && dst.class == 'f' {
			v = uint64(flush(uint32(v)))
		}
		return v
	}
}

// narrow are the types whose saturation is .satfinite.
func (d *decoder) narrow(t typ) bool { return t.class == 'e' || t.class == 'v' || t.class == 'q' }

func saturate01(x float64) float64 {
	switch {
	case x >= 1:
		return 1
	case x > 0:
		return x
	}
	return 0
}

// convertPair decodes a cvt of two values into one register: a in the upper half.
func (d *decoder) convertPair(dst, src typ) {
	if !d.arity(3, 3) {
		return
	}
	a := d.st.args
	r, hi, lo := d.dst(a[0], dst), d.src(a[1], src), d.src(a[2], src)
	if dst.class == 't' && src.bits == 32 && d.mode() == nearest &&
		d.st.hasAny("relu", "satfinite") == "" {
		d.op(apply2(bfloat2), r, hi, lo)
		return
	}
	f := d.converter(typ{dst.class, dst.bits, 1}, src)
	d.op(perLane(operands{}, func(a, b, _ uint64) uint64 { return f(a)<<dst.bits | f(b) }),
		r, hi, lo)
}

// convertPacked decodes a cvt of a register with two values.
func (d *decoder) convertPacked(dst, src typ) {
	if !d.arity(2, 2) {
		return
	}
	f := d.converter(typ{dst.class, dst.bits, 1}, typ{src.class, src.bits, 1})
	low := uint64(1)<<src.bits - 1
	d.op(perLane(operands{}, func(a, _, _ uint64) uint64 {
		return f(a>>src.bits&low)<<dst.bits | f(a&low)
	}), d.dst(d.st.args[0], dst), d.src(d.st.args[1], src))
}
