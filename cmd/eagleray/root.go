package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// newRoot builds the command tree. started is set when a command line was understood: errors before
// that are mistakes in it.
func newRoot(started *bool) *cobra.Command {
	root := &cobra.Command{
		Use:   "eagleray",
		Short: "Serve and batch-run large language models, on one machine or a Ray cluster",
		Long: `eagleray serves large language models over OpenAI's API. Models are folders in Hugging Face
layout or Hub repos; without a model argument it runs a tiny built-in one that explains Go's
standard library. It needs Linux, and computes on CPUs today.

  eagleray serve                          serve the built-in model at http://127.0.0.1:8000
  eagleray serve ./Qwen3-0.6B -tp 2       serve a folder with two worker processes
  eagleray chat                           talk to a model in the terminal
  eagleray generate "What does os.Open do?"
  eagleray pull Qwen/Qwen3-0.6B           download a model; list and rm are about what is there
  eagleray bench serve                    measure a running server
  eagleray doctor                         check this machine, or a cluster, before it hurts

Flags have vLLM's names. Each can also be set in a file (--config file.yaml) or by an environment
variable: EAGLERAY_MAX_MODEL_LEN=4096 is --max-model-len 4096.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			*started = true
			cli.UseCores()
		},
	}
	root.SetGlobalNormalizationFunc(config.Normalize)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return cli.UsageError("%w (see %s --help)", config.FlagError(c.Flags(), err),
			c.CommandPath())
	})
	root.AddCommand(newServe(), newGenerate(), newChat(), newComplete(), newBench(), newRunBatch(),
		newRoute(), newDoctor(), newPull(), newList(), newRemove(), newCompat(), newCollectEnv(),
		newVersion(), newWorker(), newCopy(), newMan())
	cli.Group(root)
	versionFlag(root)
	completions(root)
	shortHelp(root)
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			cli.Group(c)
		}
	}
	return root
}

// versionFlag makes --version and -v print what the verb version does. Cobra's own way to another
// text is a template, with which the linker keeps every method there is: 2.5 MB of them.
func versionFlag(root *cobra.Command) {
	asked := root.Flags().BoolP("version", "v", false, "print the version")
	run := root.RunE
	root.RunE = func(c *cobra.Command, args []string) error {
		if !*asked {
			return run(c, args)
		}
		_, err := fmt.Fprintln(c.OutOrStdout(), versionText())
		return err
	}
}
