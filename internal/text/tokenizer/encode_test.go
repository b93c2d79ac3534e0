package tokenizer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The expected ids are worked out by hand from the rules of BPE: "▁the" begins as ▁ t h e; the
// first merge in rank order is "▁ t", then "h e", then "▁t he".
func TestByteFallback(t *testing.T) {
	tok := mustParse(t, llamaStyle())
	const bytes, chars = 3, 259
	tests := []struct {
		text string
		want []int32
	}{
		{"", nil},
		{"the", []int32{chars + 7}},
		{"the the", []int32{chars + 7, chars + 7}},
		// ▁▁the: "▁ t" outranks "▁ ▁"
		{" the", []int32{chars + 0, chars + 7}},
		// ▁▁▁the: the first two ▁ merge
		{"  the", []int32{chars + 9, chars + 7}},
		// ▁▁▁▁a: "▁ a" outranks "▁ ▁"
		{"   a", []int32{chars + 9, chars + 0, chars + 8}},
		{"    ", []int32{chars + 11, chars + 0}},              // five marks
		{"hat", []int32{chars + 0, chars + 2, chars + 10}},    // ▁ h at
		{"tat", []int32{chars + 5, chars + 10}},               // ▁t at
		{"\n", []int32{chars + 0, bytes + 0x0a}},              //
		{"é", []int32{chars + 0, bytes + 0xc3, bytes + 0xa9}}, //
		// an added token: no mark is put before it
		{"<s>", []int32{1}},
		{"a</s>the", []int32{chars + 8, 2, chars + 7}},                 // each part gets its mark
		{"a </s> the", []int32{chars + 8, chars, 2, chars, chars + 7}}, // and keeps its spaces
	}
	for _, test := range tests {
		if got := tok.Encode(test.text, false); !slices.Equal(got, test.want) {
			t.Errorf("Encode(%q) = %v, want %v", test.text, got, test.want)
		}
		withBOS := append([]int32{1}, test.want...)
		if got := tok.Encode(test.text, true); !slices.Equal(got, withBOS) {
			t.Errorf("Encode(%q) with special tokens = %v, want %v", test.text, got, withBOS)
		}
	}
	if !tok.model.(*bpe).cutWords {
		t.Error("words are not cut although no merge crosses a word mark")
	}
}

func TestUnknownTokens(t *testing.T) {
	tests := []struct {
		name string
		more object
		text string
		want string
	}{
		{"dropped without unk_token", nil, "axyb", "a|b"},
		{"one each", object{"unk_token": "?"}, "axyb", "a|?|?|b"},
		{"fused", object{"unk_token": "?", "fuse_unk": true}, "xyaxyb", "?|a|?|b"},
		{"at the end", object{"unk_token": "?", "fuse_unk": true}, "axy", "a|?"},
		{"prefix and suffix", object{"continuing_subword_prefix": "", "end_of_word_suffix": ""},
			"ab", "a|b"},
	}
	for _, test := range tests {
		tok := mustParse(t, object{"model": model("ab?", nil, test.more)})
		if got := tokens(tok, test.text); got != test.want {
			t.Errorf("%s: %q gives %q, want %q", test.name, test.text, got, test.want)
		}
	}
}

