package constrainbench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/sys/fixtures"
)

func TestRespace(t *testing.T) {
	for in, want := range map[string]string{
		`{"b":[1,2.50,{}],"a":{"x":null,"y":"é\n\""}}`: `{"b": [1, 2.50, {}], "a": {"x": null, "y": "é\n\""}}`,
		`[]`:        `[]`,
		`[[],true]`: `[[], true]`,
		`"\u00e9"`:  `"é"`,
	} {
		if got, err := respace([]byte(in)); got != want || err != nil {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
}

// TestRun goes through one schema that compiles and one that does not.
func TestRun(t *testing.T) {
	tokenizer := filepath.Join(fixtures.Dir(t), "tokenizers", "qwen3")
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a.json", `{"schema": {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]},
		"tests": [{"valid": true, "data": {"a": 1, "b": ["x"]}}, {"valid": false, "data": {"a": "1"}},
		{"valid": true, "data": {"b": 1, "a": 2}}]}`)
	write("b.json", `{"schema": {"type": 7}, "tests": []}`)
	r, err := Run(Options{Schemas: dir, Tokenizer: tokenizer, Vocab: 151936})
	if err != nil {
		t.Fatal(err)
	}
	if r.Schemas != 2 || r.Compiled != 1 || r.Verdicts.ValidAccepted != 1 || r.Vocab != 151936 ||
		r.Verdicts.InvalidRefused != 1 || r.Verdicts.ValidRefused != 1 || len(r.Wrong) != 1 {
		t.Errorf("%+v", r)
	}
	if r.Cold.Count == 0 || r.Cold.Count != r.Warm.Count || r.FirstMask.P50 < r.Compile.P50 {
		t.Errorf("%+v", r)
	}
	if svg := string(Plot(&r)); !strings.Contains(svg, "cold: p50") {
		t.Errorf("picture %q", svg)
	}
	if r, err = Run(Options{Schemas: dir, Tokenizer: tokenizer, AnyOrder: true}); err != nil ||
		len(r.Wrong) > 0 {
		t.Errorf("in any order: %+v, %v", r.Verdicts, err)
	}
	if _, err := Run(Options{Schemas: t.TempDir(), Tokenizer: tokenizer}); err == nil {
		t.Error("an empty directory is measured")
	}
}
