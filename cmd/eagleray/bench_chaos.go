package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/chaos"
	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// newBenchChaos disturbs a server and counts what its clients notice.
func newBenchChaos() *cobra.Command {
	var o chaos.Options
	var seconds float64
	var output, plot, view string
	var plotSeconds float64
	var verbose bool
	c := &cobra.Command{
		Use:   "chaos [flags] [-- SERVE FLAGS]",
		Short: "Inject faults into a server under load, and count what its clients notice",
		Long: `chaos starts a server (by default with two worker processes), asks each of a set of requests once,
then streams them from many clients while it kills, stops and crashes the server's processes, holds one so that
nothing ends it, starves one, replaces the files of (a copy of) the model, and asks the server itself to end while a
process is stopped. Every answer must be the undisturbed one: text, tokens, log-probabilities. It prints requests
asked, answered, lost, duplicated and different, the longest pause of a stream after each kind of fault, and how often
the health route did not tell the truth.

  eagleray bench chaos --seconds 60
  eagleray bench chaos --ray-python ~/ray/bin/python --faults kill,stop,raylet --seconds 120
  eagleray bench chaos --ray-python ~/ray/bin/python -- ./Mixtral-8x7B -dp 2 -tp 2 -ep
  eagleray bench chaos --faults kill,stop --count 100 --output-json chaos.json --plot chaos.svg -- -tp 4`,
		RunE: func(c *cobra.Command, args []string) error {
			if o.Args = args; len(args) == 0 {
				o.Args = []string{"-tp", "2"}
			}
			if len(o.Faults) == 0 {
				o.Faults = chaos.Possible(o)
			}
			for _, name := range o.Faults {
				if !slices.Contains(chaos.Kinds(), name) {
					return cli.UsageError("--faults %q is not one of %s", name,
						strings.Join(chaos.Kinds(), ", "))
				}
				if how := chaos.Missing(name, o); how != "" {
					return cli.UsageError("--faults %s needs %s", name, how)
				}
			}
			if plot != "" && filepath.Ext(plot) != ".svg" {
				return cli.UsageError("--plot %s is not a .svg file", plot)
			}
			if o.Streams < 1 || o.Prompts < 1 || o.Tokens < 1 || seconds <= 0 ||
				o.Count < 0 || o.Pause < 0 {
				return cli.UsageError(
					"--streams, --prompts, --tokens and --seconds are at least one")
			}
			var err error
			if o.Program, err = os.Executable(); err != nil {
				return err
			}
			o.Duration = time.Duration(seconds * float64(time.Second))
			if verbose {
				o.Output = os.Stderr
			}
			if isTerminal(os.Stderr) {
				o.Progress = func(n int) { fmt.Fprintf(os.Stderr, "\r%d faults", n) }
			}
			r, err := chaos.Run(c.Context(), o)
			if o.Progress != nil {
				fmt.Fprintln(os.Stderr)
			}
			if err != nil {
				return err
			}
			out := cli.PrintTo(os.Stdout)
			printChaos(out, r)
			if plot != "" {
				if err := os.WriteFile(plot, chaos.SVG(r, plotSeconds), 0o644); err != nil {
					return fmt.Errorf("--plot: %w", err)
				}
			}
			if view != "" {
				if err := os.WriteFile(view, chaos.View(r), 0o644); err != nil {
					return fmt.Errorf("--client-view: %w", err)
				}
			}
			if err := cli.WriteJSON(output, r); err != nil {
				return err
			}
			if bad := r.Lost + r.Duplicated + r.Different + r.Health.Disagreed; bad > 0 {
				return fmt.Errorf("%d requests or looks at the health route went wrong", bad)
			}
			return out.Err
		},
	}
	f := c.Flags()
	f.StringVar(&o.RayPython, "ray-python", "", "Python of an installed Ray: the ranks are on a "+
		"cluster of this machine, started with it: on up to three nodes, and one is spare")
	f.StringSliceVar(&o.Faults, "faults", nil,
		"kinds of faults, injected by turns: "+strings.Join(chaos.Kinds(), ", ")+
			" (default: all that the server can have)")
	f.Float64Var(&seconds, "seconds", 30, "how long faults are injected")
	f.IntVar(&o.Count, "count", 0,
		"how many faults are injected, whatever the time; 0 goes by --seconds")
	f.IntVar(&o.Streams, "streams", 16, "clients that stream at the same time")
	f.IntVar(&o.Prompts, "prompts", 24, "different requests")
	f.IntVar(&o.Tokens, "tokens", 200, "tokens of each output")
	f.DurationVar(&o.Pause, "pause", 200*time.Millisecond,
		"longest time from a recovery to the next fault")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of requests, faults and moments")
	f.StringVar(&output, "output-json", "", "file for the figures")
	f.StringVar(&plot, "plot", "", "file for a picture of tokens a second, SVG")
	f.StringVar(&view, "client-view", "",
		"file for when each event of a stream came, around the faults")
	config.Paths(f, config.PathFile, "ray-python", "output-json", "plot", "client-view")
	f.Float64Var(&plotSeconds, "plot-seconds", 20, "how much of the run the picture shows")
	f.BoolVar(&verbose, "verbose", false, "show the server's log")
	cli.ConfigFlag(c)
	return c
}

func printChaos(w io.Writer, r *chaos.Report) {
	fmt.Fprintf(w, "%-15s %8s %5s %9s   %-17s   %s\n", "", "", "", "", "recovery, ms",
		"longest pause of a stream, ms")
	fmt.Fprintf(w, "%-15s %8s %5s %9s %8s %8s   %8s %8s %8s\n", "fault", "injected", "lost",
		"different", "p50", "p99", "p50", "p99", "max")
	injected := 0
	for _, k := range r.Kinds {
		injected += k.Injected
		recovery := fmt.Sprintf("%8s %8s", "-", "-")
		if k.RecoveryMS.N > 0 {
			recovery = fmt.Sprintf("%8.0f %8.0f", k.RecoveryMS.P50, k.RecoveryMS.P99)
		}
		fmt.Fprintf(w, "%-15s %8d %5d %9d %s   %8.0f %8.0f %8.0f\n", k.Name, k.Injected, k.Lost,
			k.Different, recovery, k.PauseMS.P50, k.PauseMS.P99, k.PauseMS.Max)
	}
	fmt.Fprintf(w, "%-15s %8d %5d %9d\n\n", "all", injected, r.Lost, r.Different+r.Duplicated)
	fmt.Fprintf(w, "%d requests of %.0f s: %d answered as undisturbed, %d lost, %d duplicated, "+
		"%d different\n", r.Asked, r.Seconds, r.Answered, r.Lost, r.Duplicated, r.Different)
	if r.Refused > 0 {
		fmt.Fprintf(w, "%d more were refused by a server that was asked to end, and asked of the "+
			"next\n", r.Refused)
	}
	fmt.Fprintf(w, "%d recoveries, from the known failure to new workers: p50 %.0f ms, p99 %.0f "+
		"ms\n", r.RecoveryMS.N, r.RecoveryMS.P50, r.RecoveryMS.P99)
	fmt.Fprintf(w, "health route asked %d times beside a request for one token: %d times 503, %d "+
		"disagreements\n", r.Health.Asked, r.Health.Unhealthy, r.Health.Disagreed)
	for _, line := range append(r.Trouble, r.Health.Disagreement...) {
		fmt.Fprintln(w, "  "+line)
	}
}