// With an incomplete set of byte tokens a character falls back as a whole or not at all.
func TestIncompleteByteFallback(t *testing.T) {
	m := object{"type": "BPE", "byte_fallback": true, "unk_token": "?", "merges": []string{},
		"vocab": object{"?": 0, "a": 1, "<0xC3>": 2, "<0xA9>": 3}}
	tok := mustParse(t, object{"model": m})
	if got, want := tokens(tok, "aéaèa"), "a|<0xC3>|<0xA9>|a|?|a"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSubwordPrefixAndSuffix(t *testing.T) {
	m := object{"type": "BPE", "continuing_subword_prefix": "##", "merges": [][]string{{"a",
		"##b"}},
		"vocab": object{"a": 0, "##b": 1, "ab": 2, "##a": 3}}
	if got := tokens(mustParse(t, object{"model": m}), "abab"); got != "ab|##a|##b" {
		t.Errorf("prefix: got %q", got)
	}
	m = object{"type": "BPE", "end_of_word_suffix": "</w>", "merges": []string{"a b</w>"},
		"vocab": object{"a": 0, "b</w>": 1, "ab</w>": 2, "b": 3}}
	if got := tokens(mustParse(t, object{"model": m}), "abab"); got != "a|b|ab</w>" {
		t.Errorf("suffix: got %q", got)
	}
}

func TestIgnoreMerges(t *testing.T) {
	m := model("abc", []string{"a b"}, nil)
	m["vocab"].(object)["abc"] = 9
	plain := mustParse(t, object{"model": m})
	if got := tokens(plain, "abc"); got != "ab|c" {
		t.Errorf("with merges: %q", got)
	}
	m["ignore_merges"] = true
	direct := mustParse(t, object{"model": m, "added_tokens": []object{added(10, "cab", false,
		object{"single_word": true})}})
	if got := tokens(direct, "abc"); got != "abc" {
		t.Errorf("without merges: %q", got)
	}
	// "xcab" is no single word, and the added token is not in the model's vocabulary.
	if got := tokens(direct, "cabcab"); got != "c|ab|c|ab" {
		t.Errorf("added token used by the model: %q", got)
	}
}

func TestAddedTokens(t *testing.T) {
	tests := []struct {
		name   string
		tokens []object
		lower  bool
		text   string
		want   string
	}{
		{"longest first", []object{added(90, "ab", false, nil), added(91, "abc", false, nil)},
			false, "abcab", "abc|ab"},
		{"leftmost first", []object{added(90, "ab", false, nil), added(91, "bcd", false, nil)},
			false, "abcd", "ab|c|d"},
		{"single word", []object{added(90, "ab", false, object{"single_word": true})}, false,
			"ab abc cab ab", "ab| |a|b|c| |c|a|b| |ab"},
		{"single word by letters of Unicode", []object{added(90, "ab", false,
			object{"single_word": true})}, false, "éab ab", "é|a|b| |ab"},
		{"a refused match hides shorter ones", []object{added(90, "abc", false,
			object{"single_word": true}), added(91, "b", false, nil)}, false, "abcd", "a|b|c|d"},
		{"lstrip", []object{added(90, "ab", false, object{"lstrip": true})}, false, "c  ab c",
			"c|ab| |c"},
		{"rstrip", []object{added(90, "ab", false, object{"rstrip": true})}, false, "c  ab  c",
			"c| | |ab|c"},
		{"lstrip after rstrip", []object{added(90, "ab", false, object{"rstrip": true}), added(91,
			"cd", false, object{"lstrip": true})}, false, "ab  cd", "ab|cd"},
		{"as written", []object{added(90, "AB", false, nil)}, true, "ABab", "AB|a|b"},
		{"normalized", []object{added(90, "AB", false, object{"normalized": true})}, true, "ABab",
			"AB|AB"},
		{"none", nil, false, "ab", "a|b"},
		{"empty", []object{added(90, "", false, nil)}, false, "ab", "a|b"},
	}
	for _, test := range tests {
		file := object{"model": model("abcdé ", nil, nil), "added_tokens": test.tokens}
		if test.lower {
			file["normalizer"] = object{"type": "Lowercase"}
		}
		if got := tokens(mustParse(t, file), test.text); got != test.want {
			t.Errorf("%s: %q gives %q, want %q", test.name, test.text, got, test.want)
		}
	}
}

func TestPostProcessors(t *testing.T) {
	bert := object{"type": "BertProcessing", "sep": []any{"b", 1}, "cls": []any{"a", 0}}
	roberta := object{"type": "RobertaProcessing", "sep": []any{"b", 1}, "cls": []any{"a", 0},
		"trim_offsets": true, "add_prefix_space": true}
	level := object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false}
	special := object{"a": object{"id": "a", "ids": []int{0, 1}, "tokens": []string{"a", "b"}}}
	twice := object{"type": "TemplateProcessing", "special_tokens": special, "pair": []object{},
		"single": []object{
			{"Sequence": object{"id": "A"}}, {"SpecialToken": object{"id": "a"}},
			{"Sequence": object{"id": "A"}}}}
	tests := []struct {
		name           string
		section        any
		plain, special []int32
	}{
		{"none", nil, []int32{2}, []int32{2}},
		{"byte level", level, []int32{2}, []int32{2}},
		{"bert", bert, []int32{2}, []int32{0, 2, 1}},
		{"roberta", roberta, []int32{2}, []int32{0, 2, 1}},
		{"sequence", sequence("processors", level, bert), []int32{2}, []int32{0, 2, 1}},
		{"text twice", twice, []int32{2, 2}, []int32{2, 0, 1, 2}},
	}
	for _, test := range tests {
		tok := mustParse(t, object{"model": model("abc", nil, nil), "post_processor": test.section})
		if got := tok.Encode("c", false); !slices.Equal(got, test.plain) {
			t.Errorf("%s: %v without special tokens, want %v", test.name, got, test.plain)
		}
		if got := tok.Encode("c", true); !slices.Equal(got, test.special) {
			t.Errorf("%s: %v with special tokens, want %v", test.name, got, test.special)
		}
	}
}

