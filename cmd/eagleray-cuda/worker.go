package main

import (
	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/rank/gpu"
)

// newWorker is the verb of ranks, which eagleray starts. Signals are the driver's business.
func newWorker() *cobra.Command {
	return &cobra.Command{
		Use:                launch.Verb,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return invited.Main(args, gpu.Devices(func() (driver.Driver, error) {
				return libcuda.Open("")
			}))
		},
	}
}
