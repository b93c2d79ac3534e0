// Package builtintest has variants of the built-in model for tests.
package builtintest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// OtherWeights writes a file of the built-in weights with the first two layers in each other's
// place. builtin is the path of package builtin from the test's folder.
func OtherWeights(t testing.TB, builtin string) (path string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(builtin, "go-std-tiny", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	// The names of the header are as long as before.
	for _, swap := range [][2]string{{".layers.0.", ".layers.x."}, {".layers.1.", ".layers.0."},
		{".layers.x.", ".layers.1."}} {
		raw = bytes.ReplaceAll(raw, []byte(swap[0]), []byte(swap[1]))
	}
	path = filepath.Join(t.TempDir(), "other.safetensors")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
