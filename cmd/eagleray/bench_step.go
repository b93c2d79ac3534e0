package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/stepbench"
	"github.com/eagleray/eagleray/internal/config"
)

// newBenchStep measures what everything but the model costs.
func newBenchStep() *cobra.Command {
	cfg := config.Default()
	cfg.Parallel.Backend = "mp"
	var o stepbench.Options
	var running []int
	var output string
	c := &cobra.Command{
		Use:   "step [MODEL]",
		Short: "Measure the driver's work per step, with ranks that compute nothing",
		Long: `step runs an engine whose ranks answer every plan at once, and prints in microseconds how long a step
keeps the driver's loop busy (host), how long it takes from result to result (step), and how long the
output rank is idle between two steps (gap).

  eagleray bench step --running 1,64,256,1024
  eagleray bench step --running 64 --step-time 1ms --output-json figures.json`,
		Args: arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			useModel(&cfg, args)
			if err := cfg.Validate(); err != nil {
				return err
			}
			o.Config = cfg
			var reports []*stepbench.Report
			fmt.Fprintln(os.Stdout, stepbench.Header)
			for _, n := range running {
				if n < 1 {
					return usageError("--running %d is less than 1", n)
				}
				o.Running = n
				r, err := stepbench.Run(c.Context(), o)
				if err != nil {
					return err
				}
				fmt.Fprintln(os.Stdout, r)
				reports = append(reports, r)
			}
			if len(reports) == 1 {
				return writeJSON(output, reports[0])
			}
			return writeJSON(output, reports)
		},
	}
	f := c.Flags()
	modelFlag(f, &cfg)
	f.IntSliceVar(&running, "running", []int{1, 64, 256, 1024},
		"requests that decode side by side, one or several numbers")
	f.IntVar(&o.Steps, "steps", 800, "steps to measure")
	f.DurationVar(&o.StepTime, "step-time", time.Duration(0), "how long a step keeps the ranks busy")
	f.StringVar(&output, "output-json", "", "file for the figures: an object, a list for several --running")
	cfg.EngineFlags(f)
	configFlag(c)
	return c
}
