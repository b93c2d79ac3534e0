// Package gpu makes the devices of ranks on NVIDIA's GPUs. Only the program that loads their driver
// has it, and tests.
package gpu

import (
	"errors"
	"fmt"
	"os"

	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/runner"
	"github.com/eagleray/eagleray/internal/rank/worker"
)

// Devices are those of a driver, which open opens, or of the machine that stands for one
// (queue.CUDADriverVariable). open is nil where there is the machine alone.
func Devices(open func() (driver.Driver, error)) worker.GPUs {
	return func(g worker.GPU) (worker.Device, error) {
		opt := cuda.Options{Ordinal: g.Ordinal, DType: g.DType, Threads: g.Threads, Eager: g.Eager}
		var err error
		if options, ok := queue.CUDAMachine(); ok {
			opt.Ordinal = 0 // every process has a machine of its own
			opt.Driver, err = double.Parse(options, g.Threads)
		} else {
			opt.Driver, err = opened(open)
		}
		if err != nil {
			return nil, err
		}
		return cuda.New(opt)
	}
}

// opened opens the driver of GPUs.
func opened(open func() (driver.Driver, error)) (driver.Driver, error) {
	if v := os.Getenv(queue.CUDADriverVariable); v != "" {
		return nil, fmt.Errorf("%s=%q does not begin with %q", queue.CUDADriverVariable, v,
			"machine")
	}
	if open == nil {
		return nil, errors.New("this program has no CUDA driver")
	}
	return open()
}

var (
	_ worker.Device  = (*cuda.Device)(nil)
	_ runner.Sampler = (*cuda.Device)(nil)
)
