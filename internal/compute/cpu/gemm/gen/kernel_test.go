package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Encodings made by the GNU assembler, which knows the instruction.
func TestDotEncoding(t *testing.T) {
	for _, c := range []struct{ weights, x, sum, want string }{
		{"Z24", "Z26", "Z0", "62 92 2e 40 52 c0"},
		{"Z25", "Z27", "Z3", "62 92 26 40 52 d9"},
		{"Z24", "Z29", "Z14", "62 12 16 40 52 f0"},
		{"Z25", "Z29", "Z23", "62 82 16 40 52 f9"},
		{"Z1", "Z2", "Z3", "62 f2 6e 48 52 d9"},
		{"Z31", "Z30", "Z29", "62 02 0e 40 52 ef"},
		{"Z9", "Z17", "Z31", "62 42 76 40 52 f9"},
	} {
		var b bytes.Buffer
		w := &writer{Buffer: &b}
		w.dot(c.weights, c.x, c.sum)
		code, _, _ := strings.Cut(b.String(), "//")
		got := strings.NewReplacer("BYTE $0x", "", ";", "").Replace(code)
		if got = strings.Join(strings.Fields(got), " "); got != c.want {
			t.Errorf("VDPBF16PS %s, %s, %s = %s, want %s", c.weights, c.x, c.sum, got, c.want)
		}
	}
}

// The committed files are what the generator writes.
func TestCommittedFiles(t *testing.T) {
	files, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what go run ./gen writes", name)
		}
	}
}
