package stages

import (
	"context"
	"fmt"

	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/proof"
)

// nccl has ranks of this process, with a device each, sum by NCCL: what they give is exact. Those
// that open each other's memory need processes of their own.
func (r *run) nccl(ctx context.Context) error {
	opt := r.cases(min(r.cost(), proof.Full))
	opt.Ordinal = 0
	skip := func(why string) error {
		r.report(Row{Name: "NCCL", Note: "skipped: " + why, Listed: true})
		r.summary = "skipped: " + why
		return nil
	}
	if r.tiny() {
		opt.Driver = &double.Driver{Threads: r.Machine.Threads, Apart: true}
	}
	devices, err := r.Driver.Devices()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	if len(devices) < 2 && !r.tiny() {
		return skip("one GPU")
	}
	library, err := r.NCCL()
	if err != nil {
		return skip(err.Error())
	}
	opt.NCCL = cuda.NCCL{Open: func() (driver.NCCL, error) { return library, nil }}
	cases, bad := 0, 0
	_, err = proof.Run(ctx, opt, func(f proof.Finding) {
		cases++
		if !f.Pass() {
			bad++
		}
		r.report(Row{Name: f.Case, Ours: figure(f.Error), Floor: figure(f.Tolerance),
			Failed: !f.Pass(), Detail: f})
	})
	r.summary = fmt.Sprintf("NCCL %s: %d cases, %d wrong",
		driver.NCCLVersion(library.Version()), cases, bad)
	return err
}
