package tokenizer

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// sourceRules are the rules of a model of the fixtures.
func sourceRules(t testing.TB) []byte {
	t.Helper()
	f, err := readSentencePiece([]byte(readSource(t, "sp-unigram/tokenizer.model")))
	if err != nil {
		t.Fatal(err)
	}
	return f.charsmap
}

func TestCharsmap(t *testing.T) {
	m, err := parseCharsmap(sourceRules(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, short, long string }{
		{"Ａb", "A", "A"}, {"x", "", ""}, {"", "", ""}, {"e\u0301\u0327", "é", "ȩ́"},
		{"e\u0301x", "é", "é"}, {"\u00adx", "", ""}, {"\x00", "", ""},
	} {
		short, long := m.find(c.text)
		if short.text != c.short || long.text != c.long || (c.text != "" && c.text[0] == 0xc2) !=
			(short.size > 0 && short.text == "") {
			t.Errorf("%q: %+v and %+v", c.text, short, long)
		}
	}
}

// FuzzCharsmap: a map made to mislead changes a text in some way, and nothing else.
func FuzzCharsmap(f *testing.F) {
	f.Add(sourceRules(f), "Ａe\u0301\u0327 x")
	f.Add([]byte{8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 'a', 0}, "a")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		m, err := parseCharsmap(data)
		if err != nil {
			return
		}
		text = strings.ToValidUTF8(text, "")
		n := &sentenceNormalizer{rules: m, trim: true}
		for _, got := range []string{m.byGraphemes(text, new(work)), n.normalize(text,
			new(work))} {
			if !utf8.ValidString(got) {
				t.Fatalf("%q becomes %q", text, got)
			}
		}
	})
}
