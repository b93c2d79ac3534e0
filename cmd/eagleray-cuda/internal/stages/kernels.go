package stages

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/compute/cuda/proof"
)

// kernels holds each kernel to a reference in float64, twice, and names those without a case.
func (r *run) kernels(ctx context.Context) error {
	cases, worst := 0, proof.Finding{Tolerance: 1}
	launched, err := proof.Run(ctx, r.cases(r.cost()), func(f proof.Finding) {
		cases++
		if f.Tolerance > 0 && f.Error/f.Tolerance > worst.Error/worst.Tolerance {
			worst = f
		}
		row := Row{Name: f.Case + ", " + f.DType, Unit: "relative error", Ours: figure(f.Error),
			Floor: figure(f.Tolerance), Failed: !f.Pass(), Detail: f}
		if !f.Same {
			row.Note = "other bits in a second run"
		}
		r.report(row)
	})
	r.summary = fmt.Sprintf("%d cases", cases)
	if worst.Case != "" {
		r.summary += fmt.Sprintf("; nearest to its tolerance: %.2g of %.2g, %s, %s", worst.Error,
			worst.Tolerance, worst.Case, worst.DType)
	}
	if err != nil {
		return err
	}
	info, err := r.info()
	if err != nil {
		return err
	}
	for k := range kernels.Count {
		if !k.Fits(info.Major, info.Minor) {
			continue
		}
		switch covered := slices.Contains(proof.Covered(), k); {
		case proof.OfRanks(k) && launched[k] == 0:
			r.report(Row{Name: k.Name(), Note: "is of several ranks, each a process", Listed: true})
		case covered && launched[k] == 0:
			r.report(Row{Name: k.Name(), Failed: true, Note: "was not launched"})
		case !covered:
			r.report(Row{Name: k.Name(), Note: "has no case", Listed: true})
		}
	}
	return nil
}

// silicon holds the device to the machine for PTX, of each kernel; the machine itself to another
// order of its blocks and warps. A GPU may round otherwise within a product of tensor cores, and in
// approximations: what is reported decides tolerances, and only what no rounding explains fails.
func (r *run) silicon(ctx context.Context) error {
	ours := r.cases(min(r.cost(), proof.Full)) // larger ones are too much for the machine
	driver := &double.Driver{Threads: runtime.NumCPU(), Seed: r.Seed + 1}
	machine := proof.Options{Together: true, PTX: true, Driver: driver}
	limit := 0.01 // what a weight of attention that rounds to its neighbour in bfloat16 may do
	if r.tiny() {
		limit = 0
		driver.Info = double.Small
	}
	return r.compare(ctx, ours, machine, "the machine's", limit)
}

// ptx wants the PTX, compiled by the driver, to compute the bits of the machine code.
func (r *run) ptx(ctx context.Context) error {
	info, cubins, err := r.cubins()
	if err != nil {
		return err
	}
	for _, file := range kernels.Files(info.Major, info.Minor) {
		r.report(Row{Name: "machine code of " + file, Unit: "bytes",
			Ours: figure(float64(len(cubins[file])))})
	}
	switch {
	case len(cubins) == 0:
		r.summary = "there is no machine code for " + info.Arch()
		return nil
	case r.tiny():
		r.summary = "a machine for PTX executes no machine code"
		return nil
	}
	ours := r.cases(min(r.cost(), proof.Full))
	theirs := ours
	theirs.PTX = true
	return r.compare(ctx, ours, theirs, "the PTX's", 0)
}

// compare reports how far the kernels of two devices are apart.
func (r *run) compare(ctx context.Context, ours, theirs proof.Options, whose string,
	limit float64) error {
	list, err := proof.Compare(ctx, ours, theirs)
	equal, worst := 0, 0.0
	for _, d := range list {
		row := Row{Name: d.Kernel, Unit: "relative difference", Ours: figure(d.Relative),
			Failed: d.Relative > limit, Detail: d, Listed: d.Units > 0,
			Note: fmt.Sprintf("%d units in the last place; %d of %d cases have the same bits; %s",
				d.Units, d.Equal, d.Cases, d.Case)}
		r.report(row)
		worst = max(worst, d.Relative)
		if d.Units == 0 {
			equal++
		}
	}
	r.summary = fmt.Sprintf("%d of %d kernels have %s bits, largest relative difference %.2g",
		equal, len(list), whose, worst)
	return err
}

// bits computes rows in many ways, by single kernels and by a model.
func (r *run) bits(ctx context.Context) error {
	ways := 0
	report := func(s proof.Sameness) {
		ways += s.Ways
		r.report(Row{Name: s.Name, Failed: s.Differ != "", Note: s.Differ, Detail: s})
	}
	if err := proof.Bits(ctx, r.cases(r.cost()), report); err != nil {
		return err
	}
	for _, shape := range bitShapes(r.tiny()) {
		s, err := r.modelBits(ctx, shape)
		if err != nil {
			return err
		}
		report(s)
	}
	r.summary = fmt.Sprintf("%d ways to compute rows", ways)
	return nil
}
