package wire

import (
	"math"
	"strconv"
	"strings"
)

// vLLM reads requests with pydantic in its lax mode: a number may be written as text or as a
// boolean, a boolean as text or as 0 and 1. The functions here convert as pydantic does
// (testdata/lax.json has what it says), with two differences: an integer beyond 64 bits and a
// number that is not finite are refused here at once, not where vLLM comes to use them.

// fault is why a value has no conversion.
type fault uint8

const (
	none fault = iota
	notOfType
	outOfRange
)

// coerceInt reads an integer: a number or text without a fraction other than zero, or a boolean.
func coerceInt(raw []byte) (int64, fault) {
	switch raw[0] {
	case '"':
		return textInt(strings.TrimSpace(Unquote(raw)))
	case 't':
		return 1, none
	case 'f':
		return 0, none
	case 'n', '{', '[':
		return 0, notOfType
	}
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return v, none
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case err == nil && math.Abs(v) < 1<<53 && v == math.Trunc(v):
		return int64(v), none
	case err != nil || math.Abs(v) >= 1<<63:
		return 0, outOfRange
	}
	return 0, notOfType
}

// textInt reads digits with a sign, with single underscores between them and zeros as a fraction.
func textInt(s string) (int64, fault) {
	whole, fraction, dotted := strings.Cut(s, ".")
	if dotted && (fraction == "" || strings.Trim(fraction, "0") != "") {
		return 0, notOfType
	}
	digits := strings.TrimLeft(whole, "+-")
	if len(whole)-len(digits) > 1 || strings.Trim(digits, "0123456789_") != "" {
		return 0, notOfType
	}
	sign := whole[:len(whole)-len(digits)]
	digits, ok := joinDigits(digits)
	if !ok || digits == "" {
		return 0, notOfType
	}
	v, err := strconv.ParseInt(sign+digits, 10, 64)
	if err != nil {
		return 0, outOfRange
	}
	return v, none
}

// coerceFloat reads a finite number: a number, text as Python's float takes it, or a boolean.
func coerceFloat(raw []byte) (float64, fault) {
	text := string(raw)
	switch raw[0] {
	case '"':
		text = strings.TrimSpace(Unquote(raw))
		switch strings.ToLower(strings.TrimLeft(text, "+-")) {
		case "nan", "inf", "infinity":
			return 0, outOfRange
		}
		joined, ok := joinDigits(text)
		if !ok || strings.Trim(text, "0123456789+-.eE_") != "" {
			return 0, notOfType
		}
		text = joined
	case 't':
		return 1, none
	case 'f':
		return 0, none
	case 'n', '{', '[':
		return 0, notOfType
	}
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case math.IsInf(v, 0) || math.Abs(v) > math.MaxFloat32:
		return 0, outOfRange
	case err != nil:
		return 0, notOfType
	}
	return v, none
}

// joinDigits takes underscores out of a number; false says that one stands at an end, or beside
// another.
func joinDigits(s string) (string, bool) {
	if strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return "", false
	}
	return strings.ReplaceAll(s, "_", ""), true
}

// CoerceBool reads a boolean: true and false, the numbers 1 and 0, and words for them in any case.
func CoerceBool(raw []byte) (v, ok bool) {
	switch raw[0] {
	case '"':
		switch strings.ToLower(Unquote(raw)) {
		case "1", "t", "true", "y", "yes", "on":
			return true, true
		case "0", "f", "false", "n", "no", "off":
			return false, true
		}
		return false, false
	case 't', 'f':
		return raw[0] == 't', true
	case 'n', '{', '[':
		return false, false
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	return f == 1, err == nil && (f == 0 || f == 1)
}

// coercesTo reports whether a value is the number or boolean that another one is.
func coercesTo(raw, other []byte) bool {
	if want, ok := CoerceBool(other); ok && (other[0] == 't' || other[0] == 'f') {
		v, ok := CoerceBool(raw)
		return ok && v == want
	}
	want, bad := coerceFloat(other)
	v, worse := coerceFloat(raw)
	return bad == none && worse == none && v == want
}
