package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/api/batch"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// batchRun is what run-batch is asked for beside the engine's flags.
type batchRun struct {
	input, output, tmpDir string
	inFlight              int
}

// newRunBatch answers a file of requests.
func newRunBatch() *cobra.Command {
	cfg := config.Default()
	var b batchRun
	c := &cobra.Command{
		Use:   "run-batch -i INPUT -o OUTPUT [MODEL]",
		Short: "Answer a file of requests, one a line",
		Long: `run-batch answers the requests of a file in the format of OpenAI's Batch API, and writes a line for
each answer as it comes, in no order. What is answered stays answered: the same command line goes on
where an earlier one was ended, however that was. A row that fails has its error in its line.

  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
   "body": {"messages": [{"role": "user", "content": "What does os.Open do?"}]}}

Input and output may be http(s) addresses: the input is fetched (GET) first, the output sent (PUT) at
the end. "-" is standard input, which is read to its end first, and standard output, at the end.

  eagleray run-batch -i in.jsonl -o out.jsonl
  eagleray run-batch -i in.jsonl -o out.jsonl --model ./Qwen3-0.6B -tp 2

Exit codes: 0 every row has its line, 1 some have not, 2 the command line is wrong, 130 it was
interrupted.`,
		Args: cli.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			cli.UseModel(&cfg, args)
			if err := errors.Join(cfg.Validate(), b.validate()); err != nil {
				return err
			}
			printWarnings(cfg.Warnings)
			return b.run(c.Context(), cfg)
		},
	}
	f := c.Flags()
	f.StringVarP(&b.input, "input-file", "i", "",
		"file or http(s) address of the requests, - for standard input")
	f.StringVarP(&b.output, "output-file", "o", "",
		"file or http(s) address for the answers, - for standard output")
	f.StringVar(&b.tmpDir, "output-tmp-dir", "",
		"folder for the answers until they are sent to an http(s) address (default one of this "+
			"user's in the system's folder for temporary files)")
	f.IntVar(&b.inFlight, "max-inflight", 0,
		"most rows that are asked at a time (default twice --max-num-seqs, of each engine)")
	config.Paths(f, config.PathFile, "input-file", "output-file")
	config.Paths(f, config.PathFolder, "output-tmp-dir")
	cli.ModelFlag(f, &cfg)
	cfg.EngineFlags(f)
	cfg.AnswerFlags(f)
	config.DefineKnown(f, vllmBatch, &cfg.Warnings)
	cli.ConfigFlag(c)
	return c
}

// vllmBatch are flags of vLLM's run-batch that are accepted or refused by value.
var vllmBatch = []config.Known{
	{Name: "enable-metrics", Switch: true, Why: "nothing listens: serve has metrics, and batches"},
	{Name: "host", Allowed: []string{config.AnyValue}, Why: "nothing listens"},
	{Name: "port", Allowed: []string{config.AnyValue}, Why: "nothing listens"},
	{Name: "url", Allowed: []string{config.AnyValue}, Why: "nothing listens"},
}

func (b *batchRun) validate() error {
	switch {
	case b.inFlight < 0:
		return cli.UsageError("--max-inflight %d is less than 0", b.inFlight)
	case b.input == "":
		return cli.UsageError("-i, --input-file is required")
	case b.output == "":
		return cli.UsageError("-o, --output-file is required")
	case b.input == b.output && b.input != standard:
		return cli.UsageError("--input-file and --output-file are the same: %s", b.input)
	case b.tmpDir != "" && !isAddress(b.output):
		return cli.UsageError("--output-tmp-dir is for an --output-file that is an http(s) address")
	}
	return nil
}

// run answers the rows and says how many there were.
func (b *batchRun) run(ctx context.Context, cfg config.Config) error {
	in, err := openInput(ctx, b.input)
	if err != nil {
		return fmt.Errorf("--input-file: %w", err)
	}
	defer in.Close()
	out, err := b.place()
	if err != nil {
		return fmt.Errorf("--output-file: %w", err)
	}
	started, shown := time.Now(), newMeter(os.Stderr, "rows")
	defer shown.end()
	stop := func(error) error { return nil }
	file := &batch.Offline{Input: in, Output: out.path,
		MaxLine: int(cfg.Server.MaxRequestBodyBytes),
		Limiter: batch.NewLimiter(cmp.Or(b.inFlight, rowsInFlight(&cfg))),
		Open: func(ctx context.Context) (batch.Do, error) {
			e, err := openEngine(ctx, cfg)
			if err != nil {
				return nil, err
			}
			stop = func(failed error) error {
				if failed == nil {
					awaitStored(ctx, e)
				}
				return e.Stop(context.WithoutCancel(ctx))
			}
			surface, err := newHandler(ctx, cfg, e, nil, nil, kept{}, nil, nil, wire.Limits{})
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context, r *batch.Row) (batch.Answer, error) {
				return surface.Batches.Row(ctx, "", r)
			}, nil
		},
		Progress: func(c batch.Counts) {
			shown.update(c.Completed+c.Failed-c.Before, c.Total-c.Before)
		}}
	counts, err := file.Run(ctx)
	shown.end()
	err = errors.Join(err, stop(err), out.show())
	if answered := counts.Completed + counts.Failed; err != nil {
		if answered > 0 && !out.shown {
			err = fmt.Errorf("%w (%d of %d rows are answered; the same command goes on)", err,
				answered, counts.Total)
		}
		return err
	}
	if err := out.send(ctx); err != nil {
		return fmt.Errorf("--output-file: %w", err)
	}
	fmt.Fprintf(os.Stderr, "%d rows in %.1f s: %d succeeded, %d failed%s\n", counts.Total,
		time.Since(started).Seconds(), counts.Completed, counts.Failed, before(counts.Before))
	return nil
}

// rowsInFlight is how many rows are asked at a time: twice as many as run, so that a row that ends
// is followed at once.
func rowsInFlight(cfg *config.Config) int {
	return 2 * cfg.Schedule.MaxNumSeqs * cfg.Parallel.DataParallelSize
}

func before(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d of them were answered before", n)
}
