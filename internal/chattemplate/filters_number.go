package chattemplate

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

func filterAbs(run *Budget, v Value, a *Args) (Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return Value{}, err
	}
	if v.IsUndefined() {
		return Value{}, v.UndefinedError()
	}
	switch {
	case v.Kind == KindFloat:
		return Float(math.Abs(v.AsFloat())), nil
	case IsInteger(v):
		return Unary(run, BigOf(v).Sign() < 0, v)
	}
	return Value{}, Errorf("bad operand type for abs(): '%s'", v.TypeName())
}

// pythonInt is int(v) or int(text, base); ok is false where Python raises ValueError or TypeError.
func pythonInt(v Value, base int) (Value, bool) {
	switch v.Kind {
	case KindInt, KindBool:
		return Int(v.Num), true
	case KindBig:
		return v, true
	case KindFloat:
		f := v.AsFloat()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return Value{}, false
		}
		n, _ := big.NewFloat(math.Trunc(f)).Int(nil)
		return Big(n), true
	case KindString:
		s := strings.TrimFunc(v.Text, IsSpace)
		if base == 10 && strings.HasPrefix(strings.TrimLeft(s, "+-"), "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
			return Value{}, false
		}
		if base == 10 {
			s = strings.ReplaceAll(s, "_", "")
		}
		for _, p := range [...]struct {
			base   int
			prefix string
		}{{16, "0x"}, {8, "0o"}, {2, "0b"}} {
			sign := ""
			if s != "" && (s[0] == '-' || s[0] == '+') {
				sign = s[:1]
			}
			if base == p.base && strings.HasPrefix(strings.ToLower(s[len(sign):]), p.prefix) {
				s = sign + s[len(sign)+2:]
			}
		}
		if len(s) > MaxDigits {
			return Value{}, false
		}
		n, ok := new(big.Int).SetString(s, base)
		if !ok {
			return Value{}, false
		}
		return Big(n), true
	}
	return Value{}, false
}

func filterInt(_ *Budget, v Value, a *Args) (Value, error) {
	var p [2]Value
	if err := a.Bind(p[:], 0, "default", "base"); err != nil {
		return Value{}, err
	}
	if v.IsUndefined() {
		return Value{}, v.UndefinedError()
	}
	base, err := WantInt(p[1], "base", 10)
	if err != nil {
		return Value{}, err
	}
	if base != 0 && (base < 2 || base > 36) {
		return Value{}, Errorf("int() base must be >= 2 and <= 36, or 0")
	}
	if n, ok := pythonInt(v, base); ok {
		return n, nil
	}
	if f, ok := pythonFloat(v); ok {
		if n, ok := pythonInt(Float(f), 10); ok {
			return n, nil
		}
	}
	if p[0].Kind == KindMissing {
		return Int(0), nil
	}
	return p[0], nil
}

// pythonFloat is float(v).
func pythonFloat(v Value) (float64, bool) {
	if IsNumber(v) {
		f, err := FloatOf(v)
		return f, err == nil
	}
	if v.Kind != KindString {
		return 0, false
	}
	s := strings.TrimFunc(v.Text, IsSpace)
	if strings.ContainsAny(s, "xXpP") || strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return f, err == nil || math.IsInf(f, 0)
}

func filterFloat(_ *Budget, v Value, a *Args) (Value, error) {
	var p [1]Value
	if err := a.Bind(p[:], 0, "default"); err != nil {
		return Value{}, err
	}
	if v.IsUndefined() {
		return Value{}, v.UndefinedError()
	}
	if f, ok := pythonFloat(v); ok {
		return Float(f), nil
	}
	if p[0].Kind == KindMissing {
		return Float(0), nil
	}
	return p[0], nil
}

func filterRound(_ *Budget, v Value, a *Args) (Value, error) {
	var p [2]Value
	if err := a.Bind(p[:], 0, "precision", "method"); err != nil {
		return Value{}, err
	}
	precision, err := WantInt(p[0], "precision", 0)
	if err != nil {
		return Value{}, err
	}
	method := "common"
	if p[1].Kind != KindMissing {
		method = p[1].Text
	}
	if v.IsUndefined() {
		return Value{}, v.UndefinedError()
	}
	if !IsNumber(v) {
		return Value{}, Errorf("type %s doesn't define __round__ method", v.TypeName())
	}
	if precision < -maxPrecision || precision > maxPrecision {
		return Value{}, Errorf("precision %d is too large", precision)
	}
	f, err := FloatOf(v)
	if err != nil {
		return Value{}, err
	}
	switch method {
	case "common":
		if IsInteger(v) {
			return roundInt(v, precision), nil
		}
		return Float(roundFloat(f, precision)), nil
	case "ceil", "floor":
		// Python's ceil and floor give an int; the division makes it a float unless nothing is divided.
		scale := math.Pow(10, float64(precision))
		f *= scale
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return Value{}, Errorf("cannot convert float %s to integer", FormatFloat(f))
		}
		if method == "ceil" {
			return Float(math.Ceil(f) / scale), nil
		}
		return Float(math.Floor(f) / scale), nil
	}
	return Value{}, Errorf("method must be common, ceil or floor")
}

// roundInt is round(int, precision): to a multiple of a power of ten, halves to even.
func roundInt(v Value, precision int) Value {
	if precision >= 0 {
		return Big(new(big.Int).Set(BigOf(v)))
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-precision)), nil)
	q, r := new(big.Int).DivMod(BigOf(v), unit, new(big.Int))
	switch c := r.Lsh(r, 1).Cmp(unit); {
	case c > 0, c == 0 && q.Bit(0) == 1:
		q.Add(q, big.NewInt(1))
	}
	return Big(q.Mul(q, unit))
}

// roundFloat is round(float, precision): correctly rounded, halves of the exact value to even.
func roundFloat(f float64, precision int) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return f
	}
	if precision >= 0 {
		r, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
		return r
	}
	scale := math.Pow(10, float64(-precision))
	return math.RoundToEven(f/scale) * scale
}
