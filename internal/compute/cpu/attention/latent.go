package attention

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
)

// latentPiece is how many tiles of a latent are turned at a time: 64 KiB of them with DeepSeek's
// 512 values in 16 bits, which stay in the core's cache for all queries that share a pass.
const latentPiece = 4

// turn writes the values of count tiles of a latent, from the t-th of the stretch on, to scratch as
// tiles of V, which the kernels of values read as those of the cache. All queries of a pass share
// the work.
func (s *scratch) turn(j *job, t, count int) (data []byte, offs []int) {
	slices := padded(j.p.Values) / tile
	size := slices * tile * tile * j.c.cfg.DType.Size()
	s.turned = grow(s.turned, latentPiece*size)
	k := j.a.simd[j.c.cfg.DType]
	for i := range count {
		s.turnedAt.at[i] = i * size
		dst, src := s.turned[i*size:(i+1)*size], j.c.data[s.tiles.at[t+i]:][:size]
		switch {
		case k != nil:
			k.turn(unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), slices)
		case j.c.cfg.DType == compute.Float32:
			turnPortable(compute.Float32, cast[float32](dst), cast[float32](src))
		case j.c.cfg.DType.Scaled():
			turnPortable(j.c.cfg.DType, dst, src)
		default:
			turnPortable(j.c.cfg.DType, cast[uint16](dst), cast[uint16](src))
		}
	}
	return s.turned, s.turnedAt.at[:]
}

// turnPortable turns slices of [16 dimensions][16 positions] to [16 positions][16 dimensions], the
// elements of a row by lane.
func turnPortable[E byte | uint16 | float32](kind compute.DType, dst, src []E) {
	for at := 0; at < len(src); at += tile * tile {
		for d := range tile {
			for pos := range tile {
				dst[at+pos*tile+lane(kind, d)] = src[at+d*tile+lane(kind, pos)]
			}
		}
	}
}
