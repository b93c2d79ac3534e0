package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestCheckLayout refuses another number of ranks where each has a port by its number, and there
// are several engines.
func TestCheckLayout(t *testing.T) {
	for _, c := range []struct {
		port, engines, tp int
		refused           bool
	}{{0, 2, 4, false}, {7000, 1, 4, false}, {7000, 2, 2, false}, {7000, 2, 4, true}, {7000, 2, 1,
		true}} {
		cfg := &config.Config{}
		cfg.Transfer.Port, cfg.Parallel.TensorParallelSize = c.port, 2
		o := Opener{b: &groups.Launch{Spec: &open.Spec{Config: cfg}}}
		err := o.CheckLayout(open.Sizes{TP: c.tp}, c.engines)
		var refused *open.Refused
		if (err != nil) != c.refused || err != nil && (!errors.As(err, &refused) ||
			!strings.Contains(err.Error(), "kv_port 7000")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
