package ray

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A module that is not packed would be missed only on a real cluster.
func TestArchiveHasAllModules(t *testing.T) {
	data, err := archive()
	if err != nil {
		t.Fatal(err)
	}
	packed, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob("python/*.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		name := filepath.Base(path)
		f, err := packed.Open(name)
		if strings.HasSuffix(name, "_test.py") {
			if err == nil {
				t.Errorf("%s is packed", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s is not packed: %v", name, err)
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := got.ReadFrom(f); err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s is packed wrong: %v", name, err)
		}
	}
}