// randomModel returns a model with random merges over few letters, so that merges overlap a lot.
func randomModel(rng *rand.Rand, t testing.TB) *Tokenizer {
	var merges []string
	known := []string{"a", "b", "c", "▁"}
	seen := map[string]bool{"a": true, "b": true, "c": true, "▁": true}
	for range 40 {
		l, r := known[rng.IntN(len(known))], known[rng.IntN(len(known))]
		if seen[l+r] || len(l+r) > 12 {
			continue
		}
		seen[l+r] = true
		known = append(known, l+r)
		merges = append(merges, l+" "+r)
	}
	return mustParse(t, object{"model": model("abc▁", merges, nil)})
}

// naiveBPE merges by the definition: the first of the pairs that rank first, until none is left.
func naiveBPE(m *bpe, text string) []int32 {
	ids := m.symbols(nil, text, new(scratch))
	for {
		best, at := noMerge, -1
		for i := 0; i+1 < len(ids); i++ {
			if v := m.merges.get(ids[i], ids[i+1]); v < best {
				best, at = v, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = int32(uint32(best))
		ids = slices.Delete(ids, at+1, at+2)
	}
}

func TestMergingAgreesWithDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		tok := randomModel(rng, t)
		m := tok.model.(*bpe)
		for range 30 {
			var b strings.Builder
			for range 1 + rng.IntN(120) {
				b.WriteString([]string{"a", "b", "c", "▁", "a", "b"}[rng.IntN(6)])
			}
			text := b.String()
			want := naiveBPE(m, text)
			heap := m.symbols(nil, text, new(scratch))
			heap = heap[:m.mergeHeap(heap, new(scratch))]
			if !slices.Equal(heap, want) {
				t.Fatalf("round %d: heap gives %v for %q, want %v", round, heap, text, want)
			}
			if scan := m.symbols(nil, text, new(scratch)); len(scan) <= maxScanned {
				if scan = scan[:m.mergeScan(scan)]; !slices.Equal(scan, want) {
					t.Fatalf("round %d: scan gives %v for %q, want %v", round, scan, text, want)
				}
			}
			if got := tok.Encode(text, false); !slices.Equal(got, want) {
				t.Fatalf("round %d (words cut: %v): %v for %q, want %v", round, m.cutWords, got,
					text, want)
			}
		}
	}
	// Models where words can be cut are rare among random ones. Here they can, but only if the
	// unknown character leaves a token behind.
	for _, unknown := range []object{nil, {"unk_token": "c"}, {"unk_token": "c",
		"fuse_unk": true}} {
		tok := mustParse(t, object{"model": model("abc▁", []string{"▁ a", "▁ ▁", "a b", "▁▁ ▁▁",
			"▁a b", "b c"}, unknown)})
		if tok.model.(*bpe).cutWords != (unknown != nil) {
			t.Fatalf("words are cut: %v, with %v", tok.model.(*bpe).cutWords, unknown)
		}
		for range 500 {
			var b strings.Builder
			for range 1 + rng.IntN(60) {
				b.WriteString([]string{"a", "b", "c", "▁", "▁", "x"}[rng.IntN(6)])
			}
			if got, want := tok.Encode(b.String(), false), naiveBPE(tok.model.(*bpe),
				b.String()); !slices.Equal(got, want) {
				t.Fatalf("%q gives %v, want %v", b.String(), got, want)
			}
		}
	}
}

