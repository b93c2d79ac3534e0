package chattemplate

import (
	"path/filepath"
	"testing"
)

// TestLanguage compares what templates of a line or so make with what Python's jinja2 3.1.6 in
// Hugging Face's environment made of them. The first line of the file is the context they share.
func TestLanguage(t *testing.T) {
	cases := readCases(t, filepath.Join("testdata", "language.jsonl"))
	shared := cases[0].Context
	for _, c := range cases[1:] {
		c.Context = shared
		t.Run(c.Case, func(t *testing.T) {
			t.Logf("template %s", c.Template)
			checkCase(t, c.Template, c)
		})
	}
}
