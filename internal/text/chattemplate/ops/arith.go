package ops

import (
	"math"
	"math/big"

	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// maxBits is about maxDigits in bits.
const maxBits = 14_284

// bigSteps is the price, in steps, of arithmetic with ints beyond 64 bits.
const bigSteps = 500

// Unary is -v or +v.
func Unary(run *values.Budget, negative bool, v values.Value) (values.Value, error) {
	sign := "+"
	if negative {
		sign = "-"
	}
	switch v.Kind {
	case values.KindUndefined, values.KindMissing:
		return values.Value{}, v.UndefinedError()
	case values.KindFloat:
		if negative {
			return values.Float(-v.AsFloat()), nil
		}
		return v, nil
	case values.KindInt, values.KindBool:
		if negative {
			if v.Num == math.MinInt64 {
				return values.Big(new(big.Int).Neg(values.BigOf(v))), nil
			}
			return values.Int(-v.Num), nil
		}
		return values.Int(v.Num), nil
	case values.KindBig:
		if negative {
			return values.Big(new(big.Int).Neg(values.BigOf(v))), nil
		}
		return v, nil
	}
	return values.Value{}, values.Errorf("bad operand type for unary %s: '%s'", sign, v.TypeName())
}

// Arith evaluates a binary operator with Python's semantics.
func Arith(run *values.Budget, op string, a, b values.Value) (values.Value, error) {
	if a.IsUndefined() && !(op == "%" && b.IsString()) {
		return values.Value{}, a.UndefinedError()
	}
	if op == "%" && a.Kind == values.KindString {
		return PercentFormat(run, a, b)
	}
	if b.IsUndefined() {
		return values.Value{}, b.UndefinedError()
	}
	if values.IsNumber(a) && values.IsNumber(b) {
		if a.Kind == values.KindFloat || b.Kind == values.KindFloat {
			return floatArith(op, a, b)
		}
		if a.Kind == values.KindBig || b.Kind == values.KindBig || op == "**" {
			if err := run.Work(bigSteps * values.BytesPerStep); err != nil {
				return values.Value{}, err
			}
		}
		return intArith(op, a, b)
	}
	switch op {
	case "+":
		return concatenate(run, a, b)
	case "*":
		if values.IsInteger(a) {
			a, b = b, a
		}
		if values.IsInteger(b) &&
			(a.Kind == values.KindString || a.Kind == values.KindList ||
				a.Kind == values.KindTuple) {
			return Repeat(run, a, b)
		}
		return values.Value{}, values.Errorf("unsupported operand type(s) for *: '%s' and '%s'",
			a.TypeName(), b.TypeName())
	}
	if op == "**" {
		op = "** or pow()"
	}
	return values.Value{}, values.Errorf("unsupported operand type(s) for %s: '%s' and '%s'", op,
		a.TypeName(), b.TypeName())
}

func concatenate(run *values.Budget, a, b values.Value) (values.Value, error) {
	switch {
	case a.Kind == values.KindString && b.Kind == values.KindString:
		if a.Markup != b.Markup {
			// Markup escapes what it is added to.
			var err error
			if a.Markup {
				b, err = Escape(run, b)
			} else {
				a, err = Escape(run, a)
			}
			if err != nil {
				return values.Value{}, err
			}
		}
		if err := run.Charge(len(a.Text) + len(b.Text)); err != nil {
			return values.Value{}, err
		}
		v := values.Str(a.Text + b.Text)
		v.Markup = a.Markup
		return v, nil
	case a.Kind == values.KindString:
		return values.Value{}, values.Errorf("can only concatenate str (not \"%s\") to str",
			b.TypeName())
	case a.Kind == b.Kind && (a.Kind == values.KindList || a.Kind == values.KindTuple):
		n := len(a.Items()) + len(b.Items())
		if err := run.ChargeValues(n); err != nil {
			return values.Value{}, err
		}
		joined := append(append(make([]values.Value, 0, n), a.Items()...), b.Items()...)
		return values.Value{Kind: a.Kind, Ref: &values.Sequence{Items: joined}}, nil
	case a.Kind == values.KindList || a.Kind == values.KindTuple:
		return values.Value{}, values.Errorf("can only concatenate %s (not \"%s\") to %s",
			a.TypeName(), b.TypeName(), a.TypeName())
	}
	return values.Value{}, values.Errorf("unsupported operand type(s) for +: '%s' and '%s'",
		a.TypeName(), b.TypeName())
}

// Repeat is v * times of a str, list or tuple.
func Repeat(run *values.Budget, v, times values.Value) (values.Value, error) {
	if times.Kind == values.KindBig {
		return values.Value{}, values.Errorf("cannot repeat that often")
	}
	n := max(0, times.Num)
	if v.Kind == values.KindString {
		if v.Text == "" || n == 0 {
			return values.Str(""), nil
		}
		if n > int64(run.Memory) || int64(len(v.Text)) > int64(run.Memory)/n {
			return values.Value{}, values.Errorf("template uses too much memory")
		}
		if err := run.Charge(len(v.Text) * int(n)); err != nil {
			return values.Value{}, err
		}
		buf := make([]byte, 0, len(v.Text)*int(n))
		for range n {
			buf = append(buf, v.Text...)
		}
		return values.Value{Kind: values.KindString, Text: string(buf), Markup: v.Markup}, nil
	}
	size := int64(len(v.Items()))
	if size > 0 && n > int64(run.Memory)/size {
		return values.Value{}, values.Errorf("template uses too much memory")
	}
	if size == 0 {
		n = 0
	}
	if err := run.ChargeValues(int(size * n)); err != nil {
		return values.Value{}, err
	}
	items := make([]values.Value, 0, size*n)
	for range n {
		items = append(items, v.Items()...)
	}
	return values.Value{Kind: v.Kind, Ref: &values.Sequence{Items: items}}, nil
}

func intArith(op string, a, b values.Value) (values.Value, error) {
	if a.Kind != values.KindBig && b.Kind != values.KindBig {
		if v, ok := smallArith(op, a.Num, b.Num); ok {
			return v, nil
		}
	}
	x, y := values.BigOf(a), values.BigOf(b)
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
			return values.Value{}, values.Errorf("division by zero")
		}
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		if math.IsInf(f, 0) {
			return values.Value{}, values.Errorf("integer division result too large for a float")
		}
		return values.Float(f), nil
	case "//", "%":
		if zero {
			return values.Value{}, values.Errorf("integer division or modulo by zero")
		}
		// Python rounds the quotient down; the remainder has the divisor's sign.
		q, r := new(big.Int).QuoRem(x, y, new(big.Int))
		if r.Sign() != 0 && r.Sign() != y.Sign() {
			q.Sub(q, big.NewInt(1))
			r.Add(r, y)
		}
		if op == "%" {
			return values.Big(r), nil
		}
		return values.Big(q), nil
	}
	if y.Sign() < 0 {
		return floatArith("**", a, b)
	}
	if x.BitLen() > 1 && (!y.IsInt64() || int64(x.BitLen()-1)*min(y.Int64(), maxBits+1) > maxBits) {
		return values.Value{}, values.Errorf("integer is too large")
	}
	if x.BitLen() <= 1 {
		// 0, 1 and -1: only the parity of the exponent counts.
		if y.Sign() > 0 {
			y = new(big.Int).Add(big.NewInt(2), new(big.Int).And(y, big.NewInt(1)))
		}
	}
	return boundedInt(new(big.Int).Exp(x, y, nil))
}

