// Command eagleray serves and batch-runs large language models.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/ops/config"
	_ "github.com/eagleray/eagleray/internal/sys/linuxonly"
)

func main() {
	ctx, stop := newSignals()
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// Exit codes; a command that a signal ended exits as a shell expects.
const (
	exitError       = 1
	exitUsage       = 2
	exitCut         = 3 // a server ended requests before they were done
	exitInterrupted = 130
)

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	started := false
	root := rootFor(&started, args)
	if completes(args) {
		args = completionArgs(root, args)
	} else if c, _, err := root.Find(args); err == nil {
		if topic, asked := helpTopic(args); asked {
			return helpExitCode(explain(c, topic, os.Stdout))
		}
		args = config.Expand(c.Flags(), args)
	}
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		complain("interrupted")
		return exitInterrupted
	}
	if logged := (*loggedError)(nil); !errors.As(err, &logged) {
		complain(err)
	}
	if errors.Is(err, errCut) {
		return exitCut
	}
	var mistake *config.UsageError
	if !started || errors.As(err, &mistake) {
		return exitUsage
	}
	return exitError
}

// helpExitCode returns the exit code of a help that was printed, or of an unknown topic.
func helpExitCode(err error) int {
	if err != nil {
		complain(err)
		return exitUsage
	}
	return 0
}

// complain prints the last line. A standard error that nothing reads does not keep the program from
// its end.
func complain(what any) {
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		fmt.Fprintln(os.Stderr, "eagleray:", what)
	}()
	select {
	case <-printed:
	case <-time.After(time.Second):
	}
}
