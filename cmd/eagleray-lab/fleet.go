package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/fleetbench"
	"github.com/eagleray/eagleray/cmd/internal/cli"
)

// newFleet measures what a driver does with many ranks.
func newFleet() *cobra.Command {
	var o fleetbench.Options
	var output, plot string
	c := &cobra.Command{
		Use:   "fleet",
		Short: "Measure one driver with many ranks that only talk",
		Long: `fleet starts groups of ranks that compute nothing, uses them and takes a rank from
each: how long the start, the broadcast of a plan, a collective call, a step and the notice of a
death take, and how they grow with the number of ranks. Ranks are goroutines on links over memory
that delays bytes as the host's loopback does, and, up to --max-processes, processes of this host.

  eagleray-lab fleet --ranks 8,64,1024 --output-json fleet.json --plot fleet.svg
  eagleray-lab fleet experts --model DeepSeek-V3`,
		Args: cli.Arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkFleet(&o); err != nil {
				return err
			}
			o.Progress = func(kind string, ranks int) {
				fmt.Fprintf(os.Stderr, "%d %s\n", ranks, kind)
			}
			r, err := fleetbench.Run(c.Context(), o)
			if err != nil {
				return err
			}
			printFleet(os.Stdout, &r)
			if plot != "" {
				if err := os.WriteFile(plot, fleetbench.Plot(&r), 0o644); err != nil {
					return fmt.Errorf("--plot: %w", err)
				}
			}
			return cli.WriteJSON(output, r)
		},
	}
	f := c.Flags()
	f.IntSliceVar(&o.Ranks, "ranks", []int{8, 16, 32, 64, 128, 256, 512, 1024},
		"sizes of the groups")
	f.IntVar(&o.MaxProcesses, "max-processes", fleetbench.MaxProcesses,
		"largest group that is measured with processes too; 0 is none")
	f.IntVar(&o.Rounds, "rounds", 5, "starts of each group")
	f.IntVar(&o.Steps, "steps", 20, "steps, and calls, after each start")
	f.IntVar(&o.Running, "running", 256, "decoding requests in each step")
	f.DurationVar(&o.Pause, "pause", 20*time.Millisecond, "time between steps and calls")
	f.DurationVar(&o.Latency, "latency", 0,
		"how long bytes take to a goroutine; 0 is what they take over this host's loopback")
	f.StringVar(&output, "output-json", "", "file for the figures")
	f.StringVar(&plot, "plot", "", "file for a picture of them, SVG")
	cli.ConfigFlag(c)
	c.AddCommand(newFleetExperts())
	return c
}

func checkRanks(sizes []int) error {
	wrong := func(n int) bool { return n < 1 || n > fleetbench.MaxRanks }
	if slices.ContainsFunc(sizes, wrong) || len(sizes) == 0 {
		return cli.UsageError("--ranks %v: sizes are 1 to %d", sizes, fleetbench.MaxRanks)
	}
	return nil
}

func checkFleet(o *fleetbench.Options) error {
	if err := checkRanks(o.Ranks); err != nil {
		return err
	}
	for _, x := range []struct {
		flag          string
		value, lo, hi int
	}{
		{"max-processes", o.MaxProcesses, 0, fleetbench.MaxProcesses},
		{"rounds", o.Rounds, 1, 1000},
		{"steps", o.Steps, 1, 1 << 20},
		{"running", o.Running, 1, 1 << 16},
	} {
		if x.value < x.lo || x.value > x.hi {
			return cli.UsageError("--%s %d is not %d to %d", x.flag, x.value, x.lo, x.hi)
		}
	}
	if o.Pause < 0 || o.Pause > time.Minute {
		return cli.UsageError("--pause %v is not 0 to 1m", o.Pause)
	}
	if o.Latency < 0 || o.Latency > time.Second {
		return cli.UsageError("--latency %v is not 0 to 1s", o.Latency)
	}
	return nil
}

func printFleet(w io.Writer, r *fleetbench.Report) {
	fmt.Fprintf(w, "steps of %d requests; goroutines %.0f µs away\n\n", r.Running, r.LatencyUS)
	fmt.Fprintf(w, "%-12s %6s", "median, µs", "ranks")
	for _, name := range fleetbench.Figures() {
		fmt.Fprintf(w, " %10s", name)
	}
	fmt.Fprintln(w)
	for i := range r.Groups {
		g := &r.Groups[i]
		fmt.Fprintf(w, "%-12s %6d", g.Kind, g.Ranks)
		for _, name := range fleetbench.Figures() {
			fmt.Fprintf(w, " %10.0f", g.Figure(name).P50)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\n%-12s %-10s %12s %12s %8s\n", "growth", "", "µs at 0", "µs per rank", "power")
	for _, g := range r.Growth {
		fmt.Fprintf(w, "%-12s %-10s %12.0f %12.2f %8.2f\n", g.Kind, g.Figure, g.BaseUS,
			g.PerRankUS, g.Power)
	}
}

// newFleetRank is the verb of ranks that are processes.
func newFleetRank() *cobra.Command {
	return &cobra.Command{
		Use:                fleetbench.Verb,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return fleetbench.Main() },
	}
}
