package cuda

import (
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// TestUnit holds what stages have room for to the shared memory of devices, and to what keeps their
// memory busy.
func TestUnit(t *testing.T) {
	for _, info := range []driver.Info{
		{Name: "sm_80", Multiprocessors: 108, Shared: 163 << 10},
		{Name: "sm_86", Multiprocessors: 28, Shared: 99 << 10},
		{Name: "sm_90", Multiprocessors: 132, Shared: 227 << 10},
		{Name: "unknown", Shared: 99 << 10},
	} {
		d := &Device{info: info}
		for _, s := range sizes {
			for _, bits := range []int{4, 8, 16} {
				for _, blocks := range []int{1, 96, 133, 512, 5000} {
					for _, steps := range []int{1, 8, 64, 1000} {
						unit := s.unit(d, bits, blocks, steps)
						need := unit * s.shared(bits)
						if unit < 1 || need > info.Shared-staticShared || unit > steps {
							t.Errorf("%s: %d blocks of %d rows, %d bits, %d steps: %d a stage, %d "+
								"bytes", info.Name, blocks, s.rows, bits, steps, unit, need)
						}
					}
				}
			}
		}
	}
	// 96 blocks of 64 features, 64 steps: qkv of a model of 8B.
	d := &Device{info: driver.Info{Multiprocessors: 132, Shared: 227 << 10}}
	s := &sizes[0]
	if unit := s.unit(d, 16, 96, 64); unit*(s.stages-1)*s.weights(16) < onTheirWay {
		t.Errorf("%d steps a stage leave memory idle", unit)
	}
}
