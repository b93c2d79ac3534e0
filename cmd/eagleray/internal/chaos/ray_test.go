package chaos

import (
	"slices"
	"testing"
)

// TestSpread has the ranks of a server's arguments on three nodes as far as they go, and room for
// those of any node but the first beside them.
func TestSpread(t *testing.T) {
	for _, c := range []struct {
		args    []string
		devices []float64
	}{
		{[]string{"-tp", "1"}, []float64{1, 1}},
		{[]string{"-tp", "2"}, []float64{1, 1, 1}},
		{[]string{"--tensor_parallel_size=2", "-pp", "2"}, []float64{2, 1, 1, 1}},
		{[]string{"model", "-dp", "2", "-tp", "2", "-ep"}, []float64{2, 1, 1, 1}},
		{[]string{"-dp", "2", "-tp", "4", "--port", "0"}, []float64{3, 3, 2, 3}},
	} {
		p := settings(c.args).Parallel
		var devices []float64
		for _, n := range spread(p.Layout().World() * p.Engines()) {
			devices = append(devices, n.GPUs)
		}
		if !slices.Equal(devices, c.devices) {
			t.Errorf("%v: nodes of %v devices, want %v", c.args, devices, c.devices)
		}
	}
}
