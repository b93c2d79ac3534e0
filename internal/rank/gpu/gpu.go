// Package gpu makes the devices of ranks on NVIDIA's GPUs. Only the program that loads their driver
// has it, and tests.
package gpu

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/runner"
	"github.com/eagleray/eagleray/internal/rank/worker"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Libraries are NVIDIA's that a program has: nil for none. They are opened when they are needed.
type Libraries struct {
	Driver func() (driver.Driver, error)
	// Meter returns what measures a GPU of the driver's, nil where nothing does.
	Meter func(uuid string) func(*status.GPU)
	NCCL  cuda.NCCL
	// CUBLASLt opens the library, nil for none.
	CUBLASLt func() (driver.CUBLASLt, error)
}

// gpus are those of a driver.
type gpus struct {
	Libraries
	driver func() (driver.Driver, error)
}

// Devices are the GPUs of a driver, or of the machine that stands for one
// (queue.CUDADriverVariable), which needs none of the libraries.
func Devices(l Libraries) worker.GPUs {
	return &gpus{Libraries: l, driver: sync.OnceValues(func() (driver.Driver, error) {
		if v := os.Getenv(queue.CUDADriverVariable); v != "" {
			return nil, fmt.Errorf("%s=%q does not begin with %q", queue.CUDADriverVariable, v,
				"machine")
		}
		if l.Driver == nil {
			return nil, errors.New("this program has no CUDA driver")
		}
		return l.Driver()
	})}
}

// Meter implements worker.GPUs. A GPU is known by its UUID: CUDA_VISIBLE_DEVICES changes ordinals
// for its driver alone.
func (g *gpus) Meter(ordinal int) worker.Meter {
	_, info, err := g.find(ordinal)
	if err != nil || g.Libraries.Meter == nil {
		return nil
	}
	return g.Libraries.Meter(info.UUID)
}

// find is the driver, and what it knows of a GPU.
func (g *gpus) find(ordinal int) (d driver.Driver, i driver.Info, err error) {
	if d, err = g.driver(); err != nil {
		return nil, i, err
	}
	list, err := d.Devices()
	if err != nil {
		return nil, i, err
	}
	if ordinal >= len(list) {
		return nil, i, fmt.Errorf("there is no GPU %d", ordinal)
	}
	return d, list[ordinal], nil
}

// Memory implements worker.GPUs. That of a machine is the host's.
func (g *gpus) Memory(ordinal int) memory.Bounds {
	if _, ok := queue.CUDAMachine(); ok {
		return machine.Memory()
	}
	b, err := g.measure(ordinal)
	if err != nil {
		return nil
	}
	return memory.Bounds{b}
}

// measure opens a GPU for a moment.
func (g *gpus) measure(ordinal int) (b memory.Bound, err error) {
	d, info, err := g.find(ordinal)
	if err != nil {
		return b, err
	}
	// A context belongs to a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := d.Open(ordinal)
	if err != nil {
		return b, err
	}
	free, total, err := c.MemInfo()
	return memory.Bound{From: fmt.Sprintf("GPU %d (%s, %s)", ordinal, info.Name,
		info.UUID), Limit: int64(total), Left: int64(free)}, errors.Join(err, c.Close())
}

// New implements worker.GPUs.
func (g *gpus) New(o worker.GPU) (worker.Device, error) {
	opt := cuda.Options{Ordinal: o.Ordinal, DType: o.DType, Threads: o.Threads, Eager: o.Eager,
		NCCL: g.NCCL, CUBLASLt: cuda.CUBLASLt{Open: g.CUBLASLt, Fast: o.Fast}}
	if options, ok := queue.CUDAMachine(); ok {
		d, err := double.Parse(options, o.Threads)
		if err != nil {
			return nil, err
		}
		// Every process has a machine of its own.
		opt.Driver, opt.Ordinal, opt.PTX, opt.NCCL = d, 0, true, cuda.NCCL{}
		opt.CUBLASLt.Open = nil
		if d.NCCL != nil {
			opt.NCCL.Open = func() (driver.NCCL, error) { return d.NCCL, nil }
		}
		if d.CUBLASLt != nil {
			opt.CUBLASLt.Open = func() (driver.CUBLASLt, error) { return d.CUBLASLt, nil }
		}
		return cuda.New(opt)
	}
	var err error
	if opt.Driver, err = g.driver(); err != nil {
		return nil, err
	}
	return cuda.New(opt)
}

// Peers implements worker.GPUs, for a device of New.
func (g *gpus) Peers(d worker.Device, rank, size int, host layers.Comm,
	group layers.HostGroup) worker.Peers {
	return d.(*cuda.Device).NewComm(rank, size, host, group)
}

// Places implements worker.GPUs, for a device of New.
func (g *gpus) Places(d worker.Device, rank, size int, host layers.Comm,
	group layers.HostGroup) worker.Places {
	return d.(*cuda.Device).NewPlaces(rank, size, host, group)
}

var (
	_ worker.Device  = (*cuda.Device)(nil)
	_ runner.Sampler = (*cuda.Device)(nil)
)
