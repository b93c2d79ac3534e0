package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPage holds docs/figures.md to the files that it is written from.
func TestPage(t *testing.T) {
	want, err := page("../..")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/figures.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/figures.md is not what go run ./scripts/figures writes")
	}
}

// TestMistakes refuses files from which a table would come out wrong.
func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		`{"title":"t","machine":"m","command":"c","columns":["a","b"],"rows":[["1"]]}`:   "row 0 has 1 cells",
		`{"title":"t","machine":"m","columns":["a"],"rows":[["1"]]}`:                     "are needed",
		`{"title":"t","machine":"m","command":"c","columns":["a"],"row":[["1"]]}`:        `unknown field "row"`,
		`{"title":"t","machine":"m","command":"c","columns":["a"],"rows":[["1"]],"a":1}`: `unknown field "a"`,
	} {
		name := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := read(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
