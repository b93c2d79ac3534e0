package model_test

import (
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// TestExpertLoads wants every family with experts to count the rows of a step, and to say how many
// experts it has.
func TestExpertLoads(t *testing.T) {
	mixtures := 0
	for _, name := range fixtureNames {
		f := shipped(name)
		cfg, _ := f.open(t)
		s := loadShard(t, f, cpu.Options{Threads: 1}, layers.Group{Size: 1})
		loads := s.model.ExpertLoads()
		if (cfg.Experts() > 0) != (len(loads) > 0) {
			t.Errorf("%s has %d experts, and loads of %d layers", name, cfg.Experts(), len(loads))
		}
		if len(loads) == 0 {
			continue
		}
		mixtures++
		const rows, steps = 5, 3
		for range steps {
			if err := forward(s.model, decodeBatch(rows, 20), s.cache); err != nil {
				t.Fatal(err)
			}
		}
		last, first := -1, int64(0)
		for _, l := range loads {
			sum := int64(0)
			for _, n := range l.Rows {
				sum += n
			}
			if first == 0 {
				first = sum
			}
			if l.Layer <= last || l.Layer >= cfg.Layers || len(l.Rows) != cfg.Experts() ||
				sum == 0 || sum%(rows*steps) != 0 || sum != first {
				t.Errorf("%s: layer %d after %d of %d: %v of %d experts", name, l.Layer, last,
					cfg.Layers, l.Rows, cfg.Experts())
			}
			last = l.Layer
		}
	}
	if mixtures < 8 {
		t.Errorf("%d fixtures have experts", mixtures)
	}
}
