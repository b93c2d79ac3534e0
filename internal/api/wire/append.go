package wire

import (
	"math"
	"strconv"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// AppendString appends s as a JSON string.
func AppendString[T string | []byte](b []byte, s T) []byte { return jsonx.AppendString(b, s) }

// AppendLogprob appends a log-probability. JSON has no infinity: like vLLM, nothing is below -9999.
func AppendLogprob(b []byte, v float32) []byte {
	if !(v >= -9999) || math.IsInf(float64(v), 1) {
		v = -9999
	}
	return strconv.AppendFloat(b, float64(v), 'f', -1, 32)
}

// AppendInts appends a JSON array of integers.
func AppendInts[T int32 | byte](b []byte, list []T) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(v), 10)
	}
	return append(b, ']')
}

// Comma appends one before every element of a list but the first.
func Comma(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ',')
	}
	return b
}
