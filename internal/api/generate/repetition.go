package generate

import (
	"math"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// decodeRepetition reads repetition_detection, vLLM's: an output ends that ends with a pattern of
// tokens so many times.
func (s *Sampling) decodeRepetition(f *wire.Fields) {
	const field = "repetition_detection"
	raw := f.Object(field)
	if raw == nil {
		return
	}
	f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		r := &s.repetition
		dst, most := &r.MaxPattern, f.Lim.Pattern
		switch key {
		case "max_pattern_size":
		case "min_pattern_size":
			dst = &r.MinPattern
		case "min_count":
			dst, most = &r.MinCount, math.MaxInt32
		default:
			return wire.BadRequest(field, "%q is not a member of `%s`: it has max_pattern_size, "+
				"min_pattern_size and min_count", wire.Clip(key), field)
		}
		name := field + "." + key
		v, bad := wire.ParseInt(name, raw)
		if bad != nil {
			return bad
		}
		if v < 0 || v > int64(most) {
			return wire.BadRequest(name, "`%s` must be between 0 and %d, got %d", name, most, v)
		}
		*dst = int(v)
		return nil
	}))
	switch r := s.repetition; {
	case r.MinPattern > r.MaxPattern:
		f.Fail(wire.BadRequest(field+".min_pattern_size",
			"`%s.min_pattern_size` of %d is more than max_pattern_size, %d", field, r.MinPattern,
			r.MaxPattern))
	case r.MaxPattern > 0 && r.MinCount < 2:
		f.Fail(wire.BadRequest(field+".min_count", "`%s.min_count` must be at least 2, got %d",
			field, r.MinCount))
	}
}
