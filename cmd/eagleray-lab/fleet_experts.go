package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/fleetbench"
	"github.com/eagleray/eagleray/cmd/internal/cli"
)

// newFleetExperts models expert parallelism. Nothing is measured.
func newFleetExperts() *cobra.Command {
	var o fleetbench.ExpertOptions
	var own fleetbench.Mixture // what flags say of the model
	var model, output, plot string
	var models []string
	for _, m := range fleetbench.Mixtures() {
		models = append(models, m.Name)
	}
	c := &cobra.Command{
		Use:   "experts",
		Short: "Model expert parallelism on 8 to 1,024 ranks",
		Long: `experts reckons what a step of a mixture of experts takes if each rank holds whole experts: a row
travels to the ranks that hold its experts, once to each, and its sums come back, in every layer.
It prints bytes and messages, within a node and between nodes, the time of a step, and the number of
ranks with the shortest: experts per rank, and so weights that it reads, shrink with the ranks, while
exchanges grow. Nothing is measured but what flags say.

Each rank has --rows rows. Rows choose experts at random. With E experts, a rank of e has a row of k
experts with 1 - C(E-e,k)/C(E,k); the sum over the ranks is "visits". In each exchange every rank
sends every other a message, empty or not, as all-to-all does: between nodes, then within each. Time
of experts is that of the rank with the most: reading the weights that rows have chosen, or computing
them, whichever is longer. Attention, routers, shared experts and dense layers are left out.

  eagleray-lab fleet experts --model DeepSeek-V3 --ranks-per-node 8 --rows 64 --plot experts.svg`,
		Args: cli.Arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if err := checkExperts(&o, model, models, own); err != nil {
				return err
			}
			r := fleetbench.Experts(o)
			printExperts(os.Stdout, &r)
			if plot != "" {
				if err := os.WriteFile(plot, fleetbench.PlotExperts(&r), 0o644); err != nil {
					return fmt.Errorf("--plot: %w", err)
				}
			}
			return cli.WriteJSON(output, r)
		},
	}
	f := c.Flags()
	f.StringVar(&model, "model", models[0], "shape of the mixtures: "+strings.Join(models, ", "))
	f.IntVar(&own.Hidden, "hidden-size", 0, "elements of a row; 0 is the model's")
	f.IntVar(&own.Inner, "moe-intermediate-size", 0,
		"inner features of an expert; 0 is the model's")
	f.IntVar(&own.Experts, "num-experts", 0, "experts of a layer; 0 is the model's")
	f.IntVar(&own.PerToken, "num-experts-per-tok", 0, "experts of a row; 0 is the model's")
	f.IntVar(&own.Layers, "layers", 0, "layers with experts; 0 is the model's")
	f.IntSliceVar(&o.Ranks, "ranks", []int{1, 8, 16, 32, 64, 128, 256, 512, 1024},
		"sizes of the fleet")
	f.IntVar(&o.RanksPerNode, "ranks-per-node", 8, "ranks of a node")
	f.IntVar(&o.Rows, "rows", 64, "rows of each rank in a step")
	f.Float64Var(&o.DispatchBytes, "dispatch-bytes", 4, "bytes sent for an element of a row")
	f.Float64Var(&o.CombineBytes, "combine-bytes", 8, "bytes sent for an element of its sums")
	f.Float64Var(&o.WeightBits, "weight-bits", 16, "bits of a weight")
	f.Float64Var(&o.MemoryGBs, "memory-bandwidth", 100, "weights that a rank reads, in GB/s")
	f.Float64Var(&o.TFLOPS, "tflops", 2, "what a rank computes")
	f.Float64Var(&o.RankGBs, "rank-bandwidth", 3.5, "what a rank sends within its node, in GB/s")
	f.Float64Var(&o.LinkGBs, "link-bandwidth", 0.5,
		"what a rank sends to other nodes at most, encrypted, in GB/s")
	f.Float64Var(&o.NodeGBs, "node-bandwidth", 12.5,
		"what the ranks of a node send to other nodes together, in GB/s")
	f.Float64Var(&o.RankUS, "rank-latency", 6, "time of an empty exchange within a node, in µs")
	f.Float64Var(&o.NodeUS, "node-latency", 30, "time of an empty exchange between nodes, in µs")
	f.Float64Var(&o.MessageUS, "message-time", 5,
		"time of the sender for each message to another node, in µs")
	f.StringVar(&output, "output-json", "", "file for the figures")
	f.StringVar(&plot, "plot", "", "file for a picture of them, SVG")
	cli.ConfigFlag(c)
	return c
}

