package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/lora/loratest"
)

// TestLoraPath has the commands whose requests come from one place ask an adapter, and refuse flags
// that nothing would come of.
func TestLoraPath(t *testing.T) {
	t.Parallel()
	folder := filepath.Join("..", "..", "testdata", "models", "go-std-tiny")
	raw, err := os.ReadFile(filepath.Join(folder, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	shapes, err := model.Adaptable(cfg)
	if err != nil {
		t.Fatal(err)
	}
	adapter := t.TempDir()
	if err := loratest.Write(adapter, shapes, loratest.Options{Rank: 4, Seed: 1,
		Width: 0.3}); err != nil {
		t.Fatal(err)
	}
	question := []string{"generate", "--raw", "--temperature", "0", "--max-tokens", "12",
		"package main"}
	base, adapted := invoke(t, question, 0, ""), invoke(t, append(question[:6:6],
		"--lora-path", adapter, "package main"), 0, "")
	if base == "" || base == adapted {
		t.Errorf("without an adapter %q, with one %q", base, adapted)
	}
	bench := []string{"bench", "throughput", "--num-prompts", "2", "--input-len", "4",
		"--output-len", "4"}
	invoke(t, append(bench[:len(bench):len(bench)], "--lora-path", adapter), 0, "")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing asks": {append(bench, "--enable-lora"),
			"--enable-lora: say --lora-path"},
		"no folder": {[]string{"generate", "--lora-path", "/no/such/folder", "x"},
			"/no/such/folder"},
		"two ways": {[]string{"generate", "--lora-path", adapter, "--lora-modules", "a=/b", "x"},
			"--lora-modules beside --lora-path"},
		"a server's": {[]string{"chat", "--url", "http://127.0.0.1:1", "--lora-path", adapter},
			"--lora-path with --url"},
	} {
		t.Run(name, func(t *testing.T) {
			code := exitUsage
			if name == "no folder" {
				code = exitError
			}
			invoke(t, c.args, code, c.want)
		})
	}
}

// invoke runs the program and returns what it printed.
func invoke(t *testing.T, args []string, code int, want string) string {
	t.Helper()
	p := command(t, "", args...).start()
	if got := p.exit(); got != code || !strings.Contains(p.err.String(), want) {
		t.Fatalf("%v: exit code %d, want %d; %s", args, got, code, p.err.String())
	}
	return p.out.String()
}