// A merge that is listed twice has the rank of the later line.
func TestRepeatedMerge(t *testing.T) {
	m := object{"type": "BPE", "vocab": object{"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4},
		"merges": []string{"a b", "b c", "a b"}}
	if got := tokens(mustParse(t, object{"model": m}), "abc"); got != "a|bc" {
		t.Errorf("got %q", got)
	}
}

func TestInvalidTextIsReadAsReplacementCharacters(t *testing.T) {
	tok := loadTiny(t)
	for _, text := range []string{"a\xffb", "\xe4\xbd", "x\xf0\x9f\x98y", "\xc3\x28",
		"\xed\xa0\x80"} {
		want := tok.Encode(strings.ToValidUTF8(text, "\uFFFD"), false)
		if text == "\xed\xa0\x80" { // three maximal subparts, where ToValidUTF8 joins the run
			want = tok.Encode("\uFFFD\uFFFD\uFFFD", false)
		}
		if got := tok.Encode(text, false); !slices.Equal(got, want) {
			t.Errorf("%q gives %v, want %v", text, got, want)
		}
	}
}

// Time must grow no faster than n log n. The limit is far above what is needed, and far below what
// a quadratic step would take.
func TestLongInputs(t *testing.T) {
	level := loadTiny(t)
	llama := mustParse(t, llamaStyle())
	strip := mustParse(t, object{"model": model("ab ", nil, nil),
		"added_tokens": []object{added(5, "ab", false, object{"lstrip": true, "rstrip": true,
			"single_word": true})}})
	for _, unit := range []string{"a", " ", "\n", "\u0301", "<", "ab ", " \n", "1", "漢", "a ", "'",
		"<|im_start|", "é", "e\u0301"} {
		size := 1 << 18
		if unit == "a" {
			size = 1 << 20
		} else if testing.Short() {
			size = 1 << 16
		}
		text := strings.Repeat(unit, size/len(unit))
		for name, tok := range map[string]*Tokenizer{"byte level": level, "byte fallback": llama,
			"added": strip} {
			begin := time.Now()
			ids := tok.Encode(text, true)
			if took := time.Since(begin); took > 4*time.Second {
				t.Errorf("%s: %d bytes of %q took %v", name, size, unit, took)
			}
			begin = time.Now()
			tok.Decode(ids, false)
			if took := time.Since(begin); took > 4*time.Second {
				t.Errorf("%s: decoding %d bytes of %q took %v", name, size, unit, took)
			}
		}
	}
}

func TestConcurrentEncode(t *testing.T) {
	tok := loadTiny(t)
	texts := make([]string, 50)
	want := make([][]int32, len(texts))
	for i := range texts {
		texts[i] = fmt.Sprintf("func (t *T%d) Name%d() string { return %q }\n\t// %x", i, i*i,
			strings.Repeat("ab ", i), i*7919)
		want[i] = tok.Encode(texts[i], true)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var ids []int32
			for range 40 {
				for i, text := range texts {
					if ids = tok.AppendEncode(ids[:0], text, true); !slices.Equal(ids, want[i]) {
						t.Errorf("%q gives %v, want %v", text, ids, want[i])
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func FuzzRoundTrip(f *testing.F) {
	tiny := loadTiny(f)
	llama := mustParse(f, llamaStyle())
	for _, s := range []string{"", "Hello, world", " the  \n\n the", "é漢😀", "<|im_start|>user",
		"a\x00b", "don't DON'T 12345"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = validText(text)
		ids := tiny.Encode(text, false)
		// The tokenizer composes characters, and nothing else is lost.
		if got, want := tiny.Decode(ids, false), normalize(tiny.normalizers, text,
			new(work)); got != want && !strings.Contains(text, "<|") {
			t.Fatalf("%q comes back as %q", text, got)
		}
		checkStream(t, tiny, ids, len(ids)/3, false)
		checkStream(t, tiny, ids, len(ids)/2, true)
		if ids = llama.Encode(text, false); strings.Contains(text, "▁") || strings.Contains(text,
			"<") || text == "" {
			return
		}
		if got := llama.Decode(ids, false); got != text {
			t.Fatalf("%q comes back as %q", text, got)
		}
		checkStream(t, llama, ids, len(ids)/2, false)
	})
}