func checkExperts(o *fleetbench.ExpertOptions, model string, models []string,
	own fleetbench.Mixture) error {
	at := slices.IndexFunc(models, func(name string) bool { return strings.EqualFold(name, model) })
	if at < 0 {
		return cli.UsageError("--model %q is none of %s", model, strings.Join(models, ", "))
	}
	o.Mixture = fleetbench.Mixtures()[at]
	for _, x := range []struct{ to, from *int }{
		{&o.Hidden, &own.Hidden}, {&o.Inner, &own.Inner}, {&o.Experts, &own.Experts},
		{&o.PerToken, &own.PerToken}, {&o.Layers, &own.Layers},
	} {
		if *x.from != 0 {
			*x.to = *x.from
		}
	}
	if err := checkRanks(o.Ranks); err != nil {
		return err
	}
	if err := o.Check(); err != nil {
		return cli.UsageError("%w", err)
	}
	return nil
}

func printExperts(w io.Writer, r *fleetbench.ExpertReport) {
	fmt.Fprintf(w, "%s: %d of %d experts, %d layers, rows of %d elements; ", r.Name, r.PerToken,
		r.Experts, r.Layers, r.Hidden)
	fmt.Fprintf(w, "%d rows a rank, %d ranks a node\n\n", r.Rows, r.RanksPerNode)
	fmt.Fprintf(w, "%-6s %8s %8s %7s %8s | %9s %9s %9s %9s | %9s %9s %9s %9s %9s\n", "", "most",
		"weights", "visits", "of them", "MB within", "MB to", "messages", "GB of", "experts",
		"dispatch", "combine", "step", "rows a")
	fmt.Fprintf(w, "%-6s %8s %8s %7s %8s | %9s %9s %9s %9s | %9s %9s %9s %9s %9s\n", "ranks",
		"experts", "GB", "a row", "far", "node", "others", "", "fleet", "ms", "ms", "ms", "ms",
		"s, rank")
	for i := range r.Fleets {
		f := &r.Fleets[i]
		near, far := f.NearBytes, f.FarBytes
		fmt.Fprintf(w, "%-6d %8d %8.2f %7.2f %8.2f | %9.1f %9.1f %9.0f %9.2f | %9.2f %9.2f %9.2f "+
			"%9.2f %9.0f\n", f.Ranks, f.MostExperts, f.WeightGB, f.Visits, f.Far,
			(near.Dispatch+near.Combine)/1e6, (far.Dispatch+far.Combine)/1e6,
			f.NearMessages+f.FarMessages, float64(f.Ranks)*f.Bytes()/1e9, f.ExpertsUS/1e3,
			f.DispatchUS/1e3, f.CombineUS/1e3, f.StepUS()/1e3, float64(r.Rows)/f.StepUS()*1e6)
	}
	fmt.Fprintf(w, "\nBytes and messages are those that a rank sends in a step. "+
		"The step is shortest with %d ranks.\n", r.Best)
	fmt.Fprintf(w, "\n%-9s %-14s %8s\n", "growth", "", "power")
	for _, g := range r.Growth {
		fmt.Fprintf(w, "%-9s %-14s %8.2f\n", g.Kind, g.Figure, g.Power)
	}
}
