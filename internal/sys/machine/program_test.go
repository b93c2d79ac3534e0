package machine

import (
	"debug/elf"
	"encoding/hex"
	"strings"
	"testing"
)

// TestProgram finds in this test's binary what debug/elf finds.
func TestProgram(t *testing.T) {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	note, err := f.Section(".note.go.buildid").Data()
	if err != nil {
		t.Fatal(err)
	}
	id, err := Program()
	if err != nil || len(id) < 40 || !strings.Contains(hex.EncodeToString(note), id) {
		t.Errorf("%q, %v, want what is in %x", id, err, note)
	}
}
