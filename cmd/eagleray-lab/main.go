// Command eagleray-lab measures the parts of Eagle Ray by themselves: the message queue, the
// driver's work per step, a driver with thousands of ranks, the masks of constrained decoding. It
// is built beside eagleray, and is no part of its packages.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/ops/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code: 2 for a mistake in it, 130 for a command
// that a signal ended.
func run(ctx context.Context, args []string) int {
	understood := false
	root := newRoot(&understood)
	if c, _, err := root.Find(args); err == nil {
		args = config.Expand(c.Flags(), args)
	}
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch mistake := (*config.UsageError)(nil); {
	case err == nil:
		return 0
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "eagleray-lab: interrupted")
		return 130
	case !understood, errors.As(err, &mistake):
		fmt.Fprintln(os.Stderr, "eagleray-lab:", err)
		return 2
	}
	fmt.Fprintln(os.Stderr, "eagleray-lab:", err)
	return 1
}

func newRoot(understood *bool) *cobra.Command {
	root := &cobra.Command{
		Use:   "eagleray-lab",
		Short: "Measure the parts of Eagle Ray by themselves",
		Long: `eagleray-lab measures the parts of Eagle Ray by themselves, each beside a floor of the same run.
eagleray bench measures a server or an engine as its users see it.

  eagleray-lab queue --readers 2
  eagleray-lab rpc --readers 2 --running 256
  eagleray-lab step --running 1,64,256,1024
  eagleray-lab kernels --rows 1,16,512
  eagleray-lab fleet --ranks 8,64,1024
  eagleray-lab fleet experts --model DeepSeek-V3
  eagleray-lab constrain --schemas DIR --tokenizer DIR`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRun: func(*cobra.Command, []string) {
			*understood = true
			cli.UseCores()
		},
	}
	root.SetGlobalNormalizationFunc(config.Normalize)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return cli.UsageError("%w (see %s --help)", config.FlagError(c.Flags(), err),
			c.CommandPath())
	})
	root.AddCommand(newQueue(), newRPC(), newStep(), newKernels(), newFleet(), newConstrain(),
		newQueueReader(), newFleetRank(), newWorker())
	cli.Group(root)
	return root
}

// newWorker is the verb of the ranks of an engine that step measures.
func newWorker() *cobra.Command {
	return &cobra.Command{
		Use:                launch.Verb,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return invited.Main(args, nil)
		},
	}
}
