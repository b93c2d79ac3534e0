package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/bench"
	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// newBenchThroughput measures how fast an engine gets through a dataset.
func newBenchThroughput() *cobra.Command {
	cfg := config.Default()
	// As in vLLM: what is measured is computing, not remembering.
	cfg.Cache.PrefixCaching = false
	o := bench.DatasetOptions{}
	run := bench.ThroughputOptions{}
	var output string
	var lora oneAdapter
	c := &cobra.Command{
		Use:   "throughput [MODEL]",
		Short: "Measure how fast an engine completes many prompts at once",
		Long: `throughput runs all prompts through an engine in this process, without HTTP, and prints requests and
tokens a second. The prefix cache is off unless asked for.

  eagleray bench throughput --num-prompts 200 --input-len 64 --output-len 32
  eagleray bench throughput ./Qwen3-0.6B -tp 2 --dataset-name sharegpt --dataset-path sharegpt.json`,
		Args: cli.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			cli.UseModel(&cfg, args)
			if c.Flags().Changed("output-len") {
				n := o.Random.OutputLen
				o.ShareGPTOutputLen, o.CustomOutputLen, o.PrefixRepetition.OutputLen = n, n, n
			}
			switch {
			case run.N < 1:
				return cli.UsageError("--n %d is less than 1", run.N)
			case run.Warmups < 0:
				return cli.UsageError("--num-warmups %d is less than 0", run.Warmups)
			}
			if err := errors.Join(checkDataset(&o), lora.apply(&cfg),
				cfg.Validate()); err != nil {
				return err
			}
			return benchEngine(c.Context(), cfg, output, func(e *asking) (report, error) {
				o.Seed, o.Tokenizer = cfg.Model.Seed, e.Info().Tokenizer
				o.Vocab = min(o.Vocab, e.Info().VocabSize)
				if o.Name == "random" || o.Name == "prefix_repetition" {
					o.Tokenizer = nil // the engine takes token ids
				}
				var err error
				if run.Samples, err = loadDataset(o); err != nil {
					return nil, err
				}
				run.Seed = cfg.Model.Seed
				shown := newMeter(os.Stderr, "output tokens")
				defer shown.end()
				run.Progress = shown.update
				return bench.MeasureThroughput(c.Context(), e, run)
			})
		},
	}
	f := c.Flags()
	cli.ModelFlag(f, &cfg)
	datasetFlags(f, &o)
	f.IntVar(&o.Random.InputLen, "input-len", 1024, "random: tokens of each prompt")
	f.IntVar(&o.Random.OutputLen, "output-len", 128, "tokens of each output")
	f.IntVar(&o.Random.PrefixLen, "prefix-len", 0, "random: tokens all prompts begin with, on top")
	f.IntVar(&run.N, "n", 1, "outputs of each prompt")
	f.IntVar(&run.Warmups, "num-warmups", 0,
		"answers to the first prompt before those that are measured")
	f.BoolVar(&run.DisableDetokenize, "disable-detokenize", false, "leave outputs as token ids")
	f.StringVar(&output, "output-json", "", "file for the figures")
	config.Paths(f, config.PathFile, "output-json")
	lora.flag(f)
	cfg.EngineFlags(f)
	config.DefineKnown(f, vllmBench, &cfg.Warnings)
	config.DefineKnown(f, []config.Known{{Name: "backend", Allowed: []string{"vllm"},
		Why: "there is one engine"}}, &cfg.Warnings)
	cli.ConfigFlag(c)
	return c
}

// newBenchLatency measures one batch.
func newBenchLatency() *cobra.Command {
	cfg := config.Default()
	cfg.Cache.PrefixCaching = false
	o := bench.LatencyOptions{}
	var output string
	var lora oneAdapter
	c := &cobra.Command{
		Use:   "latency [MODEL]",
		Short: "Measure how long one batch takes",
		Long: `latency runs the same batch of random prompts again and again in an engine in this process. It also
prints what one decode step takes, how many bytes of weights a second that is, and how that compares with
what the machine reads from memory: the best a step that reads all weights can do.

  eagleray bench latency --batch-size 1 --input-len 32 --output-len 128 --num-iters 10`,
		Args: cli.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			cli.UseModel(&cfg, args)
			for _, x := range []struct {
				flag         string
				value, least int
			}{
				{"input-len", o.InputLen, 1}, {"output-len", o.OutputLen, 1},
				{"batch-size", o.BatchSize, 1}, {"n", o.N, 1}, {"num-iters-warmup", o.Warmups, 0},
				{"num-iters", o.Iterations, 1}, {"read-bytes", o.ReadBytes, 0},
			} {
				if x.value < x.least {
					return cli.UsageError("--%s %d is less than %d", x.flag, x.value, x.least)
				}
			}
			if err := errors.Join(lora.apply(&cfg), cfg.Validate()); err != nil {
				return err
			}
			return benchEngine(c.Context(), cfg, output, func(e *asking) (report, error) {
				if longest := e.Info().MaxModelLen; o.InputLen+o.OutputLen > longest {
					return nil,
						cli.UsageError("--input-len %d and --output-len %d are together more "+
							"than the %d tokens of the model", o.InputLen, o.OutputLen, longest)
				}
				o.Seed = cfg.Model.Seed
				shown := newMeter(os.Stderr, "iterations")
				defer shown.end()
				o.Progress = shown.update
				return bench.MeasureLatency(c.Context(), e, o)
			})
		},
	}
	f := c.Flags()
	cli.ModelFlag(f, &cfg)
	f.IntVar(&o.InputLen, "input-len", 32, "tokens of each prompt")
	f.IntVar(&o.OutputLen, "output-len", 128, "tokens of each output")
	f.IntVar(&o.BatchSize, "batch-size", 8, "prompts in the batch")
	f.IntVar(&o.N, "n", 1, "outputs of each prompt")
	f.IntVar(&o.Warmups, "num-iters-warmup", 10, "runs before those that are measured")
	f.IntVar(&o.Iterations, "num-iters", 30, "runs that are measured")
	f.IntVar(&o.ReadBytes, "read-bytes", 0,
		"memory read between runs for the bandwidth; 0: four last caches, 128 MiB to 1 GiB")
	f.BoolVar(&o.DisableDetokenize, "disable-detokenize", false, "leave outputs as token ids")
	f.StringVar(&output, "output-json", "", "file for the figures")
	config.Paths(f, config.PathFile, "output-json")
	lora.flag(f)
	cfg.EngineFlags(f)
	config.DefineKnown(f, vllmBench, &cfg.Warnings)
	cli.ConfigFlag(c)
	return c
}

// report is what a benchmark of an engine found.
type report interface {
	Print(w io.Writer)
	JSON() map[string]any
}

// benchEngine opens an engine, measures, and shows what was found.
func benchEngine(ctx context.Context, cfg config.Config, output string,
	measure func(e *asking) (report, error)) (err error) {
	printWarnings(cfg.Warnings)
	e, err := openAsking(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop(context.WithoutCancel(ctx))) }()
	found, err := measure(e)
	if err != nil {
		return err
	}
	out := cli.PrintTo(os.Stdout)
	found.Print(out)
	if err := cli.WriteJSON(output, found.JSON()); err != nil {
		return fmt.Errorf("the figures above were not saved: %w", err)
	}
	return out.Err
}
