package openai

import (
	"math"
	"strconv"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// appendString appends s as a JSON string.
func appendString[T string | []byte](b []byte, s T) []byte { return jsonx.AppendString(b, s) }

// appendLogprob appends a log-probability. JSON has no infinity: like vLLM, nothing is below -9999.
func appendLogprob(b []byte, v float32) []byte {
	if !(v >= -9999) || math.IsInf(float64(v), 1) {
		v = -9999
	}
	return strconv.AppendFloat(b, float64(v), 'f', -1, 32)
}

// appendInts appends a JSON array of integers.
func appendInts[T int32 | byte](b []byte, list []T) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(v), 10)
	}
	return append(b, ']')
}

// comma appends one before every element of a list but the first.
func comma(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ',')
	}
	return b
}
