package schema

import (
	"math/big"
	"strconv"
	"strings"
)

// maxExponent bounds the exponents of numbers in a schema, and so the digits that they stand for.
const maxExponent = 2000

// decimal is the exact value ±0.digits × 10^exp: digits has no zero at either end, and is empty
// for zero.
type decimal struct {
	neg    bool
	digits string
	exp    int
}

// parseDecimal reads a number in JSON's spelling; false says that its exponent is out of range.
func parseDecimal(text string) (decimal, bool) {
	d := decimal{}
	if strings.HasPrefix(text, "-") {
		d.neg, text = true, text[1:]
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		e, err := strconv.Atoi(text[i+1:])
		if err != nil && strings.Trim(text[:i], "0.") != "" {
			return d, false
		}
		d.exp, text = e, text[:i]
	}
	whole, fraction, _ := strings.Cut(text, ".")
	d.exp += len(whole)
	digits := whole + fraction
	trimmed := strings.TrimLeft(digits, "0")
	d.exp -= len(digits) - len(trimmed)
	d.digits = strings.TrimRight(trimmed, "0")
	if d.digits == "" {
		return decimal{}, true
	}
	return d, d.exp > -maxExponent && d.exp < maxExponent && len(d.digits) < maxExponent
}

func (d decimal) zero() bool { return d.digits == "" }

func (d decimal) minus() decimal {
	d.neg = !d.neg && !d.zero()
	return d
}

// cmp compares two values.
func (d decimal) cmp(e decimal) int {
	switch {
	case d.neg != e.neg:
		if d.neg {
			return -1
		}
		return 1
	case d.neg:
		return e.minus().cmp(d.minus())
	case d.zero() || e.zero():
		return len(d.digits) - len(e.digits)
	case d.exp != e.exp:
		return d.exp - e.exp
	}
	return strings.Compare(d.digits, e.digits)
}

// integer says whether the value is whole.
func (d decimal) integer() bool { return len(d.digits) <= d.exp || d.zero() }

// parts are the digits before and after the point, of the absolute value; without leading and
// trailing zeros, but "0" before the point.
func (d decimal) parts() (whole, fraction string) {
	switch {
	case d.zero():
		return "0", ""
	case d.exp <= 0:
		return "0", strings.Repeat("0", -d.exp) + d.digits
	case len(d.digits) <= d.exp:
		return d.digits + strings.Repeat("0", d.exp-len(d.digits)), ""
	}
	return d.digits[:d.exp], d.digits[d.exp:]
}

// String spells the value without an exponent.
func (d decimal) String() string {
	whole, fraction := d.parts()
	if fraction != "" {
		whole += "." + fraction
	}
	if d.neg {
		return "-" + whole
	}
	return whole
}

// scaled is the value times 10^places, which must be whole.
func (d decimal) scaled(places int) *big.Int {
	n := new(big.Int)
	if d.zero() {
		return n
	}
	n.SetString(d.digits, 10)
	n.Mul(n, pow10(d.exp-len(d.digits)+places))
	if d.neg {
		n.Neg(n)
	}
	return n
}

// places is the number of digits after the point.
func (d decimal) places() int { return max(len(d.digits)-d.exp, 0) }

func pow10(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// multipleOf says whether the value is a whole multiple of m, which is not zero.
func (d decimal) multipleOf(m decimal) bool {
	places := max(d.places(), m.places())
	return new(big.Int).Rem(d.scaled(places), m.scaled(places)).Sign() == 0
}

// floor is the largest whole number that is not larger, ceil the smallest that is not smaller.
func (d decimal) floor() *big.Int {
	places := d.places()
	return new(big.Int).Div(d.scaled(places), pow10(places)) // Euclid's: downwards
}

func (d decimal) ceil() *big.Int {
	n := d.minus().floor()
	return n.Neg(n)
}

// whole is the decimal of a whole number.
func whole(n *big.Int) decimal {
	d, _ := parseDecimal(n.String())
	return d
}
