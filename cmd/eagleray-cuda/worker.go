package main

import (
	"sync"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/cublaslt"
	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/nccl"
	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/nvml"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/gpu"
)

// newWorker is the verb of ranks, which eagleray starts. Signals are the driver's business.
func newWorker() *cobra.Command {
	return &cobra.Command{
		Use:                launch.Verb,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return invited.Main(args, gpu.Devices(gpu.Libraries{
				Driver:   func() (driver.Driver, error) { return libcuda.Open("") },
				Meter:    meter(),
				NCCL:     collectives(),
				CUBLASLt: products(),
			}))
		},
	}
}

// collectives is how ranks may use NCCL, which is opened when it is needed.
func collectives() cuda.NCCL {
	path, err := libcuda.Named(nccl.Variable)
	if err != nil {
		return cuda.NCCL{}
	}
	return cuda.NCCL{Between: path != "", Open: sync.OnceValues(func() (driver.NCCL, error) {
		return nccl.Open(path)
	})}
}

// products opens cuBLASLt when it is needed.
func products() func() (driver.CUBLASLt, error) {
	return sync.OnceValues(func() (driver.CUBLASLt, error) { return cublaslt.OpenNamed() })
}

// meter measures GPUs by NVML, which is opened when it is needed. Without it there are no figures,
// which doctor says.
func meter() func(uuid string) func(*status.GPU) {
	open := sync.OnceValues(func() (*nvml.Library, error) { return nvml.Open("") })
	return func(uuid string) func(*status.GPU) {
		l, err := open()
		if err != nil {
			return nil
		}
		m, err := l.Meter(uuid)
		if err != nil {
			return nil
		}
		return m
	}
}