func boundedInt(n *big.Int) (values.Value, error) {
	if n.BitLen() > maxBits {
		return values.Value{}, values.Errorf("integer is too large")
	}
	return values.Big(n), nil
}

// smallArith handles what fits in 64 bits; ok is false if the general case must be taken.
func smallArith(op string, a, b int64) (v values.Value, ok bool) {
	switch op {
	case "+":
		c := a + b
		return values.Int(c), (c > a) == (b > 0)
	case "-":
		c := a - b
		return values.Int(c), (c < a) == (b > 0)
	case "*":
		const half = 1 << 31
		return values.Int(a * b), a > -half && a < half && b > -half && b < half
	case "/":
		const exact = 1 << 53
		return values.Float(float64(a) / float64(b)), b != 0 && a >= -exact && a <= exact &&
			b >= -exact && b <= exact
	case "//", "%":
		if b == 0 || a == math.MinInt64 {
			return values.Value{}, false
		}
		q, r := a/b, a%b
		if r != 0 && (r < 0) != (b < 0) {
			q--
			r += b
		}
		if op == "%" {
			return values.Int(r), true
		}
		return values.Int(q), true
	}
	return values.Value{}, false
}

func floatArith(op string, a, b values.Value) (values.Value, error) {
	x, err := values.FloatOf(a)
	if err != nil {
		return values.Value{}, err
	}
	y, err := values.FloatOf(b)
	if err != nil {
		return values.Value{}, err
	}
	switch op {
	case "+":
		return values.Float(x + y), nil
	case "-":
		return values.Float(x - y), nil
	case "*":
		return values.Float(x * y), nil
	case "/":
		if y == 0 {
			return values.Value{}, values.Errorf("float division by zero")
		}
		return values.Float(x / y), nil
	case "//", "%":
		if y == 0 {
			return values.Value{}, values.Errorf("float floor division or modulo by zero")
		}
		q, r := floatDivMod(x, y)
		if op == "%" {
			return values.Float(r), nil
		}
		return values.Float(q), nil
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

func floatPower(x, y float64) (values.Value, error) {
	if x == 0 && y < 0 {
		return values.Value{}, values.Errorf("0.0 cannot be raised to a negative power")
	}
	if x < 0 && y != math.Trunc(y) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		return values.Value{}, values.Errorf("complex numbers are not supported")
	}
	f := math.Pow(x, y)
	if math.IsInf(f, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		return values.Value{}, values.Errorf("numerical result out of range")
	}
	return values.Float(f), nil
}
