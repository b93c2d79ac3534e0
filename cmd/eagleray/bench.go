package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/bench"
	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// newBench groups the benchmarks.
func newBench() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure a running server, or an engine in this process",
		Long: `bench measures as vLLM's benchmarks do: the same options, definitions and printed tables.

  eagleray bench serve --num-prompts 200 --random-input-len 64 --random-output-len 32
  eagleray bench throughput --num-prompts 200 --input-len 64 --output-len 32
  eagleray bench latency --batch-size 1 --input-len 32 --output-len 128
  eagleray bench chaos --seconds 60
  eagleray bench report A.json B.json -o report.html`,
	}
	c.AddCommand(newBenchServe(), newBenchThroughput(), newBenchLatency(), newBenchChaos(),
		newBenchReport(), newStepServer())
	cli.Group(c)
	unknown := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 && slices.Contains(labVerbs, args[0]) {
			return cli.UsageError("bench %s is eagleray-lab %[1]s, a program of its own (make "+
				"build)", args[0])
		}
		return unknown(c, args)
	}
	return c
}

// labVerbs measure parts of the program.
var labVerbs = []string{"queue", "rpc", "step", "fleet", "constrain"}

// datasetFlags defines the flags that shape a dataset.
func datasetFlags(f *pflag.FlagSet, o *bench.DatasetOptions) {
	f.StringVar(&o.Name, "dataset-name", bench.Datasets[0],
		"prompts: "+strings.Join(bench.Datasets, ", "))
	f.StringVar(&o.Path, "dataset-path", "",
		"file of a sharegpt (JSON) or custom (JSON lines with \"prompt\") dataset")
	config.Choices(f, "dataset-name", bench.Datasets...)
	config.Paths(f, config.PathFile, "dataset-path")
	f.IntVar(&o.Prompts, "num-prompts", 1000, "number of prompts")
	f.IntVar(&o.Random.InputLen, "random-input-len", 1024, "random: tokens of each prompt")
	f.IntVar(&o.Random.OutputLen, "random-output-len", 128, "random: tokens of each output")
	f.IntVar(&o.Random.PrefixLen, "random-prefix-len", 0,
		"random: tokens all prompts begin with, on top")
	f.Float64Var(&o.Random.RangeRatio, "random-range-ratio", 0,
		"random: lengths vary by this share of themselves, up and down")
	f.IntVar(&o.PrefixRepetition.PrefixLen, "prefix-repetition-prefix-len", 256,
		"prefix_repetition: tokens of each common beginning")
	f.IntVar(&o.PrefixRepetition.SuffixLen, "prefix-repetition-suffix-len", 256,
		"prefix_repetition: tokens of each prompt after it")
	f.IntVar(&o.PrefixRepetition.Prefixes, "prefix-repetition-num-prefixes", 10,
		"prefix_repetition: number of common beginnings")
	f.IntVar(&o.PrefixRepetition.OutputLen, "prefix-repetition-output-len", 128,
		"prefix_repetition: tokens of each output")
	f.IntVar(&o.ShareGPTOutputLen, "sharegpt-output-len", 0,
		"sharegpt: tokens of each output (default: those of the recorded answer)")
	f.IntVar(&o.CustomOutputLen, "custom-output-len", 256,
		"custom: tokens of each output; -1 takes each line's \"output_tokens\"")
	f.BoolVar(&o.DisableShuffle, "disable-shuffle", false, "keep the order of the dataset")
	f.BoolVar(&o.NoOversample, "no-oversample", false,
		"send a file's prompts once, even if there are fewer than --num-prompts")
	f.IntVar(&o.Vocab, "random-vocab", 1000,
		"without a tokenizer, random prompts are token ids below this")
}

// vllmDatasets are those of vLLM that are not supported here.
var vllmDatasets = []string{"burstgpt", "sonnet", "random-mm", "random-rerank", "hf",
	"custom_audio", "custom_image", "custom_mm",
	"spec_bench", "speed_bench", "timed_trace"}

// checkDataset refuses datasets that cannot be built.
func checkDataset(o *bench.DatasetOptions) error {
	known := slices.Contains(bench.Datasets, o.Name)
	file := o.Name == "sharegpt" || o.Name == "custom"
	switch {
	case slices.Contains(vllmDatasets, o.Name):
		return cli.UsageError("--dataset-name %q is known to vLLM and not supported yet; there "+
			"are %s", o.Name, strings.Join(bench.Datasets, ", "))
	case !known:
		return cli.UsageError("--dataset-name %q is not one of %s", o.Name,
			strings.Join(bench.Datasets, ", "))
	case file && o.Path == "":
		return cli.UsageError("--dataset-name %s needs --dataset-path", o.Name)
	case !file && o.Path != "":
		return cli.UsageError("--dataset-path is not used by --dataset-name %s", o.Name)
	case o.Prompts < 1:
		return cli.UsageError("--num-prompts %d is less than 1", o.Prompts)
	}
	return nil
}

// loadDataset builds the prompts; what is wrong with them is wrong with the flags that shape them.
func loadDataset(o bench.DatasetOptions) ([]bench.Sample, error) {
	samples, err := bench.Load(o)
	if err != nil {
		return nil, cli.UsageError("--dataset-name %s: %w", o.Name, err)
	}
	return samples, nil
}

// vllmBench are flags of vLLM's benchmarks that are accepted or refused by value.
var vllmBench = []config.Known{
	{Name: "profile", Switch: true, Why: "there is no profiler to start"},
	{Name: "use-beam-search", Switch: true, Why: "outputs are sampled"},
	{Name: "hf-subset", Why: "datasets are not downloaded"},
	{Name: "hf-split", Why: "datasets are not downloaded"},
	{Name: "hf-name", Why: "datasets are not downloaded"},
	{Name: "hf-output-len", Why: "datasets are not downloaded"},
	{Name: "skip-chat-template", Allowed: []string{"true"}, Switch: true,
		Why: "prompts are sent as they are"},
	{Name: "async-engine", Allowed: []string{"true"}, Switch: true, Why: "there is one engine"},
}

// vllmBenchServe are those of the benchmark of a server.
var vllmBenchServe = []config.Known{
	{Name: "plot-timeline", Switch: true, Why: "nothing is plotted"},
	{Name: "plot-dataset-stats", Switch: true, Why: "nothing is plotted"},
	{Name: "timeline-itl-thresholds", Allowed: []string{config.AnyValue},
		Why: "nothing is plotted"},
	{Name: "self-timed", Switch: true, Why: "no dataset has times"},
	{Name: "probe-request-rate", Allowed: []string{"0"}, Why: "no probes are sent"},
	{Name: "trust-remote-code", Allowed: []string{"true"}, Switch: true,
		Why: "code in model folders is never run"},
	{Name: "tokenizer-mode", Allowed: []string{"auto", "hf", "slow"},
		Why: "the folder's files decide"},
	{Name: "chat-template-kwargs", Allowed: []string{"{}", ""},
		Why: "prompts are rendered by the server; use --extra-body"},
}

// printWarnings tells which flags had no effect.
func printWarnings(warnings []string) {
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", w)
	}
}
