package gemm

import (
	"encoding/binary"

	"github.com/eagleray/eagleray/internal/sys/half"
)

// decode converts len(dst) stored elements to fp32.
func decode(dst []float32, kind Kind, src []byte) {
	switch kind {
	case BF16:
		half.DecodeBF16(dst, src)
	case F16:
		half.DecodeF16(dst, src)
	default:
		half.DecodeF32(dst, src)
	}
}

// load16 reads len(dst) stored elements as the given 16-bit kind, through tmp when they are stored
// as another kind.
func load16(dst []uint16, kind, stored Kind, src []byte, tmp []float32) {
	if kind == stored {
		for i := range dst {
			dst[i] = binary.LittleEndian.Uint16(src[2*i:])
		}
		return
	}
	tmp = tmp[:len(dst)]
	decode(tmp, stored, src)
	if kind == BF16 {
		for i, v := range tmp {
			dst[i] = half.ToBF16(v)
		}
		return
	}
	for i, v := range tmp {
		dst[i] = half.ToF16(v)
	}
}
