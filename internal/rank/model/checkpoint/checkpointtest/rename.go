// Package checkpointtest changes checkpoints for tests.
package checkpointtest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Copy is a copy of a model's folder, in whose model.safetensors each old name of a tensor, or part
// of one, is the new one after it. Names are written with their quotation marks.
func Copy(t testing.TB, folder string, oldnew ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "model.safetensors")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	end := 8 + int(binary.LittleEndian.Uint64(b))
	header := strings.NewReplacer(oldnew...).Replace(string(b[8:end]))
	if header == string(b[8:end]) {
		t.Fatalf("no tensor of %s has a name of %q", folder, oldnew)
	}
	renamed := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	renamed = append(append(renamed, header...), b[end:]...)
	if err := os.WriteFile(path, renamed, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
