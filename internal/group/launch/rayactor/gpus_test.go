package rayactor

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/fake"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// TestGPUs starts a rank on each GPU of two nodes: each is told its own among those of its node,
// and to say what memory that has.
func TestGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTrial(t, 4)
		x.fed()
		begin, started := x.Worker, map[int]ray.StartSpec{}
		x.Worker = func(s ray.StartSpec, node map[string]string) (*fake.Worker, error) {
			started[s.Rank] = s
			return begin(s, node)
		}
		if _, err := x.start(t.Context(), func(o *Options) {
			o.Worker = []string{"cuda", "worker"}
		}); err != nil {
			t.Fatal(err)
		}
		for rank, want := range []int{0, 1, 0, 1} {
			s := started[rank]
			var inv struct { // part of a join.Invitation
				Ordinal int
				Measure bool
				Place   machine.Place
			}
			if err := json.Unmarshal(s.Stdin, &inv); err != nil {
				t.Error(err)
			}
			if inv.Ordinal != want || !inv.Measure {
				t.Errorf("rank %d has GPU %d, measured %t", rank, inv.Ordinal, inv.Measure)
			}
			if inv.Place.Of != 0 {
				t.Errorf("rank %d is bound as one of %d", rank, inv.Place.Of)
			}
			if !slices.Equal(s.Args[:3], []string{"cuda", "worker", "--actor"}) {
				t.Errorf("rank %d is started by %q", rank, s.Args)
			}
			if got := s.SetEnv["CUDA_VISIBLE_DEVICES"]; got != "0,1" {
				t.Errorf("rank %d sees %q", rank, got)
			}
		}
		if err := x.l.Stop(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
}
