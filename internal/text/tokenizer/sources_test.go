package tokenizer

import (
	"bufio"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// sourceText is a text of the fixtures: bytes where it is no UTF-8.
type sourceText struct {
	Text  string `json:"text"`
	Bytes []byte `json:"bytes"`
}

// sourceCase is what the library answered for a text; see scripts/make-tokenizer-fixtures.py.
type sourceCase struct {
	IDs     []int32    `json:"ids"`
	Ends    [2][]int32 `json:"ends"`
	Decoded *string    `json:"decoded"`
	Skipped *string    `json:"skipped"`
}

// sourcesDir has the fixtures: those of the repository, or more of them.
func sourcesDir() string {
	if dir := os.Getenv("EAGLERAY_TOKENIZER_CASES"); dir != "" {
		return dir
	}
	return filepath.Join("testdata", "sources")
}

func readLines[T any](t testing.TB, path string) []T {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []T
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		list = append(list, v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

// eachSource runs test for every tokenizer of the fixtures.
func eachSource(t *testing.T, test func(t *testing.T, tok *Tokenizer, texts []string,
	cases []*sourceCase)) {
	t.Helper()
	var texts []string
	for _, s := range readLines[sourceText](t, filepath.Join(sourcesDir(), "texts.jsonl")) {
		if s.Bytes != nil {
			s.Text = string(s.Bytes)
		}
		texts = append(texts, s.Text)
	}
	files, err := filepath.Glob(filepath.Join(sourcesDir(), "*", "cases.jsonl"))
	if err != nil || len(files) < 18 {
		t.Fatalf("%d folders of fixtures, %v", len(files), err)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			tok, err := Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			cases := readLines[*sourceCase](t, file)
			if len(cases) != len(texts) {
				t.Fatalf("%d cases for %d texts", len(cases), len(texts))
			}
			test(t, tok, texts, cases)
		})
	}
}

// TestSources compares every kind of file with the library that it was written by.
func TestSources(t *testing.T) {
	eachSource(t, func(t *testing.T, tok *Tokenizer, texts []string, cases []*sourceCase) {
		equal, bad := 0, 0
		for i, c := range cases {
			if c == nil {
				continue
			}
			if err := checkSource(tok, texts[i], c); err != "" {
				if bad++; bad < 8 {
					t.Errorf("text %.60q: %s", texts[i], err)
				}
				continue
			}
			equal++
		}
		t.Logf("%d of %d equal, %d that the library does not take", equal, equal+bad,
			len(cases)-equal-bad)
	})
}

func checkSource(tok *Tokenizer, text string, c *sourceCase) string {
	got := tok.Encode(text, false)
	if !slices.Equal(got, c.IDs) {
		a, b := names(tok, got), names(tok, c.IDs)
		n := 0
		for n < len(a) && n < len(b) && a[n] == b[n] {
			n++
		}
		return "from token " + string(encoded(a[n:])) + " want " + string(encoded(b[n:]))
	}
	special := slices.Concat(c.Ends[0], c.IDs, c.Ends[1])
	if got := tok.Encode(text, true); !slices.Equal(got, special) {
		return "with special tokens " + string(encoded(got)) + " want " + string(encoded(special))
	}
	decoded := text
	if c.Decoded != nil {
		decoded = *c.Decoded
	}
	if got := tok.Decode(c.IDs, false); got != decoded {
		return "decoded " + string(encoded(got)) + " want " + string(encoded(decoded))
	}
	skipped := decoded
	if c.Skipped != nil {
		skipped = *c.Skipped
	}
	if got := tok.Decode(c.IDs, true); got != skipped {
		return "without special tokens " + string(encoded(got)) + " want " +
			string(encoded(skipped))
	}
	return ""
}

func encoded(v any) []byte {
	data, _ := json.Marshal(v)
	return data
}

func names(tok *Tokenizer, ids []int32) []string {
	var list []string
	for _, id := range ids {
		s, _ := tok.Token(id)
		list = append(list, s)
	}
	return list
}

// TestSourceStreams: token by token comes out what all of them together give.
func TestSourceStreams(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	eachSource(t, func(t *testing.T, tok *Tokenizer, texts []string, cases []*sourceCase) {
		for i, c := range cases {
			if c != nil {
				checkStream(t, tok, c.IDs, len(c.IDs)*(i%4)/4, i%2 == 0)
			}
		}
		for range 500 {
			ids := make([]int32, rng.IntN(12))
			for i := range ids {
				ids[i] = rng.Int32N(int32(tok.VocabSize()))
			}
			checkStream(t, tok, ids, rng.IntN(len(ids)+1), rng.IntN(2) == 0)
		}
	})
}

// TestSourceBytes: what grammars see of tokens, put together, is the text, with the space that some
// tokenizers put in front. Those that normalize are left out.
func TestSourceBytes(t *testing.T) {
	front := map[string]string{"sp-llama": " ", "sp-gemma": "", "tekken": "", "tt-cl100k": "",
		"tt-kimi": "", "tt-llama3": "", "tt-o200k": "", "tt-qwen": ""}
	eachSource(t, func(t *testing.T, tok *Tokenizer, texts []string, cases []*sourceCase) {
		space, ok := front[filepath.Base(t.Name())]
		if !ok {
			return
		}
		compared := 0
		for i, text := range texts {
			var got []byte
			added := false
			for _, id := range tok.Encode(text, false) {
				got = append(got, tok.TokenBytes(id)...)
				added = added || tok.IsAdded(id)
			}
			// A word mark in the text is a space afterwards, and nothing of an empty text is.
			if added || cases[i] == nil || text == "" || strings.Contains(text, wordMark) ||
				!utf8.ValidString(text) {
				continue
			}
			if compared++; string(got) != space+text {
				t.Errorf("%q has the bytes %q", text, got)
			}
		}
		if compared < 60 {
			t.Errorf("only %d texts compared", compared)
		}
	})
}

// TestBytesOfWords: BERT's tokens are words with a space in front, or the rest of one.
func TestBytesOfWords(t *testing.T) {
	tok, err := Open(memory{"vocab.txt": "[UNK]\n[CLS]\n[SEP]\nsea\n##side\n,\n"})
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]string{"sea": " sea", "##side": "side", ",": ","} {
		id, _ := tok.ID(token)
		if got := string(tok.TokenBytes(id)); got != want {
			t.Errorf("%q is %q, want %q", token, got, want)
		}
	}
	if got := tok.Decode(tok.Encode("Seaside, sea", true), true); got != "seaside, sea" {
		t.Errorf("decoded as %q", got)
	}
	pair, err := tok.EncodeTexts(nil, []string{"sea", "side"}, true, nil)
	if want := []int32{1, 3, 2, 0, 2}; err != nil || !slices.Equal(pair.IDs, want) {
		t.Errorf("a pair is %v, %v, want %v", pair.IDs, err, want)
	}
}
