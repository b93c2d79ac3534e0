package main

import (
	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda"
	"github.com/eagleray/eagleray/internal/group/launch/process"
)

// newWorker is the verb of ranks, which eagleray starts. Signals are the driver's business.
func newWorker() *cobra.Command {
	return &cobra.Command{
		Use:                process.Verb,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return process.Main(func() (driver.Driver, error) { return libcuda.Open("") })
		},
	}
}
