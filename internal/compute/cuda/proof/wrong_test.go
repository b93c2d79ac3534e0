package proof_test

import (
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/compute/cuda/proof"
)

// lazy is a driver that launches one kernel less.
type lazy struct {
	driver.Driver
	name string
}

func (l *lazy) Open(ordinal int) (driver.Context, error) {
	c, err := l.Driver.Open(ordinal)
	return &lazyContext{Context: c, name: l.name, left: map[driver.Function]bool{}}, err
}

type lazyContext struct {
	driver.Context
	name string
	left map[driver.Function]bool
}

func (c *lazyContext) Function(m driver.Module, name string) (driver.Function, error) {
	f, err := c.Context.Function(m, name)
	c.left[f] = name == c.name
	return f, err
}

func (c *lazyContext) Launch(l *driver.Launch, s driver.Stream) error {
	if c.left[l.Function] {
		return nil
	}
	return c.Context.Launch(l, s)
}

// TestWrong wants the cases of each kernel to notice when it does nothing, and the comparison of
// two drivers to notice as well.
func TestWrong(t *testing.T) {
	machine := &double.Driver{} // which reads the kernels once
	for i, k := range proof.Covered() {
		if testing.Short() && i%4 != 0 {
			continue
		}
		drv := &lazy{Driver: machine, name: k.Name()}
		opt := proof.Options{Driver: drv, PTX: true, Only: []kernels.ID{k},
			Together: true}
		wrong := 0
		_, err := proof.Run(t.Context(), opt, func(f proof.Finding) {
			if !f.Pass() {
				wrong++
			}
		})
		if err == nil && wrong == 0 {
			t.Errorf("without kernel %s nothing is wrong", k.Name())
		}
		if err != nil || i%8 != 0 {
			continue // addresses that were not written may lead anywhere
		}
		list, err := proof.Compare(t.Context(), opt,
			proof.Options{Driver: machine, PTX: true, Together: true})
		same := func(d proof.Difference) bool { return d.Kernel == k.Name() && d.Relative == 0 }
		if err != nil || len(list) == 0 || slices.ContainsFunc(list, same) {
			t.Errorf("without kernel %s: %+v, %v", k.Name(), list, err)
		}
	}
}
