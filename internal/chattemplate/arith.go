package chattemplate

import (
	"math"
	"math/big"
)

// maxBits is about maxDigits in bits.
const maxBits = 14_284

// bigSteps is the price, in steps, of arithmetic with ints beyond 64 bits.
const bigSteps = 500

func Unary(run *Budget, negative bool, v Value) (Value, error) {
	sign := "+"
	if negative {
		sign = "-"
	}
	switch v.Kind {
	case KindUndefined, KindMissing:
		return Value{}, v.UndefinedError()
	case KindFloat:
		if negative {
			return Float(-v.AsFloat()), nil
		}
		return v, nil
	case KindInt, KindBool:
		if negative {
			if v.Num == math.MinInt64 {
				return Big(new(big.Int).Neg(BigOf(v))), nil
			}
			return Int(-v.Num), nil
		}
		return Int(v.Num), nil
	case KindBig:
		if negative {
			return Big(new(big.Int).Neg(BigOf(v))), nil
		}
		return v, nil
	}
	return Value{}, Errorf("bad operand type for unary %s: '%s'", sign, v.TypeName())
}

// Arith evaluates a binary operator with Python's semantics.
func Arith(run *Budget, op string, a, b Value) (Value, error) {
	if a.IsUndefined() && !(op == "%" && b.IsString()) {
		return Value{}, a.UndefinedError()
	}
	if op == "%" && a.Kind == KindString {
		return PercentFormat(run, a, b)
	}
	if b.IsUndefined() {
		return Value{}, b.UndefinedError()
	}
	if IsNumber(a) && IsNumber(b) {
		if a.Kind == KindFloat || b.Kind == KindFloat {
			return floatArith(op, a, b)
		}
		if a.Kind == KindBig || b.Kind == KindBig || op == "**" {
			if err := run.Work(bigSteps * BytesPerStep); err != nil {
				return Value{}, err
			}
		}
		return intArith(op, a, b)
	}
	switch op {
	case "+":
		return Concatenate(run, a, b)
	case "*":
		if IsInteger(a) {
			a, b = b, a
		}
		if IsInteger(b) && (a.Kind == KindString || a.Kind == KindList || a.Kind == KindTuple) {
			return Repeat(run, a, b)
		}
		return Value{}, Errorf("unsupported operand type(s) for *: '%s' and '%s'", a.TypeName(), b.TypeName())
	}
	if op == "**" {
		op = "** or pow()"
	}
	return Value{}, Errorf("unsupported operand type(s) for %s: '%s' and '%s'", op, a.TypeName(), b.TypeName())
}

func Concatenate(run *Budget, a, b Value) (Value, error) {
	switch {
	case a.Kind == KindString && b.Kind == KindString:
		if a.Markup != b.Markup {
			// Markup escapes what it is added to.
			var err error
			if a.Markup {
				b, err = Escape(run, b)
			} else {
				a, err = Escape(run, a)
			}
			if err != nil {
				return Value{}, err
			}
		}
		if err := run.Charge(len(a.Text) + len(b.Text)); err != nil {
			return Value{}, err
		}
		v := Str(a.Text + b.Text)
		v.Markup = a.Markup
		return v, nil
	case a.Kind == KindString:
		return Value{}, Errorf("can only concatenate str (not \"%s\") to str", b.TypeName())
	case a.Kind == b.Kind && (a.Kind == KindList || a.Kind == KindTuple):
		n := len(a.Items()) + len(b.Items())
		if err := run.ChargeValues(n); err != nil {
			return Value{}, err
		}
		joined := append(append(make([]Value, 0, n), a.Items()...), b.Items()...)
		return Value{Kind: a.Kind, Ref: &Sequence{Items: joined}}, nil
	case a.Kind == KindList || a.Kind == KindTuple:
		return Value{}, Errorf("can only concatenate %s (not \"%s\") to %s", a.TypeName(), b.TypeName(), a.TypeName())
	}
	return Value{}, Errorf("unsupported operand type(s) for +: '%s' and '%s'", a.TypeName(), b.TypeName())
}

func Repeat(run *Budget, v, times Value) (Value, error) {
	if times.Kind == KindBig {
		return Value{}, Errorf("cannot repeat that often")
	}
	n := max(0, times.Num)
	if v.Kind == KindString {
		if v.Text == "" || n == 0 {
			return Str(""), nil
		}
		if n > int64(run.Memory) || int64(len(v.Text)) > int64(run.Memory)/n {
			return Value{}, Errorf("template uses too much memory")
		}
		if err := run.Charge(len(v.Text) * int(n)); err != nil {
			return Value{}, err
		}
		buf := make([]byte, 0, len(v.Text)*int(n))
		for range n {
			buf = append(buf, v.Text...)
		}
		return Value{Kind: KindString, Text: string(buf), Markup: v.Markup}, nil
	}
	size := int64(len(v.Items()))
	if size > 0 && n > int64(run.Memory)/size {
		return Value{}, Errorf("template uses too much memory")
	}
	if size == 0 {
		n = 0
	}
	if err := run.ChargeValues(int(size * n)); err != nil {
		return Value{}, err
	}
	items := make([]Value, 0, size*n)
	for range n {
		items = append(items, v.Items()...)
	}
	return Value{Kind: v.Kind, Ref: &Sequence{Items: items}}, nil
}

func intArith(op string, a, b Value) (Value, error) {
	if a.Kind != KindBig && b.Kind != KindBig {
		if v, ok := smallArith(op, a.Num, b.Num); ok {
			return v, nil
		}
	}
	x, y := BigOf(a), BigOf(b)
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
			return Value{}, Errorf("division by zero")
		}
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		if math.IsInf(f, 0) {
			return Value{}, Errorf("integer division result too large for a float")
		}
		return Float(f), nil
	case "//", "%":
		if zero {
			return Value{}, Errorf("integer division or modulo by zero")
		}
		// Python rounds the quotient down; the remainder has the divisor's sign.
		q, r := new(big.Int).QuoRem(x, y, new(big.Int))
		if r.Sign() != 0 && r.Sign() != y.Sign() {
			q.Sub(q, big.NewInt(1))
			r.Add(r, y)
		}
		if op == "%" {
			return Big(r), nil
		}
		return Big(q), nil
	}
	if y.Sign() < 0 {
		return floatArith("**", a, b)
	}
	if x.BitLen() > 1 && (!y.IsInt64() || int64(x.BitLen()-1)*min(y.Int64(), maxBits+1) > maxBits) {
		return Value{}, Errorf("integer is too large")
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
		return Value{}, Errorf("integer is too large")
	}
	return Big(n), nil
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
	x, err := FloatOf(a)
	if err != nil {
		return Value{}, err
	}
	y, err := FloatOf(b)
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
			return Value{}, Errorf("float division by zero")
		}
		return Float(x / y), nil
	case "//", "%":
		if y == 0 {
			return Value{}, Errorf("float floor division or modulo by zero")
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
		return Value{}, Errorf("0.0 cannot be raised to a negative power")
	}
	if x < 0 && y != math.Trunc(y) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		return Value{}, Errorf("complex numbers are not supported")
	}
	f := math.Pow(x, y)
	if math.IsInf(f, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		return Value{}, Errorf("numerical result out of range")
	}
	return Float(f), nil
}
