package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// newBenchReport compares results in an HTML file.
func newBenchReport() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "report FILE...",
		Short: "Compare results of benchmarks in one HTML file",
		Long: `report writes an HTML file that shows results side by side: all figures, and the
percentiles of each latency. The files are those of --output-json, --save-result and --append-result, of
eagleray or of vllm bench serve. The report needs no other file and no network.

  eagleray bench report A.json B.json -o report.html`,
		Args: cli.Arguments(1, 32),
		RunE: func(_ *cobra.Command, args []string) error { return writeReport(args, output) },
	}
	c.Flags().StringVarP(&output, "output", "o", "report.html",
		"file to write; - is standard output")
	config.Paths(c.Flags(), config.PathFile, "output")
	return c
}

func writeReport(paths []string, output string) error {
	var results []dashboard.Result
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Clean(path) == filepath.Clean(output) {
			return cli.UsageError("--output %s is one of the results", output)
		}
		results = append(results, dashboard.Result{Name: filepath.Base(path), JSON: raw})
	}
	var report bytes.Buffer
	if err := dashboard.WriteReport(&report, results); err != nil {
		return err
	}
	if output == "-" {
		_, err := os.Stdout.Write(report.Bytes())
		return err
	}
	if err := os.WriteFile(output, report.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}
