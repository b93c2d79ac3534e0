package chattemplate

import (
	"math"
	"math/big"
)

// maxDigits bounds the decimal digits of an int, as Python bounds those it converts to and from text.
const maxDigits = 4300

func isNumber(v Value) bool {
	return v.kind == kindInt || v.kind == kindFloat || v.kind == kindBool || v.kind == kindBig
}

func isInteger(v Value) bool { return v.kind == kindInt || v.kind == kindBool || v.kind == kindBig }

func bigOf(v Value) *big.Int {
	if v.kind == kindBig {
		return v.ref.(*big.Int)
	}
	return big.NewInt(v.num)
}

// floatOf converts a number as Python's float does.
func floatOf(v Value) (float64, error) {
	switch v.kind {
	case kindFloat:
		return v.float(), nil
	case kindBig:
		f, _ := new(big.Float).SetInt(bigOf(v)).Float64()
		if math.IsInf(f, 0) {
			return 0, errorf("int too large to convert to float")
		}
		return f, nil
	}
	return float64(v.num), nil
}
