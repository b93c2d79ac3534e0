package pooling

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// form is how the numbers of a vector are written: zero as they are.
type form struct {
	// bits writes one for each number, 1 where it is not negative, eight to a byte, the first one
	// highest; signed has bytes count from -128.
	bits, signed bool
	// base64 writes float32 in little endian, or the bytes, as one text.
	base64 bool
}

// forms are the names of all forms.
var forms = []string{"float", "base64", "binary", "ubinary"}

// parseForm finds one of the forms that a field may name, of vectors of a width.
func parseForm(f *wire.Fields, field, name string, width int, of ...string) form {
	if !slices.Contains(of, name) {
		f.Fail(wire.BadRequest(field, "`%s` must be %s, got %q", field,
			strings.Join(of, " or "), wire.Clip(name)))
	}
	made := form{bits: strings.HasSuffix(name, "binary"), signed: name == "binary",
		base64: name == "base64"}
	if made.bits && width%8 != 0 {
		f.Fail(wire.BadRequest(field, "`%s` %q has eight numbers in a byte, and a vector has %d",
			field, name, width))
	}
	return made
}

// encode is a vector as the answer has it.
func (w form) encode(v []float32) any {
	var b []byte
	switch {
	case w.bits:
		b = w.pack(v)
	case w.base64:
		b = make([]byte, 0, 4*len(v))
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
	default:
		return v
	}
	if w.base64 {
		return base64.StdEncoding.EncodeToString(b)
	}
	numbers := make([]int, len(b))
	for i, x := range b {
		if numbers[i] = int(x); w.signed {
			numbers[i] = int(int8(x))
		}
	}
	return numbers
}

// pack makes bytes of the signs of numbers.
func (w form) pack(v []float32) []byte {
	b := make([]byte, (len(v)+7)/8)
	for i, x := range v {
		if x >= 0 {
			b[i/8] |= 0x80 >> (i % 8)
		}
	}
	for i := range b {
		if w.signed {
			b[i] -= 0x80
		}
	}
	return b
}
