// Package cli is what the verbs of eagleray and of eagleray-lab have in common: arguments and
// mistakes in them, --config, files of figures.
package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// UseCores lets goroutines run on all processors that this process may use, and a few more at a
// time: threads that compute spin for a moment between steps, and must not keep HTTP waiting.
func UseCores() {
	const spare = 3
	runtime.GOMAXPROCS(machine.Processors() + spare)
}

// Group makes a command that only holds others: by itself it prints its help.
func Group(c *cobra.Command) {
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
		return UsageError("unknown command %q for %s (%s)", args[0], c.CommandPath(), hint)
	}
}

// UsageError is a mistake in the command line: the program exits with 2.
func UsageError(format string, args ...any) error {
	return &config.UsageError{Err: fmt.Errorf(format, args...)}
}

// Arguments limits how many arguments a command takes, as a usage error.
func Arguments(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return UsageError("%s takes %s, not %d: %q", c.CommandPath(), allowed(least, most),
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

// ModelFlag defines --model, for files and the environment: on a command line the argument is
// shorter.
func ModelFlag(f *pflag.FlagSet, cfg *config.Config) {
	f.StringVar(&cfg.Model.Path, "model", "",
		"folder, Hub repo or bucket (s3://, gs://; default: go-std-tiny, the built-in model)")
	config.Paths(f, config.PathModel, "model")
	config.InGroup(f, "model", config.ModelGroup)
}

// UseModel takes the model from the argument, which wins over --model.
func UseModel(cfg *config.Config, args []string) {
	if len(args) == 1 {
		cfg.Model.Path = args[0]
	}
}

// ConfigFlag adds --config, and applies the file and the environment before the command runs.
func ConfigFlag(c *cobra.Command) {
	c.Flags().String("config", "", "YAML file of flags, such as \"max-model-len: 4096\"")
	config.Paths(c.Flags(), config.PathFile, "config")
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
			return UsageError("--config: %w", err)
		}
		if values, err = config.ParseFile(raw); err != nil {
			return UsageError("--config %s: %w", path, err)
		}
	}
	return config.Fill(f, "--config "+path, values)
}

// Printer prints to a writer a part at a time.
type Printer struct {
	to io.Writer
	// Err is why a part was lost, such as a full disk. Nothing is printed after it.
	Err error
}

// PrintTo returns the Printer to a writer.
func PrintTo(to io.Writer) *Printer { return &Printer{to: to} }

// Write implements io.Writer. It keeps its error to itself.
func (p *Printer) Write(b []byte) (int, error) {
	if p.Err == nil {
		_, p.Err = p.to.Write(b)
	}
	return len(b), nil
}

// WriteJSON writes the figures of a benchmark to a file; no path, no file.
func WriteJSON(path string, figures any) error {
	if path == "" {
		return nil
	}
	raw, err := json.MarshalIndent(figures, "", "    ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("--output-json: %w", err)
	}
	return nil
}
