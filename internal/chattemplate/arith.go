package chattemplate

import (
	"math"
	"math/big"
)

// maxBits is about maxDigits in bits.
const maxBits = 14_284

// bigSteps is the price, in steps, of arithmetic with ints beyond 64 bits.
const bigSteps = 500

func Unary(run *budget, negative bool, v Value) (Value, error) {
	sign := "+"
	if negative {
		sign = "-"
	}
	switch v.kind {
	case kindUndefined, kindMissing:
		return Value{}, v.undefinedError()
	case kindFloat:
		if negative {
			return Float(-v.float()), nil
		}
		return v, nil
	case kindInt, kindBool:
		if negative {
			if v.num == math.MinInt64 {
				return bigValue(new(big.Int).Neg(bigOf(v))), nil
			}
			return Int(-v.num), nil
		}
		return Int(v.num), nil
	case kindBig:
		if negative {
			return bigValue(new(big.Int).Neg(bigOf(v))), nil
		}
		return v, nil
	}
	return Value{}, errorf("bad operand type for unary %s: '%s'", sign, v.typeName())
}

// Arith evaluates a binary operator with Python's semantics.
func Arith(run *budget, op string, a, b Value) (Value, error) {
	if a.IsUndefined() && !(op == "%" && b.isString()) {
		return Value{}, a.undefinedError()
	}
	if op == "%" && a.kind == kindString {
		return PercentFormat(run, a, b)
	}
	if b.IsUndefined() {
		return Value{}, b.undefinedError()
	}
	if isNumber(a) && isNumber(b) {
		if a.kind == kindFloat || b.kind == kindFloat {
			return floatArith(op, a, b)
		}
		if a.kind == kindBig || b.kind == kindBig || op == "**" {
			if err := run.work(bigSteps * bytesPerStep); err != nil {
				return Value{}, err
			}
		}
		return intArith(op, a, b)
	}
	switch op {
	case "+":
		return Concatenate(run, a, b)
	case "*":
		if isInteger(a) {
			a, b = b, a
		}
		if isInteger(b) && (a.kind == kindString || a.kind == kindList || a.kind == kindTuple) {
			return Repeat(run, a, b)
		}
		return Value{}, errorf("unsupported operand type(s) for *: '%s' and '%s'", a.typeName(), b.typeName())
	}
	if op == "**" {
		op = "** or pow()"
	}
	return Value{}, errorf("unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
}

func Concatenate(run *budget, a, b Value) (Value, error) {
	switch {
	case a.kind == kindString && b.kind == kindString:
		if a.markup != b.markup {
			// Markup escapes what it is added to.
			var err error
			if a.markup {
				b, err = Escape(run, b)
			} else {
				a, err = Escape(run, a)
			}
			if err != nil {
				return Value{}, err
			}
		}
		if err := run.charge(len(a.str) + len(b.str)); err != nil {
			return Value{}, err
		}
		v := strValue(a.str + b.str)
		v.markup = a.markup
		return v, nil
	case a.kind == kindString:
		return Value{}, errorf("can only concatenate str (not \"%s\") to str", b.typeName())
	case a.kind == b.kind && (a.kind == kindList || a.kind == kindTuple):
		n := len(a.items()) + len(b.items())
		if err := run.chargeValues(n); err != nil {
			return Value{}, err
		}
		joined := append(append(make([]Value, 0, n), a.items()...), b.items()...)
		return Value{kind: a.kind, ref: &list{joined}}, nil
	case a.kind == kindList || a.kind == kindTuple:
		return Value{}, errorf("can only concatenate %s (not \"%s\") to %s", a.typeName(), b.typeName(), a.typeName())
	}
	return Value{}, errorf("unsupported operand type(s) for +: '%s' and '%s'", a.typeName(), b.typeName())
}

func Repeat(run *budget, v, times Value) (Value, error) {
	if times.kind == kindBig {
		return Value{}, errorf("cannot repeat that often")
	}
	n := max(0, times.num)
	if v.kind == kindString {
		if v.str == "" || n == 0 {
			return strValue(""), nil
		}
		if n > int64(run.memory) || int64(len(v.str)) > int64(run.memory)/n {
			return Value{}, errorf("template uses too much memory")
		}
		if err := run.charge(len(v.str) * int(n)); err != nil {
			return Value{}, err
		}
		buf := make([]byte, 0, len(v.str)*int(n))
		for range n {
			buf = append(buf, v.str...)
		}
		return Value{kind: kindString, str: string(buf), markup: v.markup}, nil
	}
	size := int64(len(v.items()))
	if size > 0 && n > int64(run.memory)/size {
		return Value{}, errorf("template uses too much memory")
	}
	if size == 0 {
		n = 0
	}
	if err := run.chargeValues(int(size * n)); err != nil {
		return Value{}, err
	}
	items := make([]Value, 0, size*n)
	for range n {
		items = append(items, v.items()...)
	}
	return Value{kind: v.kind, ref: &list{items}}, nil
}

func intArith(op string, a, b Value) (Value, error) {
	if a.kind != kindBig && b.kind != kindBig {
		if v, ok := smallArith(op, a.num, b.num); ok {
			return v, nil
		}
	}
	x, y := bigOf(a), bigOf(b)
	zero := y.Sign() == 0
	switch op {
	case "+":
		return boundedInt(new(big.Int).Add(x, y))
	case "-":
		return boundedInt(new(big.Int).Sub(x, y))
	case "*":
		return boundedInt(new(big.Int).Mul(x, y))
	case "/":
		if zero {
			return Value{}, errorf("division by zero")
		}
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		if math.IsInf(f, 0) {
			return Value{}, errorf("integer division result too large for a float")
		}
		return Float(f), nil
	case "//", "%":
		if zero {
			return Value{}, errorf("integer division or modulo by zero")
		}
		// Python rounds the quotient down; the remainder has the divisor's sign.
		q, r := new(big.Int).QuoRem(x, y, new(big.Int))
		if r.Sign() != 0 && r.Sign() != y.Sign() {
			q.Sub(q, big.NewInt(1))
			r.Add(r, y)
		}
		if op == "%" {
			return bigValue(r), nil
		}
		return bigValue(q), nil
	}
	if y.Sign() < 0 {
		return floatArith("**", a, b)
	}
	if x.BitLen() > 1 && (!y.IsInt64() || int64(x.BitLen()-1)*min(y.Int64(), maxBits+1) > maxBits) {
		return Value{}, errorf("integer is too large")
	}
	if x.BitLen() <= 1 {
		// 0, 1 and -1: only the parity of the exponent counts.
		if y.Sign() > 0 {
			y = new(big.Int).Add(big.NewInt(2), new(big.Int).And(y, big.NewInt(1)))
		}
	}
	return boundedInt(new(big.Int).Exp(x, y, nil))
}

func boundedInt(n *big.Int) (Value, error) {
	if n.BitLen() > maxBits {
		return Value{}, errorf("integer is too large")
	}
	return bigValue(n), nil
}

// smallArith handles what fits in 64 bits; ok is false if the general case must be taken.
func smallArith(op string, a, b int64) (v Value, ok bool) {
	switch op {
	case "+":
		c := a + b
		return Int(c), (c > a) == (b > 0)
	case "-":
		c := a - b
		return Int(c), (c < a) == (b > 0)
	case "*":
		const half = 1 << 31
		return Int(a * b), a > -half && a < half && b > -half && b < half
	case "/":
		const exact = 1 << 53
		return Float(float64(a) / float64(b)), b != 0 && a >= -exact && a <= exact && b >= -exact && b <= exact
	case "//", "%":
		if b == 0 || a == math.MinInt64 {
			return Value{}, false
		}
		q, r := a/b, a%b
		if r != 0 && (r < 0) != (b < 0) {
			q--
			r += b
		}
		if op == "%" {
			return Int(r), true
		}
		return Int(q), true
	}
	return Value{}, false
}

func floatArith(op string, a, b Value) (Value, error) {
	x, err := floatOf(a)
	if err != nil {
		return Value{}, err
	}
	y, err := floatOf(b)
	if err != nil {
		return Value{}, err
	}
	switch op {
	case "+":
		return Float(x + y), nil
	case "-":
		return Float(x - y), nil
	case "*":
		return Float(x * y), nil
	case "/":
		if y == 0 {
			return Value{}, errorf("float division by zero")
		}
		return Float(x / y), nil
	case "//", "%":
		if y == 0 {
			return Value{}, errorf("float floor division or modulo by zero")
		}
		q, r := floatDivMod(x, y)
		if op == "%" {
			return Float(r), nil
		}
		return Float(q), nil
	}
	return floatPower(x, y)
}

// floatDivMod is CPython's float_divmod.
func floatDivMod(x, y float64) (q, r float64) {
	r = math.Mod(x, y)
	q = (x - r) / y
	if r != 0 {
		if (y < 0) != (r < 0) {
			r += y
			q--
		}
	} else {
		r = math.Copysign(0, y)
	}
	if q == 0 {
		return math.Copysign(0, x/y), r
	}
	floor := math.Floor(q)
	if q-floor > 0.5 {
		floor++
	}
	return floor, r
}

func floatPower(x, y float64) (Value, error) {
	if x == 0 && y < 0 {
		return Value{}, errorf("0.0 cannot be raised to a negative power")
	}
	if x < 0 && y != math.Trunc(y) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		return Value{}, errorf("complex numbers are not supported")
	}
	f := math.Pow(x, y)
	if math.IsInf(f, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		return Value{}, errorf("numerical result out of range")
	}
	return Float(f), nil
}
