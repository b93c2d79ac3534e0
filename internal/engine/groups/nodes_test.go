package groups

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestModelSettings tells models apart: by their path, config.json, the names and sizes of their
// weights, and numbers anywhere in these.
func TestModelSettings(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings := func(m config.Model) []config.Setting {
		t.Helper()
		held, err := pinOnNode(&NodeOptions{Config: config.Config{Model: m}})
		if err != nil {
			t.Fatal(err)
		}
		if held != nil {
			defer held.Close()
		}
		return modelSettings(&m, held)
	}
	weights := bytes.Repeat([]byte("weights "), 100_000)
	write("config.json", []byte("{}"))
	write("model.safetensors.index.json", []byte(`{"weight_map": {"a": "model-1.safetensors",
		"b": "small.safetensors", "c": "empty.safetensors"}}`))
	write("model-1.safetensors", weights)
	write("small.safetensors", []byte("x"))
	write("empty.safetensors", nil)
	first := settings(config.Model{Path: dir})
	if len(first) != 3 || first[0].Value != dir {
		t.Errorf("%v", first)
	}
	t.Chdir(filepath.Dir(dir))
	if got := settings(config.Model{Path: filepath.Base(dir)}); !reflect.DeepEqual(got, first) {
		t.Errorf("by a relative path %v, else %v", got, first)
	}
	different := func(what string, name string, content []byte, at int) {
		t.Helper()
		before, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		write(name, content)
		for i, s := range settings(config.Model{Path: dir}) {
			if (s != first[i]) != (i == at) {
				t.Errorf("%s: %v, before %v", what, s, first[i])
			}
		}
		if before != nil {
			write(name, before)
		} else if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	different("config.json", "config.json", []byte("{} "), 1)
	different("another file", "model.safetensors", []byte("x"), 2)
	different("a small file", "small.safetensors", []byte("y"), 2)
	different("the size", "model-1.safetensors", append(weights, 0), 2)
	// Another training changes nearly all numbers; here one of the first, of the last, and one byte
	// of every 8 KB.
	other := bytes.Clone(weights)
	other[0]++
	different("the first number", "model-1.safetensors", other, 2)
	other = bytes.Clone(weights)
	other[len(other)-1]++
	different("the last number", "model-1.safetensors", other, 2)
	other = bytes.Clone(weights)
	for i := 5000; i < len(other); i += 8 << 10 {
		other[i]++
	}
	different("some numbers", "model-1.safetensors", other, 2)

	if got := settings(config.Model{Path: dir, LoadFormat: "dummy"}); len(got) != 2 {
		t.Errorf("dummy weights: %v", got)
	}
	if got := settings(config.Model{}); len(got) != 1 || got[0].Value != "go-std-tiny" {
		t.Errorf("built in: %v", got)
	}
	got := settings(config.Model{Path: "org/name"})
	if len(got) != 1 || got[0].Value != "org/name (no folder there)" {
		t.Errorf("of the Hub: %v", got)
	}
	if err := os.Remove(filepath.Join(dir, "small.safetensors")); err != nil {
		t.Fatal(err)
	}
	if _, err := pinOnNode(
		&NodeOptions{Config: config.Config{Model: config.Model{Path: dir}}}); err == nil ||
		!strings.Contains(err.Error(), "small.safetensors") {
		t.Errorf("without a shard: %v", err)
	}
}

// TestMixedISA warns of nodes that compute differently.
func TestMixedISA(t *testing.T) {
	ranks := []queue.Ready{{Rank: 0, ISA: "avx512"}, {Rank: 1, ISA: "avx512"}}
	if w := MixedISA(ranks); w != "" {
		t.Errorf("equal ranks: %s", w)
	}
	w := MixedISA(append(ranks, queue.Ready{Rank: 2, ISA: "avx2"}))
	if !strings.HasPrefix(w, "rank 0 computes with avx512, rank 2 with avx2: ") {
		t.Errorf("%q", w)
	}
}
