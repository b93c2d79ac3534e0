package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/bench"
	"github.com/eagleray/eagleray/cmd/internal/cli"
)

// resultFile are the flags that say where bench serve saves its figures, beside --output-json.
type resultFile struct {
	save, detailed, append bool
	dir, name, label       string
	metadata               []string
}

func (r *resultFile) flags(f *pflag.FlagSet) {
	f.BoolVar(&r.save, "save-result", false, "save the figures in a file named after the run")
	f.BoolVar(&r.detailed, "save-detailed", false, "save what became of each request too")
	f.BoolVar(&r.append, "append-result", false,
		"append the figures to the file, on a line of their own")
	f.StringVar(&r.dir, "result-dir", "", "folder of that file (default: the current one)")
	f.StringVar(&r.name, "result-filename", "", "name of that file")
	f.StringVar(&r.label, "label", "", "beginning of the file's name (default: the backend)")
	f.StringArrayVar(&r.metadata, "metadata", nil,
		"KEY=VALUE saved with the figures; may be given several times")
}

func (r *resultFile) check() error {
	for _, kv := range r.metadata {
		if k, _, ok := strings.Cut(kv, "="); !ok || strings.TrimSpace(k) == "" {
			return cli.UsageError("--metadata %q is not KEY=VALUE", kv)
		}
	}
	return nil
}

// save writes the figures to the files that were asked for.
func (b *benchServe) save(r *bench.Result, model string) error {
	more := map[string]any{}
	if b.result.label != "" {
		more["label"] = b.result.label
	}
	if b.tokenizer != "" {
		more["tokenizer_id"] = b.tokenizer
	}
	for _, kv := range b.result.metadata {
		k, v, _ := strings.Cut(kv, "=")
		more[strings.TrimSpace(k)] = strings.TrimSpace(v)
	}
	figures := figuresOf(r, b.backend, model, b.data.Prompts, more, b.result.detailed)
	if err := cli.WriteJSON(b.output, figures); err != nil {
		return err
	}
	if !b.result.save && !b.result.append {
		return nil
	}
	return b.writeResult(figures, b.fileName(model, time.Now()))
}

// figuresOf are the members of a saved result: what was measured when, what more is said of it, and
// the figures.
func figuresOf(r *bench.Result, backend, model string, prompts int, more map[string]any,
	detailed bool) map[string]any {
	figures := map[string]any{"date": time.Now().Format(resultTime), "backend": backend,
		"endpoint_type": backend, "label": nil,
		"model_id": model, "tokenizer_id": model, "num_prompts": prompts}
	maps.Copy(figures, more)
	maps.Copy(figures, r.JSON(detailed))
	return figures
}

func (b *benchServe) writeResult(figures map[string]any, path string) error {
	if b.result.dir != "" {
		if err := os.MkdirAll(b.result.dir, 0o755); err != nil {
			return fmt.Errorf("--result-dir: %w", err)
		}
		path = filepath.Join(b.result.dir, path)
	}
	line, err := json.Marshal(figures)
	if err != nil {
		return err
	}
	if !b.result.append {
		return os.WriteFile(path, line, 0o644)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("--append-result: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		line = append([]byte("\n"), line...)
	}
	if _, err := f.Write(line); err != nil {
		return fmt.Errorf("--append-result: %w", err)
	}
	return f.Close()
}

// resultTime is how vLLM writes the time of a run.
const resultTime = "20060102-150405"

// fileName is vLLM's: {label}-{rate}qps[-concurrency{N}]-{model}-{time}.json.
func (b *benchServe) fileName(model string, now time.Time) string {
	if b.result.name != "" {
		return b.result.name
	}
	label := b.result.label
	if label == "" {
		label = b.backend
	}
	// As Python prints them: 10.0, 0.5, inf.
	rate := strings.ToLower(strings.TrimPrefix(fmt.Sprint(b.rate), "+"))
	if !strings.ContainsAny(rate, ".ei") {
		rate += ".0"
	}
	load := rate + "qps"
	if b.rampUp != "" {
		load = fmt.Sprintf("ramp-up-%s-%dqps-%dqps", b.rampUp, b.rampStart, b.rampEnd)
	}
	if b.concurrency > 0 {
		load += fmt.Sprintf("-concurrency%d", b.concurrency)
	}
	return fmt.Sprintf("%s-%s-%s-%s.json", label, load, filepath.Base(model),
		now.Format(resultTime))
}
