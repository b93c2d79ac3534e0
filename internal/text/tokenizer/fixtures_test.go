package tokenizer

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/sys/fixtures"
)

// fixtureCase is what Hugging Face's own library did with a text.
type fixtureCase struct {
	Text               string  `json:"text"`
	IDs                []int32 `json:"ids"`
	IDsSpecial         []int32 `json:"ids_special"`
	Decoded            string  `json:"decoded"`
	DecodedSkipSpecial *string `json:"decoded_skip_special"`
}

// publishedNames are the published tokenizers among the external fixtures.
var publishedNames = []string{"gpt2", "qwen3"}

func loadPublished(t testing.TB, name string) (*Tokenizer, []fixtureCase) {
	t.Helper()
	dir := filepath.Join(fixtures.Dir(t), "tokenizers", name)
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok, readLines[fixtureCase](t, filepath.Join(dir, "cases.jsonl"))
}

func TestMatchesHuggingFace(t *testing.T) {
	for _, name := range publishedNames {
		t.Run(name, func(t *testing.T) {
			tok, cases := loadPublished(t, name)
			bad := 0
			for _, c := range cases {
				if err := checkCase(tok, c); err != "" {
					bad++
					t.Errorf("text %.80q: %s", c.Text, err)
				}
				if bad == 20 {
					t.Fatal("too many mismatches")
				}
			}
			if len(cases) < 1000 {
				t.Fatalf("only %d cases", len(cases))
			}
		})
	}
}

func checkCase(tok *Tokenizer, c fixtureCase) string {
	if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDs) {
		return "ids differ"
	}
	special := c.IDsSpecial
	if special == nil {
		special = c.IDs
	}
	if got := tok.Encode(c.Text, true); !slices.Equal(got, special) {
		return "ids with special tokens differ"
	}
	if got := tok.Decode(c.IDs, false); got != c.Decoded {
		return "decoded text differs: " + got
	}
	skipped := c.Decoded
	if c.DecodedSkipSpecial != nil {
		skipped = *c.DecodedSkipSpecial
	}
	if got := tok.Decode(c.IDs, true); got != skipped {
		return "decoded text without special tokens differs: " + got
	}
	return ""
}

func loadPublishedOnly(t testing.TB, name string) *Tokenizer {
	t.Helper()
	tok, err := Load(filepath.Join(fixtures.Dir(t), "tokenizers", name))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}
