package groups

import (
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/ops/config"
)

func TestOwnBundles(t *testing.T) {
	for _, c := range []struct {
		engines, number, ranks int
		indices, want, err     string
	}{
		{1, 0, 2, "3,1", "3,1", ""},
		{2, 0, 2, "", "", ""},
		{2, 0, 2, "3,1,0,2", "3,1", ""},
		{2, 1, 2, "3,1,0,2", "0,2", ""},
		{3, 2, 1, "5, 4, 7", " 7", ""},
		{2, 1, 2, "3,1", "", "--bundle-indices 3,1: 2 bundles for 2 engines of 2 ranks"},
		{2, 1, 1, "3,3", "", "--bundle-indices 3,3: bundle 3 is there twice"},
	} {
		config := config.Default()
		b := &Launch{Spec: &open.Spec{Config: &config, Ranks: c.ranks}, Number: c.number}
		b.Config.Parallel.DataParallelSize = c.engines
		got, err := b.ownBundles(c.indices)
		if got != c.want || (err == nil) != (c.err == "") || err != nil &&
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("engine %d of %d, %q: %q, %v", c.number, c.engines, c.indices, got, err)
		}
	}
}
