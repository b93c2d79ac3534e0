package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestErrorsAreFound makes starts fail and looks their last lines up in errors.md, as users do.
func TestErrorsAreFound(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "errors.md"))
	if err != nil {
		t.Fatal(err)
	}
	models := t.TempDir()
	other := filepath.Join(models, "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	config := []byte(`{"model_type":"rwkv","architectures":["RwkvForCausalLM"]}`)
	if err := os.WriteFile(filepath.Join(other, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	adapter := filepath.Join(models, "adapter")
	if err := os.Mkdir(adapter, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(adapter, "adapter_config.json"), []byte("{}"),
		0o644); err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	inside := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "```") {
			inside = line == "```errors"
		} else if inside {
			documented[line] = true
		}
	}
	for _, c := range []struct {
		args, text string
		code       int
	}{
		{"--no-such", "… (see … --help)", exitUsage},
		{"--port 99999", "--port … is not a port", exitUsage},
		{"--dtype int3", "--… … is not one of …", exitUsage},
		{"--config /no/such", "--config: …", exitUsage},
		{"/no/such", "model …: …", exitError},
		{"model.gguf", "model …: …", exitError},
		{other, "…: model_type …, architectures … (known: …)", exitError},
		{adapter, "… has no …: …", exitError},
		{"-tp 3", "tensor parallel size … does not divide the … chunks that every sum between " +
			"ranks has", exitUsage},
		{"-pp 5", "each of … pipeline stages needs a layer, and the model has …", exitUsage},
		{"--max-model-len 99999", "--max-model-len … is more than the … positions the model has",
			exitUsage},
		{"--kv-cache-memory-bytes 1k", "the KV cache of … blocks of … tokens " +
			"(…) cannot hold one sequence of --max-model-len …: … bytes are needed",
			exitUsage},
		{"--chat-template /no/such", "--chat-template: …", exitUsage},
		{"-tp 2 --distributed-executor-backend ray --ray-python /no/such", "ray, phase …: …",
			exitError},
	} {
		args := append([]string{"serve"}, strings.Fields(c.args)...)
		if !slices.Contains(args, "--port") {
			args = append(args, "--port", "0")
		}
		code, _, stderr := execute(t, "", args...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		last := strings.TrimPrefix(lines[len(lines)-1], "eagleray: ")
		pattern := strings.ReplaceAll(regexp.QuoteMeta(c.text), "…", ".+")
		if code != c.code || !documented[c.text] || !regexp.MustCompile(pattern).MatchString(last) {
			t.Errorf("%s: exit code %d, %q is documented: %v; last line %q", c.args, code, c.text,
				documented[c.text], last)
		}
	}
}
