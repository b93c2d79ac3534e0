package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/constrainbench"
	"github.com/eagleray/eagleray/cmd/internal/cli"
)

// newConstrain measures constrained decoding without a model.
func newConstrain() *cobra.Command {
	var o constrainbench.Options
	var output, plot string
	c := &cobra.Command{
		Use:   "constrain",
		Short: "Measure the masks of constrained decoding over a set of JSON Schemas",
		Long: `constrain compiles every schema of a directory and goes through its instances token by token: the share
that compiles, instances that are judged wrongly, and the time of every mask, the first time (cold) and
the second (warm). The files are those of MaskBench: {"schema": ..., "tests": [{"valid": true, "data": ...}]}.

  eagleray-lab constrain --schemas maskbench/data --tokenizer qwen3 --output-json masks.json --plot masks.svg`,
		Args: cli.Arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			switch {
			case o.Schemas == "":
				return cli.UsageError("--schemas names no directory")
			case o.Tokenizer == "":
				return cli.UsageError("--tokenizer names no directory")
			case o.Every < 1:
				return cli.UsageError("--every %d is less than 1", o.Every)
			}
			r, err := constrainbench.Run(o)
			if err != nil {
				return err
			}
			printConstrain(os.Stdout, &r)
			if plot != "" {
				if err := os.WriteFile(plot, constrainbench.Plot(&r), 0o644); err != nil {
					return fmt.Errorf("--plot: %w", err)
				}
			}
			return cli.WriteJSON(output, r)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Schemas, "schemas", "",
		"directory of schemas with instances, as MaskBench has them")
	f.StringVar(&o.Tokenizer, "tokenizer", "",
		"directory of the tokenizer whose vocabulary is masked")
	f.IntVar(&o.Every, "every", 1, "take every so many-th schema only")
	f.IntVar(&o.Vocab, "vocab-size", 0,
		"width of a mask, as the model pads it; 0: the tokenizer's own")
	f.BoolVar(&o.AnyOrder, "any-order", false, "let the keys of objects stand in any order")
	f.StringVar(&plot, "plot", "", "file for a plot of the times of masks, SVG")
	f.StringVar(&output, "output-json", "", "file for the figures")
	cli.ConfigFlag(c)
	return c
}

func printConstrain(w io.Writer, r *constrainbench.Report) {
	v := &r.Verdicts
	fmt.Fprintf(w, "%d schemas, %d compiled (%.4f)\n", r.Schemas, r.Compiled, r.Share)
	for _, code := range slices.Sorted(maps.Keys(r.Refused)) {
		fmt.Fprintf(w, "  refused: %-33s %8d\n", code, r.Refused[code])
	}
	fmt.Fprintf(w, "%-44s %8d\n", "valid instances accepted", v.ValidAccepted)
	fmt.Fprintf(w, "%-44s %8d\n", "valid instances refused", v.ValidRefused)
	fmt.Fprintf(w, "%-44s %8d\n", "invalid instances refused", v.InvalidRefused)
	fmt.Fprintf(w, "%-44s %8d\n", "invalid instances accepted", v.InvalidAccepted)
	fmt.Fprintf(w, "%-44s %8d\n", "schemas whose masks exceed the limits", len(r.Exhausted))
	fmt.Fprintf(w, "\n%-24s %8s %8s %8s %8s %8s %8s %8s\n", "microseconds", "count", "mean", "p50",
		"p90", "p99", "p99.9", "max")
	for _, row := range []struct {
		name string
		q    constrainbench.Quantiles
	}{{"compile", r.Compile}, {"first mask", r.FirstMask}, {"mask, cold", r.Cold},
		{"mask, warm", r.Warm}} {
		q := row.q
		fmt.Fprintf(w, "%-24s %8d %8.1f %8.1f %8.1f %8.1f %8.1f %8.0f\n", row.name, q.Count, q.Mean,
			q.P50, q.P90, q.P99, q.P999, q.Max)
	}
}
