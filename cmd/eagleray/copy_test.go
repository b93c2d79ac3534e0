package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestCopy: what an init container leaves can be run, a second time too, with the Python package
// where the image has one.
func TestCopy(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		p := command(t, "", "copy", folder)
		if p.start(); p.exit() != 0 {
			t.Fatal(p.err.String())
		}
	}
	program := filepath.Join(folder, "eagleray")
	c := exec.Command(program, "version")
	c.Env = append(os.Environ(), asProgram+"=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("the copy: %v: %s", err, out)
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}

	image := t.TempDir()
	for path, text := range map[string]string{"bin/eagleray": "a program",
		"share/eagleray/python/eagleray/__init__.py": "",
		"share/eagleray/python/eagleray/serve/x.py":  "x"} {
		path = filepath.Join(image, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyTo(folder, filepath.Join(image, "bin/eagleray")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{"eagleray": 0o755,
		"python/eagleray/__init__.py": 0o644, "python/eagleray/serve/x.py": 0o644} {
		info, err := os.Stat(filepath.Join(folder, path))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if err := copyTo(folder, filepath.Join(image, "bin/none")); err == nil {
		t.Error("a program that is not there is copied")
	}
}
