package values

import (
	"math"
	"math/big"
)

// MaxDigits bounds the decimal digits of an int, as Python bounds those it converts to and from
// text.
const MaxDigits = 4300

// IsNumber tells whether v is a bool, an int or a float.
func IsNumber(v Value) bool {
	return v.Kind == KindInt || v.Kind == KindFloat || v.Kind == KindBool || v.Kind == KindBig
}

// IsInteger tells whether v is a bool or an int.
func IsInteger(v Value) bool { return v.Kind == KindInt || v.Kind == KindBool || v.Kind == KindBig }

// BigOf returns a bool or an int as a big integer, which must not be changed.
func BigOf(v Value) *big.Int {
	if v.Kind == KindBig {
		return v.Ref.(*big.Int)
	}
	return big.NewInt(v.Num)
}

// FloatOf converts a number as Python's float does.
func FloatOf(v Value) (float64, error) {
	switch v.Kind {
	case KindFloat:
		return v.AsFloat(), nil
	case KindBig:
		f, _ := new(big.Float).SetInt(BigOf(v)).Float64()
		if math.IsInf(f, 0) {
			return 0, Errorf("int too large to convert to float")
		}
		return f, nil
	}
	return float64(v.Num), nil
}
