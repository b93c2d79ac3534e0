package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// Difference is how far a kernel's numbers of one driver are from those of another.
type Difference struct {
	Kernel string `json:"kernel"`
	// Units is the largest difference in units of the last place, which is large beside a number
	// that is nearly 0; Relative the largest one relative to the largest number of its output.
	Units    uint32  `json:"units"`
	Relative float64 `json:"relative"`
	// Case is where Relative was, Cases how many there were, Equal in how many all bits were equal.
	Case  string `json:"case"`
	Cases int    `json:"cases"`
	Equal int    `json:"equal"`
}

// Compare runs the cases on two drivers, both of which have the same numbers. An error ends it; the
// differences so far are good.
func Compare(ctx context.Context, a, b Options) ([]Difference, error) {
	b.Seed, b.Cost = a.Seed, a.Cost
	a.Together = a.Together && b.Together
	found := map[kernels.ID]*Difference{}
	var other *cuda.Device
	err := eachDevice(ctx, a, func(d *cuda.Device, c *Case) (err error) {
		if other == nil {
			if other, err = open(b, c.DType); err != nil {
				return err
			}
		}
		return compareCase(found, d, other, c, a, b)
	}, func(*cuda.Device) {
		other.Close()
		other = nil
	})
	if other != nil {
		other.Close()
	}
	list := make([]Difference, 0, len(found))
	for _, k := range slices.Sorted(maps.Keys(found)) {
		list = append(list, *found[k])
	}
	return list, err
}

func compareCase(found map[kernels.ID]*Difference, a, b *cuda.Device, c *Case,
	first, second Options) error {
	x, err := outputsOf(a, c, first)
	if err != nil {
		return err
	}
	y, err := outputsOf(b, c, second)
	if err != nil {
		return err
	}
	units, relative, err := apart(x, y)
	if err != nil {
		return err
	}
	for _, k := range c.Kernels {
		f := found[k]
		if f == nil {
			f = &Difference{Kernel: k.Name()}
			found[k] = f
		}
		f.Cases++
		if hashOf(x) == hashOf(y) {
			f.Equal++
		}
		f.Units = max(f.Units, units)
		if relative > f.Relative || f.Case == "" {
			f.Relative, f.Case = relative, fmt.Sprintf("%s, %v", c.Name, c.DType)
		}
	}
	return nil
}

// apart is the largest difference of two runs of a case.
func apart(x, y []output) (units uint32, relative float64, err error) {
	if len(x) != len(y) {
		return 0, 0, fmt.Errorf("%d outputs, and %d", len(x), len(y))
	}
	for i := range x {
		a, b := x[i].got, y[i].got
		if len(a) != len(b) {
			return 0, 0, errors.New(x[i].name + " has another size")
		}
		most, worst := 0.0, 0.0
		for j, v := range a {
			units = max(units, unitsBetween(v, b[j]))
			most = max(most, math.Abs(float64(v)))
			if e := math.Abs(float64(v) - float64(b[j])); e > worst || math.IsNaN(e) {
				worst = e
			}
		}
		switch {
		case math.IsNaN(worst):
			relative = math.MaxFloat64
		case worst > 0:
			relative = max(relative, worst/max(most, math.SmallestNonzeroFloat32))
		}
	}
	return units, relative, nil
}

// unitsBetween is how many float32 lie between two, and 1; NaN is far from all numbers.
func unitsBetween(a, b float32) uint32 {
	x, y := ordered(a), ordered(b)
	if cmp.Compare(x, y) < 0 {
		x, y = y, x
	}
	return uint32(x - y)
}

// ordered is a number's place among all float32; both zeros have the same.
func ordered(v float32) int64 {
	bits := int64(math.Float32bits(v))
	if bits&(1<<31) != 0 {
		return -(bits &^ (1 << 31))
	}
	return bits
}
