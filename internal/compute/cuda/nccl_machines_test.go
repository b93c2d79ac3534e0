package cuda

import (
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// TestNCCLBetweenMachines wants the library between machines only where it is allowed, and a rank
// that does not know its machine taken for one of another.
func TestNCCLBetweenMachines(t *testing.T) {
	on := func(machines ...string) (offers []offer) {
		for _, m := range machines {
			o := offer{}
			copy(o.Machine[:], m)
			offers = append(offers, o)
		}
		return offers
	}
	for _, c := range []struct {
		offers         []offer
		local, between bool
		refused        string
	}{
		{on("a", "a", "a"), true, false, ""},
		{on("a", "a", "b"), false, false, "EAGLERAY_NCCL names it"},
		{on("a", "b"), false, true, ""},
		{on("", ""), false, false, "EAGLERAY_NCCL names it"},
	} {
		if got := oneMachine(c.offers); got != c.local {
			t.Errorf("%d ranks are of one machine: %v", len(c.offers), got)
		}
		comm := &Comm{rank: 1, d: &Device{nccl: NCCL{Between: c.between,
			Open: func() (driver.NCCL, error) { return new(double.NCCL), nil }}}}
		var own offer
		_, err := comm.openNCCL(&own, c.local)
		if c.refused == "" && (err != nil || own.Version != double.NCCLRelease) ||
			c.refused != "" && (err == nil || !strings.HasSuffix(err.Error(), c.refused)) {
			t.Errorf("local %v, between %v: %v", c.local, c.between, err)
		}
	}
}
