package stages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// probe says what the driver and its devices are, and what was mended of the process's signals.
func (r *run) probe(context.Context) error {
	r.report(Row{Name: "driver", Note: fmt.Sprintf("CUDA %d.%d", r.Driver.Version()/1000,
		r.Driver.Version()%1000/10)})
	list, err := r.Driver.Devices()
	if err != nil {
		return err
	}
	for i, info := range list {
		r.report(Row{Name: fmt.Sprintf("device %d", i), Detail: info,
			Note: fmt.Sprintf("%s, %s, %d multiprocessors, %d MiB, %s, %s", info.Name, info.Arch(),
				info.Multiprocessors, info.Memory>>20, info.UUID, info.PCI)})
	}
	if info := list[r.Ordinal]; info.Major < kernels.OldestMajor {
		return fmt.Errorf("%s is of %s: sm_%d0 or later is needed", info.Name, info.Arch(),
			kernels.OldestMajor)
	}
	c, err := r.Driver.Open(r.Ordinal)
	if err != nil {
		return err
	}
	free, total, err := c.MemInfo()
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	r.report(Row{Name: "free memory", Unit: "MiB", Ours: figure(float64(free >> 20)),
		Note: fmt.Sprintf("of %d", total>>20)})
	mended := r.Signals()
	for _, s := range mended {
		r.report(Row{Name: "signal", Note: s})
	}
	r.summary = fmt.Sprintf("%s, CUDA %d.%d, %d handlers of signals mended",
		list[r.Ordinal].Name, r.Driver.Version()/1000, r.Driver.Version()%1000/10, len(mended))
	return nil
}

// load loads all modules, and says what each kernel takes. On a GPU none may take local memory:
// registers were spilled there.
func (r *run) load(ctx context.Context) (err error) {
	c, err := r.Driver.Open(r.Ordinal)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	info, cubins, err := r.cubins()
	if err != nil {
		return err
	}
	modules := map[string]driver.Module{}
	var compiled, loaded time.Duration
	for _, file := range kernels.Files(info.Major, info.Minor) {
		if err := ctx.Err(); err != nil {
			return err
		}
		image, err := kernels.PTX(file)
		if err != nil {
			return err
		}
		m, took, err := loadImage(c, image)
		if err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
		compiled += took
		r.reportTime("load "+file, took, "PTX of "+file+".cu, compiled by the driver")
		if cubin := cubins[file]; cubin != nil && !r.tiny() {
			if m, took, err = loadImage(c, cubin); err != nil {
				return fmt.Errorf("load %s as machine code: %w", file, err)
			}
			loaded += took
			r.reportTime("load "+file+", machine code", took, "the cubin of "+file+".cu")
		}
		modules[file] = m
	}
	loads := 0
	for k := range kernels.Count {
		if !k.Fits(info.Major, info.Minor) {
			continue
		}
		loads++
		if err := r.kernel(c, modules[k.File()], k); err != nil {
			return err
		}
	}
	r.summary = fmt.Sprintf("%d kernels of %d modules", loads, len(modules))
	if !r.tiny() {
		r.summary += fmt.Sprintf(", compiled in %v, machine code loaded in %v",
			compiled.Round(time.Millisecond), loaded.Round(time.Millisecond))
	}
	return nil
}

// cubins are the machine code that there is for the device.
func (r *run) cubins() (info driver.Info, list map[string][]byte, err error) {
	if info, err = r.info(); err != nil {
		return info, nil, err
	}
	list, err = kernels.Cubins(info.Major, info.Minor)
	return info, list, err
}

// loadImage loads a module, and says how long it took.
func loadImage(c driver.Context, image []byte) (driver.Module, time.Duration, error) {
	began := time.Now()
	m, err := c.Load(image)
	return m, time.Since(began), err
}

// kernel reports what a kernel takes.
func (r *run) kernel(c driver.Context, m driver.Module, k kernels.ID) error {
	f, err := c.Function(m, k.Name())
	if err != nil {
		return fmt.Errorf("kernel %s: %w", k.Name(), err)
	}
	registers, shared, local, err := c.Resources(f)
	if err != nil {
		return fmt.Errorf("kernel %s: %w", k.Name(), err)
	}
	row := Row{Name: k.Name(), Unit: "registers", Ours: figure(float64(registers)),
		Note: fmt.Sprintf("%d bytes of shared memory, %d of local memory", shared, local)}
	if r.tiny() {
		row.Ours, row.Note = nil, "a machine has no registers"
	}
	row.Failed = local != 0
	r.report(row)
	return nil
}

// reportTime reports how long something took, which of a machine for PTX says nothing.
func (r *run) reportTime(name string, took time.Duration, note string) {
	row := Row{Name: name, Unit: "ms", Note: note}
	if !r.tiny() {
		row.Ours = figure(float64(took.Microseconds()) / 1000)
	}
	r.report(row)
}
