package ptx

import "math"

// rounding is a rounding mode (PTX ISA 9.7.3): to nearest even, to zero, down, up, to nearest with
// ties away from zero.
type rounding uint8

const (
	nearest rounding = iota
	toZero
	down
	up
	tiesAway
)

// format is a binary floating-point format of an exponent and a mantissa of so many bits.
type format struct {
	exponent, mantissa int
	// finite has no infinities: the largest encoding is the one NaN (e4m3).
	finite bool
}

var (
	float32Format = format{8, 23, false}
	halfFormat    = format{5, 10, false}
	bfloatFormat  = format{8, 7, false}
	tf32Format    = format{8, 10, false}
	e4m3Format    = format{4, 3, true}
	e5m2Format    = format{5, 2, false}
)

func (f format) sign() uint32     { return 1 << (f.exponent + f.mantissa) }
func (f format) infinity() uint32 { return (1<<f.exponent - 1) << f.mantissa }

// nan is the canonical NaN: all bits but the sign.
func (f format) nan() uint32 { return f.sign() - 1 }

// largest is the largest finite value.
func (f format) largest() uint32 {
	if f.finite {
		return f.nan() - 1
	}
	return f.infinity() - 1
}

// encode rounds a value to the format. x may be a result that toOdd has rounded: the double
// rounding does no harm then.
func (f format) encode(x float64, mode rounding, saturate bool) uint32 {
	b := math.Float64bits(x)
	negative := b>>63 != 0
	sign := uint32(0)
	if negative {
		sign = f.sign()
	}
	switch {
	case x != x:
		return f.nan()
	case math.IsInf(x, 0):
		return sign | f.overflow(toZeroIf(saturate), negative)
	case x == 0:
		return sign
	}
	exponent := int(b >> 52 & 0x7ff)
	m := b&(1<<52-1) | 1<<52
	if exponent == 0 {
		m &^= 1 << 52 // far below all formats: only that it is not zero matters
		exponent = 1
	}
	bias := 1<<(f.exponent-1) - 1
	e := exponent - 1023 + bias // biased exponent of the result
	shift := 52 - f.mantissa
	if e < 1 {
		shift += 1 - e
		e = 1
	}
	shift = min(shift, 54)
	q, rest, half := m>>shift, m&(1<<shift-1), uint64(1)<<(shift-1)
	if roundsUp(mode, negative, q, rest, half) {
		q++
	}
	// The mantissa's leading bit adds one to the exponent, and a carry another one.
	r := uint64(e-1)<<f.mantissa + q
	if r > uint64(f.largest()) {
		if saturate {
			mode = toZero
		}
		return sign | f.overflow(mode, negative)
	}
	return sign | uint32(r)
}

func toZeroIf(saturate bool) rounding {
	if saturate {
		return toZero
	}
	return nearest
}

// overflow is the magnitude of a value beyond the largest.
func (f format) overflow(mode rounding, negative bool) uint32 {
	if mode == toZero || mode == down && !negative || mode == up && negative {
		return f.largest()
	}
	if f.finite {
		return f.nan()
	}
	return f.infinity()
}

// roundsUp says whether the magnitude q, of which rest was cut off, is to be raised.
func roundsUp(mode rounding, negative bool, q, rest, half uint64) bool {
	switch mode {
	case toZero:
		return false
	case down:
		return negative && rest != 0
	case up:
		return !negative && rest != 0
	case tiesAway:
		return rest >= half
	}
	return rest > half || rest == half && q&1 != 0
}

// decode is the value of an encoding.
func (f format) decode(b uint32) float64 {
	sign := 1.0
	if b&f.sign() != 0 {
		sign = -1
	}
	m := b & (1<<f.mantissa - 1)
	e := int(b >> f.mantissa & (1<<f.exponent - 1))
	bias := 1<<(f.exponent-1) - 1
	switch {
	case f.finite && b&(f.sign()-1) == f.nan():
		return math.NaN()
	case !f.finite && e == 1<<f.exponent-1:
		if m != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	case e == 0:
		return sign * math.Ldexp(float64(m), 1-bias-f.mantissa)
	}
	return sign * math.Ldexp(float64(m|1<<f.mantissa), e-bias-f.mantissa)
}

// toOdd adds an error to a sum that was rounded to nearest: the result is the exact sum, rounded to
// odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). Rounding that to
// a format of at most 51 bits gives what rounding the exact sum gives.
func toOdd(s, err float64) float64 {
	if err == 0 || s != s || math.IsInf(s, 0) {
		return s
	}
	b := math.Float64bits(s)
	if b&1 != 0 {
		return s
	}
	if (err > 0) == (s > 0) {
		return math.Float64frombits(b + 1)
	}
	return math.Float64frombits(b - 1)
}

// addOdd is a + b rounded to odd.
func addOdd(a, b float64) float64 {
	s := a + b
	t := s - a
	err := (a - (s - t)) + (b - t)
	return toOdd(s, err)
}

// fmaOdd is a*b + c rounded to odd, for a and b of at most 26 bits, whose product is exact.
func fmaOdd(a, b, c float64) float64 {
	p := float64(a * b)
	return addOdd(p, c)
}

// divOdd is a/b rounded to odd.
func divOdd(a, b float64) float64 {
	q := a / b
	if q == 0 || q != q || math.IsInf(q, 0) {
		return q
	}
	rest := math.FMA(-q, b, a)
	if b < 0 {
		rest = -rest
	}
	return toOdd(q, rest)
}

// sqrtOdd is the square root rounded to odd.
func sqrtOdd(a float64) float64 {
	s := math.Sqrt(a)
	if s == 0 || s != s || math.IsInf(s, 0) {
		return s
	}
	return toOdd(s, math.FMA(-s, s, a))
}

// fma32 is a*b + c with one rounding, to nearest.
func fma32(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	// Only a sum in the middle between two float32 (or below their normal range) can be rounded
	// wrongly the second time.
	if b := math.Float64bits(s); b&(1<<29-1) != 1<<28 && b>>52&0x7ff > 1023-126 {
		return float32(s)
	}
	return float32(fmaOdd(float64(a), float64(b), float64(c)))
}

func halfToFloat(h uint16) float32 {
	e, m := uint32(h>>10&31), uint32(h&1023)
	sign := uint32(h>>15) << 31
	switch {
	case e == 31:
		return math.Float32frombits(sign | 0xff<<23 | m<<13)
	case e != 0:
		return math.Float32frombits(sign | (e+112)<<23 | m<<13)
	}
	f := float32(m) * (1.0 / (1 << 24))
	return math.Float32frombits(math.Float32bits(f) | sign)
}

// floatToHalf and floatToBfloat round to nearest.
func floatToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	// Normal results: the exponent's bias is 127 - 15 less, and 13 bits are rounded away.
	if e := b >> 23 & 0xff; e >= 113 && e < 142 {
		b -= 112 << 23
		return uint16(b>>16&0x8000 | (b&0x7fffffff+0xfff+b>>13&1)>>13)
	}
	return uint16(halfFormat.encode(float64(f), nearest, false))
}

func floatToBfloat(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return 0x7fff
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// flush makes a zero of a subnormal number, with its sign (.ftz).
func flush(b uint32) uint32 {
	if b&0x7f800000 == 0 {
		return b & (1 << 31)
	}
	return b
}

// clamp01 is .sat: within 0 and 1, and 0 for NaN.
func clamp01(f float32) float32 {
	switch {
	case f >= 1:
		return 1
	case f > 0:
		return f
	}
	return 0
}
