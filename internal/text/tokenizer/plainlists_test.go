package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/sys/fixtures"
)

// sameModel compares the tables that two readings of a tokenizer.json lead to.
func sameModel(t *testing.T, name string, f, g *file) {
	t.Helper()
	a, errA := newModel(f.model)
	b, errB := newModel(g.model)
	if errA != nil || errB != nil {
		if errA == nil || errB == nil || errA.Error() != errB.Error() {
			t.Errorf("%s: error %v, read as a whole %v", name, errA, errB)
		}
		return
	}
	if !slices.Equal(f.model.vocab.text, g.model.vocab.text) ||
		!slices.Equal(f.model.vocab.origin, g.model.vocab.origin) {
		t.Errorf("%s: the vocabularies differ", name)
	}
	x, isBPE := a.(*bpe)
	if isBPE && !slices.Equal(x.merges.slots, b.(*bpe).merges.slots) {
		t.Errorf("%s: the merges differ", name)
	}
}

// TestPlainLists reads published files by parsePlain, which must accept them, and as a whole.
func TestPlainLists(t *testing.T) {
	folders := []string{tinyModel()}
	for _, name := range publishedNames {
		folders = append(folders, filepath.Join(fixtures.Dir(t), "tokenizers", name))
	}
	for _, folder := range folders {
		data, err := os.ReadFile(filepath.Join(folder, "tokenizer.json"))
		if err != nil {
			t.Fatal(err)
		}
		f, ok := parsePlain(data)
		g, err := parseWhole(data)
		if !ok || err != nil {
			t.Fatalf("%s: plain %v, as a whole: %v", folder, ok, err)
		}
		sameModel(t, folder, f, g)
	}
}

// TestPlainListsDamaged changes each byte of small files to each of some others: what jsonx refuses
// has its error, and what it reads has its tables.
func TestPlainListsDamaged(t *testing.T) {
	accepted := 0
	for _, text := range []string{
		`{"v":[1,{"a":"\"]"}],"model":{"type":"BPE","vocab":{"a":0,"b" : 1, "ab":2,"é\n":10},` +
			"\n         \"merges\":[[\"a\",\"b\"], [ \"a\" , \"b\"]]},\"t\":null}",
		`{"model":{"vocab":{"a":0,"\u0062":1,"ab":2},"merges":["a b"],"continuing_subword_prefix":` +
			`""},"version":"1.0"}`,
		`{"model":{"type":"WordPiece","unk_token":"a","max_input_chars_per_word":9,"vocab":{"a":0}}}`,
		`{"model":{"merges":["a b"],"vocab":{"#version":0,"b":1,"#versionb":2,"a":3,"ab":4}}}`,
		`{"model":{"vocab":{"#version":0,"b":1,"#versionb":2},"merges":["#version b"]}}`,
	} {
		for i := range text {
			for _, c := range []byte("\"\\{}[],: 0a1\n\x01\xc3\xff") {
				data := []byte(text)
				data[i] = c
				f, err := parseFile(data)
				g, wholeErr := parseWhole(data)
				if err != nil || wholeErr != nil {
					if err == nil || wholeErr == nil || err.Error() != wholeErr.Error() {
						t.Errorf("%s: error %v, read as a whole %v", data, err, wholeErr)
					}
					continue
				}
				if f.model.pairs != nil {
					accepted++
				}
				sameModel(t, string(data), f, g)
			}
		}
	}
	if accepted < 500 {
		t.Errorf("parsePlain has accepted %d texts", accepted)
	}
}
