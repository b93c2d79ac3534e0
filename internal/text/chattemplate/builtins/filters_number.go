package builtins

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/text/chattemplate/ops"
	"github.com/eagleray/eagleray/internal/text/chattemplate/pytext"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

func filterAbs(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return values.Value{}, err
	}
	if v.IsUndefined() {
		return values.Value{}, v.UndefinedError()
	}
	switch {
	case v.Kind == values.KindFloat:
		return values.Float(math.Abs(v.AsFloat())), nil
	case values.IsInteger(v):
		return ops.Unary(run, values.BigOf(v).Sign() < 0, v)
	}
	return values.Value{}, values.Errorf("bad operand type for abs(): '%s'", v.TypeName())
}

// pythonInt is int(v) or int(text, base); ok is false where Python raises ValueError or TypeError.
func pythonInt(v values.Value, base int) (values.Value, bool) {
	switch v.Kind {
	case values.KindInt, values.KindBool:
		return values.Int(v.Num), true
	case values.KindBig:
		return v, true
	case values.KindFloat:
		f := v.AsFloat()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return values.Value{}, false
		}
		n, _ := big.NewFloat(math.Trunc(f)).Int(nil)
		return values.Big(n), true
	case values.KindString:
		s := strings.TrimFunc(v.Text, pytext.IsSpace)
		if base == 10 && strings.HasPrefix(strings.TrimLeft(s, "+-"), "_") ||
			strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
			return values.Value{}, false
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
		if len(s) > values.MaxDigits {
			return values.Value{}, false
		}
		n, ok := new(big.Int).SetString(s, base)
		if !ok {
			return values.Value{}, false
		}
		return values.Big(n), true
	}
	return values.Value{}, false
}

func filterInt(_ *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [2]values.Value
	if err := a.Bind(p[:], 0, "default", "base"); err != nil {
		return values.Value{}, err
	}
	if v.IsUndefined() {
		return values.Value{}, v.UndefinedError()
	}
	base, err := values.WantInt(p[1], "base", 10)
	if err != nil {
		return values.Value{}, err
	}
	if base != 0 && (base < 2 || base > 36) {
		return values.Value{}, values.Errorf("int() base must be >= 2 and <= 36, or 0")
	}
	if n, ok := pythonInt(v, base); ok {
		return n, nil
	}
	if f, ok := pythonFloat(v); ok {
		if n, ok := pythonInt(values.Float(f), 10); ok {
			return n, nil
		}
	}
	if p[0].Kind == values.KindMissing {
		return values.Int(0), nil
	}
	return p[0], nil
}

// pythonFloat is float(v).
func pythonFloat(v values.Value) (float64, bool) {
	if values.IsNumber(v) {
		f, err := values.FloatOf(v)
		return f, err == nil
	}
	if v.Kind != values.KindString {
		return 0, false
	}
	s := strings.TrimFunc(v.Text, pytext.IsSpace)
	if strings.ContainsAny(s, "xXpP") || strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") ||
		strings.Contains(s, "__") {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return f, err == nil || math.IsInf(f, 0)
}

func filterFloat(_ *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 0, "default"); err != nil {
		return values.Value{}, err
	}
	if v.IsUndefined() {
		return values.Value{}, v.UndefinedError()
	}
	if f, ok := pythonFloat(v); ok {
		return values.Float(f), nil
	}
	if p[0].Kind == values.KindMissing {
		return values.Float(0), nil
	}
	return p[0], nil
}

func filterRound(_ *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [2]values.Value
	if err := a.Bind(p[:], 0, "precision", "method"); err != nil {
		return values.Value{}, err
	}
	precision, err := values.WantInt(p[0], "precision", 0)
	if err != nil {
		return values.Value{}, err
	}
	method := "common"
	if p[1].Kind != values.KindMissing {
		method = p[1].Text
	}
	if v.IsUndefined() {
		return values.Value{}, v.UndefinedError()
	}
	if !values.IsNumber(v) {
		return values.Value{}, values.Errorf("type %s doesn't define __round__ method",
			v.TypeName())
	}
	if precision < -ops.MaxPrecision || precision > ops.MaxPrecision {
		return values.Value{}, values.Errorf("precision %d is too large", precision)
	}
	f, err := values.FloatOf(v)
	if err != nil {
		return values.Value{}, err
	}
	switch method {
	case "common":
		if values.IsInteger(v) {
			return roundInt(v, precision), nil
		}
		return values.Float(roundFloat(f, precision)), nil
	case "ceil", "floor":
		// Python's ceil and floor give an int; the division makes it a float unless nothing is
		// divided.
		scale := math.Pow(10, float64(precision))
		f *= scale
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return values.Value{}, values.Errorf("cannot convert float %s to integer",
				values.FormatFloat(f))
		}
		if method == "ceil" {
			return values.Float(math.Ceil(f) / scale), nil
		}
		return values.Float(math.Floor(f) / scale), nil
	}
	return values.Value{}, values.Errorf("method must be common, ceil or floor")
}

// roundInt is round(int, precision): to a multiple of a power of ten, halves to even.
func roundInt(v values.Value, precision int) values.Value {
	if precision >= 0 {
		return values.Big(new(big.Int).Set(values.BigOf(v)))
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-precision)), nil)
	q, r := new(big.Int).DivMod(values.BigOf(v), unit, new(big.Int))
	switch c := r.Lsh(r, 1).Cmp(unit); {
	case c > 0, c == 0 && q.Bit(0) == 1:
		q.Add(q, big.NewInt(1))
	}
	return values.Big(q.Mul(q, unit))
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
