package main

import (
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/internal/group/gpus"
)

// init keeps the main goroutine on the first thread for the verb cuda, which gpus.Become asks for.
func init() {
	if len(os.Args) > 1 && os.Args[1] == gpus.Verb {
		runtime.LockOSThread()
	}
}

// newCUDA is the verb that becomes the second program, which has the help of what follows.
func newCUDA() *cobra.Command {
	return &cobra.Command{
		Use:   gpus.Verb,
		Short: "List NVIDIA's GPUs, and prove what they compute",
		Long: `cuda is the part of eagleray that loads NVIDIA's driver. Ranks with --device cuda are run by it.

  eagleray cuda probe                     list the GPUs, and what stands in the way of their use
  eagleray cuda proof                     prove that kernels and models are right, and how fast
  eagleray cuda probe --help`,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return gpus.Become(args)
		},
	}
}
