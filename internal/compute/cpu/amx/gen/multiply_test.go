package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// The committed files are what the generator writes.
func TestCommittedFiles(t *testing.T) {
	for name, write := range files {
		got, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, write()) {
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
		"c4 82 7b 4b 2c 08":    func(w *tileWriter) { w.load(5, second) },
		"c4 82 7b 4b 74 08 40": func(w *tileWriter) { w.load(6, second.right()) },
		"c4 e2 7b 4b 04 0b":    func(w *tileWriter) { w.load(0, upperSums) },
		"c4 e2 7a 4b 4c 0b 40": func(w *tileWriter) { w.store(1, upperSums.right()) },
		"c4 c2 7a 4b 14 0a":    func(w *tileWriter) { w.store(2, lowerSums) },
		"c4 c2 7a 4b 5c 0a 40": func(w *tileWriter) { w.store(3, lowerSums.right()) },
		"c4 e2 4a 5c c4":       func(w *tileWriter) { w.dot(0, 4, 6) },
		"c4 e2 42 5c dd":       func(w *tileWriter) { w.dot(3, 5, 7) },
		"c4 a2 7b 4b 14 0f":    func(w *tileWriter) { w.load(2, codesW) },
		"c4 a2 7b 4b 0c 1e":    func(w *tileWriter) { w.load(1, codesX) },
		"c4 82 7a 4b 04 37":    func(w *tileWriter) { w.store(0, codeSums) },
		"c4 e2 6b 5e c1":       func(w *tileWriter) { w.integers(0, 1, 2) },
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
