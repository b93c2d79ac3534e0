package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/queuebench"
	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/stepbench"
	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// newStep measures what everything but the model costs.
func newStep() *cobra.Command {
	cfg := config.Default()
	o := stepBench{cfg: &cfg}
	c := &cobra.Command{
		Use:   "step [MODEL]",
		Short: "Measure the driver's work per step, with ranks that compute nothing",
		Long: `step runs an engine whose ranks answer every plan at once, and prints in microseconds how
long a step keeps the driver's loop busy (host), how long it takes from result to result (step), how
long the output rank is not busy between two steps (gap), and how long a round trip of bare futexes
between two processes takes just before and after (floor). With --http it starts a server with such
a rank in a process of its own (the program eagleray beside this one), and reads as many streams from it.

  eagleray-lab step --running 1,64,256,1024
  eagleray-lab step --running 64 --step-time 1ms --output-json figures.json
  eagleray-lab step --running 256 --http
  eagleray-lab step --running 64 --step-time 200us --trace out.json --trace-picture out.svg`,
		Args: cli.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			cli.UseModel(&cfg, args)
			// A rank in a process of its own, unless asked for otherwise: what it costs is not in
			// the figures.
			cfg.Parallel.Backend = cmp.Or(cfg.Parallel.Backend, "mp")
			if err := cfg.Validate(); err != nil {
				return err
			}
			if o.http && !c.Flags().Changed("steps") {
				o.steps = 8000 // all streams are to begin before the first one ends
			}
			return o.run(c.Context(), args)
		},
	}
	f := c.Flags()
	cli.ModelFlag(f, &cfg)
	f.IntSliceVar(&o.running, "running", []int{1, 64, 256, 1024},
		"requests that decode side by side, one or several numbers")
	f.IntVar(&o.steps, "steps", 2000,
		"steps to measure; with --http (then 8000) the tokens of each stream")
	f.DurationVar(&o.stepTime, "step-time", 0, "how long a step keeps the ranks busy")
	f.BoolVar(&o.http, "http", false, "measure through HTTP")
	f.StringVar(&o.output, "output-json", "",
		"file for the figures: an object, or a list of them for several --running")
	f.StringVar(&o.trace, "trace", "",
		"file for the measured steps as a trace (chrome://tracing, ui.perfetto.dev)")
	f.StringVar(&o.picture, "trace-picture", "", "file for a drawing (SVG) of a few of them")
	cfg.EngineFlags(f)
	cli.ConfigFlag(c)
	return c
}

// stepBench is what the flags of step say.
type stepBench struct {
	cfg      *config.Config
	running  []int
	steps    int
	stepTime time.Duration
	http     bool
	output   string
	// trace and picture are files for the steps one by one.
	trace, picture string
}

func (b *stepBench) run(ctx context.Context, args []string) error {
	if b.steps < 2 {
		return cli.UsageError("--steps %d is less than 2", b.steps)
	}
	if n := b.cfg.Parallel.DataParallelSize; n > 1 && !b.http {
		return cli.UsageError("--data-parallel-size %d: without --http one engine is measured", n)
	}
	if traced := b.trace != "" || b.picture != ""; traced && (b.http || len(b.running) > 1) {
		return cli.UsageError("--trace and --trace-picture are of one run: they take one " +
			"--running, and no --http")
	}
	var figures []any
	for i, n := range b.running {
		if n < 1 {
			return cli.UsageError("--running %d is less than 1", n)
		}
		measure := b.direct
		if b.http {
			measure = b.overHTTP
		}
		r, err := measure(ctx, args, n, i == 0)
		if err != nil {
			return err
		}
		figures = append(figures, r)
	}
	if len(figures) == 1 {
		return cli.WriteJSON(b.output, figures[0])
	}
	return cli.WriteJSON(b.output, figures)
}

func (b *stepBench) direct(ctx context.Context, _ []string, running int, first bool) (any, error) {
	const floorTime = 200 * time.Millisecond
	before, err := queuebench.Floor(queuebench.Options{Duration: floorTime})
	if err != nil {
		return nil, err
	}
	r, err := stepbench.Run(ctx, stepbench.Options{Config: *b.cfg, Running: running, Steps: b.steps,
		StepTime: b.stepTime})
	if err != nil {
		return nil, err
	}
	after, err := queuebench.Floor(queuebench.Options{Duration: floorTime})
	if err != nil {
		return nil, err
	}
	r.FloorUS = (before.P50 + after.P50) / 2
	if first {
		fmt.Println(stepbench.Header)
	}
	fmt.Println(r)
	return r, errors.Join(create("--trace", b.trace, r, stepbench.Trace),
		create("--trace-picture", b.picture, r, stepbench.Picture))
}

// create writes a drawing of a report to the file of a flag; no path, no file.
func create(flag, path string, r *stepbench.Report,
	draw func(*stepbench.Report) ([]byte, error)) error {
	if path == "" {
		return nil
	}
	drawing, err := draw(r)
	if err == nil {
		err = os.WriteFile(path, drawing, 0o644)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}

func (b *stepBench) overHTTP(
	ctx context.Context, model []string, running int, first bool,
) (any, error) {
	program, err := product()
	if err != nil {
		return nil, err
	}
	command := append([]string{program, "bench", "step-server"}, model...)
	command = append(command, "--port", "0", "--log-format", "logfmt",
		"--disable-uvicorn-access-log", "--max-num-seqs", strconv.Itoa(running), "--step-time",
		b.stepTime.String(), "--step-text", stepbench.Marked, "--max-num-batched-tokens",
		strconv.Itoa(max(running, b.cfg.Schedule.MaxNumBatchedTokens)), "--max-model-len",
		strconv.Itoa(b.steps+64), "--served-model-name", "null", "--num-gpu-blocks-override",
		strconv.Itoa(running*(b.steps/b.cfg.Cache.BlockSize+6)), "--distributed-executor-backend",
		b.cfg.Parallel.Backend, "--async-scheduling="+strconv.FormatBool(b.cfg.Schedule.Async),
		"--tensor-parallel-size", strconv.Itoa(b.cfg.Parallel.TensorParallelSize),
		"--pipeline-parallel-size", strconv.Itoa(b.cfg.Parallel.PipelineParallelSize),
		"--data-parallel-size", strconv.Itoa(b.cfg.Parallel.DataParallelSize))
	r, err := stepbench.RunHTTP(ctx, stepbench.HTTPOptions{Command: command, Streams: running,
		Tokens: b.steps})
	if err != nil {
		return nil, err
	}
	if first {
		fmt.Println(stepbench.HTTPHeader)
	}
	fmt.Println(r)
	return r, nil
}

// product is the path of eagleray, which is built beside this program.
func product() (string, error) {
	lab, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	path := filepath.Join(filepath.Dir(lab), "eagleray")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("--http measures the program eagleray beside this one (make "+
			"build): %w", err)
	}
	return path, nil
}
