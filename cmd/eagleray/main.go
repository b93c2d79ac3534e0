// Command eagleray serves and batch-runs large language models.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/eagleray/eagleray/internal/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// The first signal asks commands to end; from then on a second one kills.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// Exit codes; a command that a signal ended exits as a shell expects.
const (
	exitError       = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	started := false
	root := newRoot(&started)
	if c, _, err := root.Find(args); err == nil {
		args = config.Expand(c.Flags(), args)
	}
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "eagleray: interrupted")
		return exitInterrupted
	}
	fmt.Fprintln(os.Stderr, "eagleray:", err)
	var mistake *config.UsageError
	if !started || errors.As(err, &mistake) {
		return exitUsage
	}
	return exitError
}
