package chattemplate

import (
	"math"
	"math/big"
)

// MaxDigits bounds the decimal digits of an int, as Python bounds those it converts to and from text.
const MaxDigits = 4300

func IsNumber(v Value) bool {
	return v.Kind == KindInt || v.Kind == KindFloat || v.Kind == KindBool || v.Kind == KindBig
}

func IsInteger(v Value) bool { return v.Kind == KindInt || v.Kind == KindBool || v.Kind == KindBig }

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
