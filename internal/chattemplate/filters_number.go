package chattemplate

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

func filterAbs(run *budget, v Value, a *callArgs) (Value, error) {
	if err := a.bind(nil, 0); err != nil {
		return Value{}, err
	}
	if v.IsUndefined() {
		return Value{}, v.undefinedError()
	}
	switch {
	case v.kind == kindFloat:
		return Float(math.Abs(v.float())), nil
	case isInteger(v):
		return Unary(run, bigOf(v).Sign() < 0, v)
	}
	return Value{}, errorf("bad operand type for abs(): '%s'", v.typeName())
}

// pythonInt is int(v) or int(text, base); ok is false where Python raises ValueError or TypeError.
func pythonInt(v Value, base int) (Value, bool) {
	switch v.kind {
	case kindInt, kindBool:
		return Int(v.num), true
	case kindBig:
		return v, true
	case kindFloat:
		f := v.float()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return Value{}, false
		}
		n, _ := big.NewFloat(math.Trunc(f)).Int(nil)
		return bigValue(n), true
	case kindString:
		s := strings.TrimFunc(v.str, isSpace)
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
		if len(s) > maxDigits {
			return Value{}, false
		}
		n, ok := new(big.Int).SetString(s, base)
		if !ok {
			return Value{}, false
		}
		return bigValue(n), true
	}
	return Value{}, false
}

func filterInt(_ *budget, v Value, a *callArgs) (Value, error) {
	var p [2]Value
	if err := a.bind(p[:], 0, "default", "base"); err != nil {
		return Value{}, err
	}
	if v.IsUndefined() {
		return Value{}, v.undefinedError()
	}
	base, err := wantInt(p[1], "base", 10)
	if err != nil {
		return Value{}, err
	}
	if base != 0 && (base < 2 || base > 36) {
		return Value{}, errorf("int() base must be >= 2 and <= 36, or 0")
	}
	if n, ok := pythonInt(v, base); ok {
		return n, nil
	}
	if f, ok := pythonFloat(v); ok {
		if n, ok := pythonInt(Float(f), 10); ok {
			return n, nil
		}
	}
	if p[0].kind == kindMissing {
		return Int(0), nil
	}
	return p[0], nil
}

// pythonFloat is float(v).
func pythonFloat(v Value) (float64, bool) {
	if isNumber(v) {
		f, err := floatOf(v)
		return f, err == nil
	}
	if v.kind != kindString {
		return 0, false
	}
	s := strings.TrimFunc(v.str, isSpace)
	if strings.ContainsAny(s, "xXpP") || strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return f, err == nil || math.IsInf(f, 0)
}

func filterFloat(_ *budget, v Value, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 0, "default"); err != nil {
		return Value{}, err
	}
	if v.IsUndefined() {
		return Value{}, v.undefinedError()
	}
	if f, ok := pythonFloat(v); ok {
		return Float(f), nil
	}
	if p[0].kind == kindMissing {
		return Float(0), nil
	}
	return p[0], nil
}

func filterRound(_ *budget, v Value, a *callArgs) (Value, error) {
	var p [2]Value
	if err := a.bind(p[:], 0, "precision", "method"); err != nil {
		return Value{}, err
	}
	precision, err := wantInt(p[0], "precision", 0)
	if err != nil {
		return Value{}, err
	}
	method := "common"
	if p[1].kind != kindMissing {
		method = p[1].str
	}
	if v.IsUndefined() {
		return Value{}, v.undefinedError()
	}
	if !isNumber(v) {
		return Value{}, errorf("type %s doesn't define __round__ method", v.typeName())
	}
	if precision < -maxPrecision || precision > maxPrecision {
		return Value{}, errorf("precision %d is too large", precision)
	}
	f, err := floatOf(v)
	if err != nil {
		return Value{}, err
	}
	switch method {
	case "common":
		if isInteger(v) {
			return roundInt(v, precision), nil
		}
		return Float(roundFloat(f, precision)), nil
	case "ceil", "floor":
		// Python's ceil and floor give an int; the division makes it a float unless nothing is divided.
		scale := math.Pow(10, float64(precision))
		f *= scale
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return Value{}, errorf("cannot convert float %s to integer", formatFloat(f))
		}
		if method == "ceil" {
			return Float(math.Ceil(f) / scale), nil
		}
		return Float(math.Floor(f) / scale), nil
	}
	return Value{}, errorf("method must be common, ceil or floor")
}

// roundInt is round(int, precision): to a multiple of a power of ten, halves to even.
func roundInt(v Value, precision int) Value {
	if precision >= 0 {
		return bigValue(new(big.Int).Set(bigOf(v)))
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-precision)), nil)
	q, r := new(big.Int).DivMod(bigOf(v), unit, new(big.Int))
	switch c := r.Lsh(r, 1).Cmp(unit); {
	case c > 0, c == 0 && q.Bit(0) == 1:
		q.Add(q, big.NewInt(1))
	}
	return bigValue(q.Mul(q, unit))
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
