package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// spareProcs is how many goroutines may run beside the threads that compute: those spin for a
// moment between steps, and must not keep HTTP waiting.
const spareProcs = 3

// newRoot builds the command tree. started is set when a command line was understood: errors before
// that are mistakes in it.
func newRoot(started *bool) *cobra.Command {
	root := &cobra.Command{
		Use:   "eagleray",
		Short: "Serve and batch-run large language models, on one machine or a Ray cluster",
		Long: `eagleray serves large language models over OpenAI's API. Models are folders in Hugging Face
layout or Hub repos; without a model argument it runs a tiny built-in one that explains Go's
standard library.

  eagleray serve                          serve the built-in model at http://127.0.0.1:8000
  eagleray serve ./Qwen3-0.6B -tp 2       serve a folder with two worker processes
  eagleray chat                           talk to a model in the terminal
  eagleray generate "What does os.Open do?"
  eagleray bench serve                    measure a running server
  eagleray doctor                         check this machine, or a cluster, before it hurts

Flags have vLLM's names. Each can also be set in a file (--config file.yaml) or by an environment
variable: EAGLERAY_MAX_MODEL_LEN=4096 is --max-model-len 4096.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			*started = true
			runtime.GOMAXPROCS(machine.Cores() + spareProcs)
		},
	}
	root.SetGlobalNormalizationFunc(config.Normalize)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError("%w (see %s --help)", config.FlagError(c.Flags(), err), c.CommandPath())
	})
	root.AddCommand(newServe(), newGenerate(), newChat(), newComplete(), newBench(), newRunBatch(), newRoute(),
		newDoctor(), newCollectEnv(), newVersion(), newWorker(), newAttach(), newCopy(),
		newMan())
	group(root)
	versionFlag(root)
	completeModels(root)
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			group(c)
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

// group makes a command that only holds others: by itself it prints its help.
func group(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs
	c.SuggestionsMinimumDistance = 2
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		hint := fmt.Sprintf("see %s --help", c.CommandPath())
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf("did you mean %s?", strings.Join(near, " or "))
		}
		return usageError("unknown command %q for %s (%s)", args[0], c.CommandPath(), hint)
	}
}

func usageError(format string, args ...any) error {
	return &config.UsageError{Err: fmt.Errorf(format, args...)}
}

// arguments limits how many arguments a command takes, as a usage error.
func arguments(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usageError("%s takes %s, not %d: %q", c.CommandPath(), allowed(least, most),
				len(args), args)
		}
		return nil
	}
}

func allowed(least, most int) string {
	switch {
	case most == 0:
		return "no argument"
	case least == most:
		return fmt.Sprintf("%d arguments", most)
	}
	return fmt.Sprintf("%d to %d arguments", least, most)
}

// modelFlag defines --model, for files and the environment: on a command line the argument is
// shorter.
func modelFlag(f *pflag.FlagSet, cfg *config.Config) {
	f.StringVar(&cfg.Model.Path, "model", "", "folder or Hub repo (default: go-std-tiny, the built-in model)")
}

// useModel takes the model from the argument, which wins over --model.
func useModel(cfg *config.Config, args []string) {
	if len(args) == 1 {
		cfg.Model.Path = args[0]
	}
}

// configFlag adds --config, and applies the file and the environment before the command runs.
func configFlag(c *cobra.Command) {
	c.Flags().String("config", "", "YAML file of flags, such as \"max-model-len: 4096\"")
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := applyFile(c.Flags()); err != nil {
			return err
		}
		return run(c, args)
	}
}

func applyFile(f *pflag.FlagSet) error {
	path, err := f.GetString("config")
	if err != nil {
		return err
	}
	if path == "" {
		path = os.Getenv(config.Env + "CONFIG")
	}
	values := map[string][]string{}
	if path != "" {
		raw, err := os.ReadFile(path)
		if err != nil {
			return &config.UsageError{Err: fmt.Errorf("--config: %w", err)}
		}
		if values, err = config.ParseFile(raw); err != nil {
			return &config.UsageError{Err: fmt.Errorf("--config %s: %w", path, err)}
		}
	}
	return config.Fill(f, "--config "+path, values)
}
