package api

import (
	"fmt"
	"hash/crc32"
)

// weights is a sum of what tokens depend on beside the request: servers with different ones have
// different weights, compute with other kernels, or are of another version.
func (s *API) weights() uint32 {
	isa := ""
	if len(s.Model.Ranks) > 0 {
		if isa = s.Model.Ranks[0].ISA; isa == "avx512" {
			isa = "avx2" // the same bits
		}
	}
	return crc32.ChecksumIEEE(fmt.Appendf(nil, "%s|%s|%d|%s|%s|%s", s.opt.Version, s.Model.DType,
		s.Model.VocabSize, isa, s.Model.Identity(), s.WeightVersion()))
}
