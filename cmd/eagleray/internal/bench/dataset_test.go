package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

func builtinTokenizer(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	raw, err := builtin.Folder().ReadFile("tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func mustLoad(t *testing.T, o DatasetOptions) []Sample {
	t.Helper()
	samples, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	return samples
}

func TestRandomIDs(t *testing.T) {
	o := DatasetOptions{Name: "random", Prompts: 300, Vocab: 50, Seed: 1,
		Random: RandomOptions{InputLen: 10, OutputLen: 4, PrefixLen: 3, RangeRatio: 0.5}}
	made := 0
	o.Progress = func(done, total int) { made = done * total }
	samples := mustLoad(t, o)
	if made != 300*300 {
		t.Errorf("progress ends at %d", made)
	}
	in, out := map[int]int{}, map[int]int{}
	for _, s := range samples {
		if s.Text != "" || s.PromptLen != len(s.Tokens) || !slices.Equal(s.Tokens[:3],
			samples[0].Tokens[:3]) {
			t.Fatalf("sample %+v", s)
		}
		if lo, hi := slices.Min(s.Tokens), slices.Max(s.Tokens); lo < 0 || hi >= 50 {
			t.Fatalf("tokens %v outside the vocabulary", s.Tokens)
		}
		in[s.PromptLen-3]++
		out[s.OutputLen]++
	}
	// Lengths are uniform over 5 to 15 and 2 to 6, ends included.
	for name, x := range map[string]struct {
		got    map[int]int
		lo, hi int
	}{"in": {in, 5, 15}, "out": {out, 2, 6}} {
		for n := range x.got {
			if n < x.lo || n > x.hi {
				t.Errorf("%s: length %d", name, n)
			}
		}
		if len(x.got) != x.hi-x.lo+1 {
			t.Errorf("%s: only lengths %v", name, x.got)
		}
	}
	if !reflect.DeepEqual(samples, mustLoad(t, o)) {
		t.Error("the same seed gives other samples")
	}
	o.Seed = 2
	if reflect.DeepEqual(samples, mustLoad(t, o)) {
		t.Error("another seed gives the same samples")
	}
}

// With a tokenizer prompts are text of about the length asked for, and never hold a special token.
func TestRandomText(t *testing.T) {
	tok := builtinTokenizer(t)
	samples := mustLoad(t, DatasetOptions{Name: "random", Prompts: 40, Tokenizer: tok,
		Random: RandomOptions{InputLen: 64, OutputLen: 4}})
	exact := 0
	for _, s := range samples {
		ids := tok.Encode(s.Text, true)
		if s.Text == "" || len(ids) != s.PromptLen {
			t.Fatalf("text %q has %d tokens, not %d", s.Text, len(ids), s.PromptLen)
		}
		if slices.ContainsFunc(ids, tok.IsSpecial) {
			t.Errorf("text %q has a special token", s.Text)
		}
		if s.PromptLen < 56 || s.PromptLen > 80 {
			t.Errorf("prompt of %d tokens, want about 64", s.PromptLen)
		}
		if s.PromptLen == 64 {
			exact++
		}
	}
	if exact < 25 {
		t.Errorf("only %d of 40 prompts have the exact length", exact)
	}
}

func TestPrefixRepetition(t *testing.T) {
	o := DatasetOptions{Name: "prefix_repetition", Prompts: 23, Vocab: 1000,
		PrefixRepetition: PrefixRepetitionOptions{PrefixLen: 8, SuffixLen: 5, Prefixes: 4,
			OutputLen: 9}}
	groups, whole := map[string]int{}, map[string]bool{}
	for _, s := range mustLoad(t, o) {
		if len(s.Tokens) != 13 || s.OutputLen != 9 {
			t.Fatalf("sample %+v", s)
		}
		groups[fmt.Sprint(s.Tokens[:8])]++
		whole[fmt.Sprint(s.Tokens)] = true
	}
	if len(groups) != 4 || len(whole) != 20 {
		t.Errorf("%d prefixes, %d different prompts; want 4 and 20", len(groups), len(whole))
	}
	for g, n := range groups {
		if n != 5 {
			t.Errorf("prefix %s has %d prompts, want 5", g, n)
		}
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestShareGPT(t *testing.T) {
	tok := builtinTokenizer(t)
	turns := func(in, out string) string {
		return fmt.Sprintf(
			`{"id":"x","conversations":[{"from":"human","value":%q},{"from":"gpt","value":%q}]}`,
			in, out)
	}
	long := strings.Repeat("the quick brown fox ", 400)
	good, answer := "Package strings implements simple functions",
		"to manipulate UTF-8 encoded strings."
	path := write(t, "["+strings.Join([]string{turns(good, answer), turns("a", answer), turns(good,
		"b"), turns(long, answer), turns(good, long), `{"conversations":[{"value":"alone"}]}`,
		`{}`}, ",")+"]")
	o := DatasetOptions{Name: "sharegpt", Path: path, Prompts: 3, Tokenizer: tok}
	samples := mustLoad(t, o)
	want := Sample{Text: good, PromptLen: len(tok.Encode(good, true)),
		OutputLen: len(tok.Encode(answer, true))}
	if len(samples) != 3 || !reflect.DeepEqual(samples[0], want) || !reflect.DeepEqual(samples[2],
		want) {
		t.Errorf("samples %+v, want three times %+v", samples, want)
	}
	o.NoOversample = true
	if n := len(mustLoad(t, o)); n != 1 {
		t.Errorf("%d samples without oversampling, want 1", n)
	}
	// A length of one's own makes the recorded answers irrelevant.
	o.ShareGPTOutputLen = 10
	if n := len(mustLoad(t, o)); n != 3 {
		t.Errorf("%d samples with an output length, want 3", n)
	}
}

func TestCustom(t *testing.T) {
	path := write(
		t, "{\"prompt\":\"one\",\"output_tokens\":3}\n\n{\"prompt\":\"two\",\"output_tokens\":5}\n")
	o := DatasetOptions{Name: "custom", Path: path, Prompts: 2, CustomOutputLen: -1,
		DisableShuffle: true}
	want := []Sample{{Text: "one", OutputLen: 3}, {Text: "two", OutputLen: 5}}
	if got := mustLoad(t, o); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	o.CustomOutputLen, o.Prompts = 7, 5
	if got := mustLoad(t, o); len(got) != 5 || got[0].OutputLen != 7 {
		t.Errorf("%+v", got)
	}
}

func TestDatasetMistakes(t *testing.T) {
	tok := builtinTokenizer(t)
	for want, o := range map[string]DatasetOptions{
		`"hf" is not one of`: {Name: "hf", Prompts: 1},
		"0 prompts":          {Name: "random"},
		"range ratio 1": {Name: "random", Prompts: 1, Vocab: 5,
			Random: RandomOptions{InputLen: 1, OutputLen: 1, RangeRatio: 1}},
		"0 in, 0 before": {Name: "random", Prompts: 1, Vocab: 5,
			Random: RandomOptions{OutputLen: 1}},
		"need a tokenizer": {Name: "random", Prompts: 1, Random: RandomOptions{InputLen: 1,
			OutputLen: 1}},
		"2 prompts are fewer": {Name: "prefix_repetition", Prompts: 2, Vocab: 5,
			PrefixRepetition: PrefixRepetitionOptions{1, 1, 3, 1}},
		"outputs of 0": {Name: "prefix_repetition", Prompts: 2, Vocab: 5,
			PrefixRepetition: PrefixRepetitionOptions{1, 1, 2, 0}},
		"needs a tokenizer": {Name: "sharegpt", Prompts: 1},
		"no such file":      {Name: "sharegpt", Prompts: 1, Tokenizer: tok, Path: "none"},
		"cannot unmarshal": {Name: "sharegpt", Prompts: 1, Tokenizer: tok, Path: write(t,
			"{}")},
		"no conversation": {Name: "sharegpt", Prompts: 1, Tokenizer: tok, Path: write(t,
			"[]")},
		"output length 0": {Name: "custom", Prompts: 1, Path: write(t, "{}")},
		"has no prompt": {Name: "custom", Prompts: 1, CustomOutputLen: 1, Path: write(t,
			"\n")},
		`line 2: no "prompt"`: {Name: "custom", Prompts: 1, CustomOutputLen: 1, Path: write(t,
			"{\"prompt\":\"a\"}\n{}")},
		`line 1: no "output_toke`: {Name: "custom", Prompts: 1, CustomOutputLen: -1,
			Path: write(t, `{"prompt":"a"}`)},
		"line 1: invalid character": {Name: "custom", Prompts: 1, CustomOutputLen: 1, Path: write(t,
			"x")},
	} {
		if s, err := Load(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gave %v, error %v; want %q", o, s, err, want)
		}
	}
}

// Any file is a dataset or an error.
func FuzzDatasetFile(f *testing.F) {
	for _, s := range []string{`[{"conversations":[{"value":"a b c d e"},{"value":"f g h i j"}]}]`,
		`{"prompt":"a","output_tokens":-1}`, "[null]", `{"prompt":1}`} {
		f.Add([]byte(s))
	}
	raw, err := builtin.Folder().ReadFile("tokenizer.json")
	if err != nil {
		f.Fatal(err)
	}
	tok, err := tokenizer.Parse(raw, nil)
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(f.TempDir(), "data")
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"sharegpt", "custom"} {
			samples, err := Load(DatasetOptions{Name: name, Path: path, Prompts: 3,
				CustomOutputLen: -1, Tokenizer: tok})
			for _, s := range samples {
				if s.OutputLen < 1 || s.Text == "" && s.PromptLen > 0 {
					t.Errorf("%s: sample %+v", name, s)
				}
			}
			if err == nil && len(samples) != 3 {
				t.Errorf("%s: %d samples", name, len(samples))
			}
		}
	})
}
