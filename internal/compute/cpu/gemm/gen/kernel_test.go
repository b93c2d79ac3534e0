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

// Encodings made by the GNU assembler of each instruction and form of address of AMX.
func TestTileEncoding(t *testing.T) {
	for want, write := range map[string]func(w *tileWriter){
		"c4 e2 78 49 00":       (*tileWriter).configure,
		"c4 e2 7b 49 d8":       func(w *tileWriter) { w.zero(3) },
		"c4 e2 7b 4b 24 16":    func(w *tileWriter) { w.load(4, upperX) },
		"c4 c2 7b 4b 2c 10":    func(w *tileWriter) { w.load(5, lowerX) },
		"c4 a2 7b 4b 34 0f":    func(w *tileWriter) { w.load(6, weights) },
		"c4 a2 7b 4b 7c 0f 40": func(w *tileWriter) { w.load(7, weights.right()) },
		"c4 e2 7b 4b 04 0b":    func(w *tileWriter) { w.load(0, upperSums) },
		"c4 e2 7a 4b 4c 0b 40": func(w *tileWriter) { w.store(1, upperSums.right()) },
		"c4 c2 7a 4b 14 0a":    func(w *tileWriter) { w.store(2, lowerSums) },
		"c4 c2 7a 4b 5c 0a 40": func(w *tileWriter) { w.store(3, lowerSums.right()) },
		"c4 e2 4a 5c c4":       func(w *tileWriter) { w.dot(0, 4, 6) },
		"c4 e2 42 5c dd":       func(w *tileWriter) { w.dot(3, 5, 7) },
	} {
		w := &tileWriter{}
		write(w)
		code, name, _ := strings.Cut(w.String(), "//")
		got := strings.NewReplacer("BYTE $0x", "", ";", "").Replace(code)
		for i, b := range strings.Fields(got) {
			if len(b) == 1 {
				b = "0" + b
			}
			if i*3+2 > len(want) || want[i*3:i*3+2] != b {
				t.Errorf("%s: %s, want %s", strings.TrimSpace(name), got, want)
				break
			}
		}
		if n := len(strings.Fields(got)); n != (len(want)+1)/3 {
			t.Errorf("%s: %d bytes, want %s", strings.TrimSpace(name), n, want)
		}
	}
}
