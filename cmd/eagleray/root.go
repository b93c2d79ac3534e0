package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/group/gpus"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// verb is a command of the program. One that describes the others needs them all in the tree.
type verb struct {
	name      string
	build     func() *cobra.Command
	describes bool
}

func verbs() []verb {
	return []verb{
		{name: "serve", build: newServe}, {name: "generate", build: newGenerate},
		{name: "chat", build: newChat}, {name: "complete", build: newComplete},
		{name: "bench", build: newBench}, {name: "run-batch", build: newRunBatch},
		{name: "route", build: newRoute}, {name: "doctor", build: newDoctor},
		{name: "pull", build: newPull}, {name: "list", build: newList},
		{name: "rm", build: newRemove}, {name: "compat", build: newCompat, describes: true},
		{name: "collect-env", build: newCollectEnv}, {name: "version", build: newVersion},
		{name: launch.Verb, build: newWorker}, {name: "copy", build: newCopy},
		{name: gpus.Verb, build: newCUDA},
		{name: "man", build: newMan, describes: true},
	}
}

// rootFor builds the tree for a command line: with the verb that is its first word alone, where it
// is one. The flags of all others would be half of the program's time to start, and of a rank's.
func rootFor(started *bool, args []string) *cobra.Command {
	all := verbs()
	if len(args) > 0 {
		i := slices.IndexFunc(all, func(v verb) bool { return v.name == args[0] && !v.describes })
		if i >= 0 {
			return rootWith(started, all[i:i+1])
		}
	}
	root := rootWith(started, all)
	completions(root)
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			cli.Group(c)
		}
	}
	return root
}

// rootWith builds a tree of these verbs. started is set when a command line was understood: errors
// before that are mistakes in it.
func rootWith(started *bool, verbs []verb) *cobra.Command {
	root := &cobra.Command{
		Use:   "eagleray",
		Short: "Serve and batch-run large language models, on one machine or a Ray cluster",
		Long: `eagleray serves large language models over OpenAI's API. Models are folders in Hugging Face
layout or Hub repos; without a model argument it runs a tiny built-in one that explains Go's
standard library. It needs Linux, and computes on CPUs. CUDA (--device cuda): right on the one GPU
that it ran on, an H200, and slow there.

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
	for _, v := range verbs {
		root.AddCommand(v.build())
	}
	cli.Group(root)
	versionFlag(root)
	shortHelp(root)
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
