// Command eagleray-cuda is the part of Eagle Ray that uses NVIDIA's GPUs: a dynamic program
// (glibc), for the driver is a library that it loads. It is attached to eagleray, which is static
// and becomes it with the verb cuda.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/executable"
	_ "github.com/eagleray/eagleray/internal/sys/linuxonly"
)

func main() {
	executable.CloseOnExec()
	// A program in memory is called by the number of its descriptor, else.
	_ = os.WriteFile("/proc/self/comm", []byte("eagleray-cuda"), 0)
	os.Exit(run(os.Args[1:]))
}

// program is how the program is called.
const program = "eagleray cuda"

// Exit codes.
const (
	exitError    = 1
	exitUsage    = 2
	exitNoDevice = 3 // no device can be used
)

// run executes one command line and returns the exit code.
func run(args []string) int {
	understood := false
	root := newRoot(&understood)
	if c, _, err := root.Find(args); err == nil {
		args = config.Expand(c.Flags(), args)
	}
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, program+":", err)
	var mistake *config.UsageError
	var none *noDeviceError
	switch {
	case !understood, errors.As(err, &mistake):
		return exitUsage
	case errors.As(err, &none):
		return exitNoDevice
	}
	return exitError
}

func newRoot(understood *bool) *cobra.Command {
	root := &cobra.Command{
		Use:         "eagleray-cuda",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: program},
		Short:       "The part of Eagle Ray that uses NVIDIA's GPUs",
		Long: `cuda is the part of Eagle Ray that uses NVIDIA's GPUs. It needs their driver, and nothing
else of CUDA.

  eagleray cuda probe                     list the GPUs, and what stands in the way of their use
  eagleray cuda probe --json
  eagleray cuda proof                     prove that kernels and models are right, and how fast`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRun:  func(*cobra.Command, []string) { *understood = true },
	}
	root.SetGlobalNormalizationFunc(config.Normalize)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return cli.UsageError("%w (see %s --help)", config.FlagError(c.Flags(), err),
			c.CommandPath())
	})
	root.AddCommand(newProbe(), newProof(), newWorker())
	cli.Group(root)
	return root
}
