package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/kernelbench"
	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// newKernels measures the kernels of the CPU device.
func newKernels() *cobra.Command {
	var o kernelbench.Options
	var shapes []string
	var output string
	c := &cobra.Command{
		Use:   "kernels",
		Short: "Measure the kernels of the CPU device beside the memory and the multipliers",
		Long: `kernels multiplies rows by weights, and attends to a cache, on some threads of this machine. Each
time is printed beside its floor, the greater of two that are measured in turn with it: how long the same
threads take to read the same number of bytes, and how long they take for as many multiplications with
the same instruction in registers. A ratio of 1 is a kernel that nothing can make faster.

  eagleray-lab kernels --shapes 3072x1024 --rows 1,16,512
  eagleray-lab kernels --kernels attention --types bf16 --positions 4096 --rows 1,512
  eagleray-lab kernels --cpu-isa avx2,avx512 --threads 1,2 --output-json figures.json`,
		Args: cli.Arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkKernels(&o, shapes); err != nil {
				return &config.UsageError{Err: err}
			}
			fmt.Println(kernelbench.Header)
			var rows []kernelbench.Row
			err := kernelbench.Measure(c.Context(), o, func(r kernelbench.Row) {
				fmt.Println(r)
				rows = append(rows, r)
			})
			if err != nil {
				return err
			}
			return cli.WriteJSON(output, rows)
		},
	}
	f := c.Flags()
	threads := []int{1}
	if n := machine.Cores(); n > 1 {
		threads = append(threads, n)
	}
	f.StringSliceVar(&o.Kernels, "kernels", kernelbench.Kernels, "product, attention")
	f.StringSliceVar(&o.Types, "types", kernelbench.Types, "how weights, or keys and values, lie "+
		"in memory")
	f.StringSliceVar(&shapes, "shapes", []string{"3072x1024", "65536x1024"},
		"weights, output by input features: in a cache, and beyond it")
	f.IntSliceVar(&o.Rows, "rows", []int{1, 16, 512}, "rows at once")
	f.IntSliceVar(&o.Positions, "positions", []int{4096}, "positions of the sequence of attention")
	f.StringSliceVar(&o.Levels, "cpu-isa", nil, "instruction sets (default: all that there are)")
	f.IntSliceVar(&o.Threads, "threads", threads, "threads, one or several numbers")
	f.IntVar(&o.Rounds, "rounds", 9, "how often each is measured, in turn with its floors")
	f.StringVar(&output, "output-json", "", "file for the figures: a list of the rows")
	cli.ConfigFlag(c)
	return c
}

// checkKernels completes the options, and refuses what cannot be measured.
func checkKernels(o *kernelbench.Options, shapes []string) error {
	for _, s := range shapes {
		out, in, ok := strings.Cut(s, "x")
		n, errN := strconv.Atoi(out)
		k, errK := strconv.Atoi(in)
		if !ok || errN != nil || errK != nil || n < 1 || k < 1 || n*k > 1<<32 {
			return fmt.Errorf("--shapes %q is no matrix such as 3072x1024", s)
		}
		o.Shapes = append(o.Shapes, [2]int{n, k})
	}
	for _, l := range []struct {
		flag   string
		values []int
	}{{"rows", o.Rows}, {"positions", o.Positions}, {"threads", o.Threads},
		{"rounds", []int{o.Rounds}}} {
		if len(l.values) == 0 || slices.Min(l.values) < 1 {
			return fmt.Errorf("--%s %v is less than 1", l.flag, l.values)
		}
	}
	for _, l := range []struct {
		flag           string
		values, wanted []string
	}{{"kernels", o.Kernels, kernelbench.Kernels}, {"types", o.Types, kernelbench.Types}} {
		for _, v := range l.values {
			if !slices.Contains(l.wanted, v) {
				return fmt.Errorf("--%s %q is not one of %s", l.flag, v,
					strings.Join(l.wanted, ", "))
			}
		}
	}
	for _, l := range o.Levels {
		switch set, err := isa.Parse(l); {
		case err != nil:
			return fmt.Errorf("--cpu-isa: %w", err)
		case !isa.Available(set):
			return fmt.Errorf("--cpu-isa %s: this machine does not have it", l)
		}
	}
	return nil
}
