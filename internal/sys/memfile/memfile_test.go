package memfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/eagleray/eagleray/internal/sys/memfile"
)

// TestSeal: a file is sealed once Seal says so, can be written then, and keeps its size.
func TestSeal(t *testing.T) {
	f, err := memfile.Create("test", 100)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := memfile.Sealed(f); err == nil {
		t.Error("sealed before it was")
	}
	if err := memfile.Seal(f); err != nil {
		t.Fatal(err)
	}
	if err := memfile.Sealed(f); err != nil {
		t.Error(err)
	}
	if _, err := f.WriteAt([]byte("x"), 99); err != nil {
		t.Error(err)
	}
	for _, size := range []int64{0, 200} {
		if err := f.Truncate(size); err == nil {
			t.Errorf("a sealed file of 100 bytes has %d now", size)
		}
	}
	if err := memfile.Seal(f); err == nil {
		t.Error("seals can be added to a sealed file")
	}
}

// TestNoMemoryFile: files of disks have no seals, and no file has a negative size.
func TestNoMemoryFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := memfile.Sealed(f); err == nil {
		t.Error("a file of a folder is sealed")
	}
	if _, err := memfile.Create("test", -1); err == nil {
		t.Error("a file of -1 bytes")
	}
}
