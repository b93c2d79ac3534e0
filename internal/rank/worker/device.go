package worker

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/runner"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// processor is what a rank computes by: a CPU or a GPU.
type processor interface {
	layers.Device
	// Count has what moves in long computations counted, until Count(nil) returns.
	Count(moved *atomic.Uint64)
	// ISA is what bits depend on: an instruction set, or a GPU's architecture.
	ISA() string
	// DropSpare frees memory that is kept for the next weights.
	DropSpare()
	// Close gives all of it back.
	Close()
}

// GPUs opens the driver of a machine's GPUs.
type GPUs func() (driver.Driver, error)

// place is what a rank may use of its machine.
type place struct {
	share machine.Share
	// beside says that others compute in the same process.
	beside bool
	// local is its number among the ranks of the machine, and that of its GPU.
	local int
	gpus  GPUs
}

// newDevice makes a rank's device.
func newDevice(init *queue.Init, at place) (processor, error) {
	dtype, err := compute.ParseDType(init.DType)
	if err != nil {
		return nil, err
	}
	if init.Device == queue.CUDA {
		opt := cuda.Options{Ordinal: at.local, DType: dtype, Threads: at.share.Threads,
			Eager: init.Eager}
		if opt.Driver, err = cudaDriver(&at); err != nil {
			return nil, err
		}
		if _, ok := opt.Driver.(*double.Driver); ok {
			opt.Ordinal = 0 // every process has a machine of its own
		}
		return cuda.New(opt)
	}
	opt := cpu.Options{Threads: at.share.Threads, ISA: init.ISA, DType: dtype}
	if at.beside {
		opt.Processors = at.share.Processors
	}
	return cpu.New(opt)
}

// cudaDriver is the driver of the machine's GPUs, or one that needs none.
func cudaDriver(at *place) (driver.Driver, error) {
	if options, ok := queue.CUDAMachine(); ok {
		return double.Parse(options, at.share.Threads)
	}
	if v := os.Getenv(queue.CUDADriverVariable); v != "" {
		return nil, fmt.Errorf("%s=%q does not begin with %q", queue.CUDADriverVariable, v,
			"machine")
	}
	if at.gpus == nil {
		return nil, errors.New("this program has no CUDA driver: ranks on GPUs are run by " +
			"eagleray-cuda")
	}
	return at.gpus()
}

// describe says what a rank computes with, and why.
func describe(init *queue.Init) string {
	if init.Device == queue.CUDA {
		return "CUDA: executed on a PTX machine, not yet on a GPU"
	}
	return isa.Describe(init.ISA)
}

var (
	_ processor = (*cpu.Device)(nil)
	_ processor = (*cuda.Device)(nil)

	_ runner.Sampler = (*cuda.Device)(nil)
)
