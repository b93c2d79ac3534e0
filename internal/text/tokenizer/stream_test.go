package tokenizer

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// referenceDecode is decode_chain of Hugging Face's tokenizers as it is written there: every step
// maps the list of all tokens.
func referenceDecode(t testing.TB, tok *Tokenizer, section json.RawMessage, ids []int32,
	skipSpecial bool) string {
	t.Helper()
	steps, err := parseDecoder(section)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, id := range ids {
		if s, ok := tok.Token(id); ok && !(skipSpecial && tok.IsSpecial(id)) {
			list = append(list, s)
		}
	}
	if len(steps) == 0 {
		return strings.Join(list, " ")
	}
	for _, step := range steps {
		list = referenceStep(step, list)
	}
	return strings.Join(list, "")
}

func referenceStep(step decoderStep, list []string) []string {
	var out []string
	switch step.kind {
	case "Replace", "Strip":
		return mapPieces(list, step.rewrite)
	case "Fuse":
		return []string{strings.Join(list, "")}
	case "ByteLevel":
		var all []byte
		for _, s := range list {
			all = appendFromByteAlphabet(all, s)
		}
		return []string{validText(string(all))}
	case "Metaspace":
		for i, s := range list {
			with := " "
			if i == 0 && step.space.prepend != prependNever {
				with = ""
			}
			out = append(out, strings.ReplaceAll(s, step.space.replacement, with))
		}
		return out
	case "ByteFallback":
		var run []byte
		end := func() {
			if utf8.Valid(run) && len(run) > 0 {
				out = append(out, string(run))
			} else {
				for range run {
					out = append(out, "\uFFFD")
				}
			}
			run = nil
		}
		for _, s := range list {
			if b, ok := fallbackByte(s); ok {
				run = append(run, b)
				continue
			}
			end()
			out = append(out, s)
		}
		end()
	}
	return out
}

// checkStream splits ids into prompt and continuation and compares the stream with Decode.
func checkStream(t testing.TB, tok *Tokenizer, ids []int32, cut int, skipSpecial bool) {
	t.Helper()
	s := tok.NewStream(ids[:cut], skipSpecial)
	var b strings.Builder
	for _, id := range ids[cut:] {
		part := s.Push(id)
		if !utf8.ValidString(part) {
			t.Fatalf("Push returned half a character: %q", part)
		}
		b.WriteString(part)
	}
	b.WriteString(s.Flush())
	before, all := tok.Decode(ids[:cut], skipSpecial), tok.Decode(ids, skipSpecial)
	if want := all[commonPrefix(before, all):]; b.String() != want {
		t.Fatalf("stream gives %q, want %q (prompt %q, ids %v, cut %d)", b.String(), want, before,
			ids, cut)
	}
	if s.Push(ids0(ids)) != "" || s.Flush() != "" {
		t.Fatal("a flushed stream returns text")
	}
}

func ids0(ids []int32) int32 {
	if len(ids) == 0 {
		return 0
	}
	return ids[0]
}

// commonPrefix returns the length of the longest prefix of whole characters that a and b share.
func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) {
		r, size := utf8.DecodeRuneInString(a[n:])
		if s, _ := utf8.DecodeRuneInString(b[n:]); r != s {
			break
		}
		n += size
	}
	return n
}

// decoderSections are decoders of published models and unusual combinations of all steps.
func decoderSections() map[string]object {
	replace := object{"type": "Replace", "pattern": object{"String": "▁"}, "content": " "}
	regex := object{"type": "Replace", "pattern": object{"Regex": "a+|▁"}, "content": "<>"}
	fallback := object{"type": "ByteFallback"}
	fuse := object{"type": "Fuse"}
	level := object{"type": "ByteLevel"}
	strip := func(start, stop int) object {
		return object{"type": "Strip", "content": " ", "start": start, "stop": stop}
	}
	long := object{"type": "Replace", "pattern": object{"String": "aab"}, "content": "[x]"}
	return map[string]object{
		"llama 2": sequence("decoders", replace, fallback, fuse, strip(1, 0)),
		"gemma":   sequence("decoders", replace, fallback, fuse),
		"gpt-2":   level,
		"none":    nil,
		"metaspace": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
			"split": true},
		"metaspace never": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never",
			"split": false},
		"fallback metaspace": sequence("decoders", fallback, object{"type": "Metaspace",
			"replacement": "▁", "add_prefix_space": true}),
		"strip each":     sequence("decoders", replace, strip(1, 1), fuse),
		"strip whole":    sequence("decoders", replace, fallback, fuse, strip(2, 2)),
		"strip late":     sequence("decoders", fallback, replace, strip(1, 1)),
		"replace fused":  sequence("decoders", fallback, fuse, long, replace),
		"regex fused":    sequence("decoders", fallback, fuse, regex),
		"regex each":     sequence("decoders", regex, fallback, fuse),
		"level replace":  sequence("decoders", level, long, strip(1, 1)),
		"replace level":  sequence("decoders", replace, level),
		"fuse level":     sequence("decoders", fuse, level),
		"fallback level": sequence("decoders", fallback, level, replace),
		"fuse fallback":  sequence("decoders", fuse, fallback),
		"nested":         sequence("decoders", sequence("decoders", replace, fallback), fuse),
	}
}

func TestDecodersAgreeWithReference(t *testing.T) {
	rng, rounds := rand.New(rand.NewPCG(3, 4)), 3000
	if testing.Short() {
		rounds = 600
	}
	for name, section := range decoderSections() {
		file := llamaStyle()
		vocab := file["model"].(object)["vocab"].(object)
		for _, token := range []string{"Ġ", "Ã", "©", "ä", "½", "ł", "aa", "b", "Ġa", " ", "▁aa",
			"aab"} {
			vocab[token] = len(vocab)
		}
		file["decoder"] = section
		tok := mustParse(t, file)
		var raw json.RawMessage
		if section != nil {
			raw = encodeJSON(t, section)
		}
		for range rounds {
			ids := make([]int32, rng.IntN(9))
			for i := range ids {
				switch rng.IntN(4) {
				case 0:
					ids[i] = 3 + []int32{0xe4, 0xbd, 0xa0, 0x0a, 0xc3, 0xff, 0x41}[rng.IntN(7)]
				case 1:
					ids[i] = rng.Int32N(3)
				default:
					ids[i] = 259 + rng.Int32N(int32(tok.VocabSize())-259)
				}
			}
			skip := rng.IntN(2) == 0
			if got, want := tok.Decode(ids, skip), referenceDecode(t, tok, raw, ids,
				skip); got != want {
				t.Fatalf("%s: Decode(%v) = %q, want %q", name, ids, got, want)
			}
			checkStream(t, tok, ids, rng.IntN(len(ids)+1), skip)
		}
	}
}

func TestDecodeByHand(t *testing.T) {
	tok := mustParse(t, llamaStyle())
	const bytes, chars = 3, 259
	tests := []struct {
		ids  []int32
		skip bool
		want string
	}{
		{nil, false, ""},
		{[]int32{chars + 7}, false, "the"},
		{[]int32{chars + 7, chars + 7}, false, "the the"},
		{[]int32{1, chars + 7}, false, "<s> the"},
		{[]int32{1, chars + 7, 2}, true, "the"},
		{[]int32{chars, bytes + 0xe4, bytes + 0xbd, bytes + 0xa0}, false, "你"},
		{[]int32{chars, bytes + 0xe4, bytes + 0xbd}, false, "\uFFFD\uFFFD"}, // one for each byte
		// of the whole run
		{[]int32{chars, bytes + 0xe4, bytes + 0xbd, bytes + 0xa0, bytes + 0xff}, false,
			"\uFFFD\uFFFD\uFFFD\uFFFD"},
		{[]int32{-1, 1 << 30, chars + 7, 100000}, false, "the"},
	}
	for _, test := range tests {
		if got := tok.Decode(test.ids, test.skip); got != test.want {
			t.Errorf("Decode(%v, %v) = %q, want %q", test.ids, test.skip, got, test.want)
		}
	}
}

func TestStreamByHand(t *testing.T) {
	tok := mustParse(t, llamaStyle())
	const bytes, chars = 3, 259
	type step struct {
		id   int32
		want string
	}
	tests := []struct {
		name   string
		prompt []int32
		steps  []step
		flush  string
	}{
		{"from nothing", nil, []step{{chars + 7, "the"}, {chars + 8, " a"}}, ""},
		{"after a prompt", []int32{1, chars + 7}, []step{{chars + 7, " the"}}, ""},
		{"bytes wait for the end of their run", []int32{chars}, []step{
			{bytes + 0xe4, ""}, {bytes + 0xbd, ""}, {bytes + 0xa0, ""}, {chars + 4, "你a"}}, ""},
		{"the prompt's last byte is not repeated", []int32{chars, bytes + 0x0a}, []step{{chars + 4,
			"a"}}, ""},
		{"a character begun in the prompt", []int32{chars, bytes + 0xe4, bytes + 0xbd}, []step{
			{bytes + 0xa0, ""}, {chars + 4, "你a"}}, ""},
		{"never completed", []int32{chars}, []step{{bytes + 0xe4, ""}}, "\uFFFD"},
		{"special tokens are skipped", []int32{chars}, []step{{2, ""}, {chars + 4, "a"}}, ""},
	}
	for _, test := range tests {
		s := tok.NewStream(test.prompt, true)
		for i, step := range test.steps {
			if got := s.Push(step.id); got != step.want {
				t.Errorf("%s: step %d gives %q, want %q", test.name, i, got, step.want)
			}
		}
		if got := s.Flush(); got != test.flush {
			t.Errorf("%s: Flush gives %q, want %q", test.name, got, test.flush)
		}
	}
}

// In a byte-level model the pieces of a character may lie in several tokens.
func TestStreamByteLevel(t *testing.T) {
	tok := loadTiny(t)
	ids := tok.Encode("naïve 你好 😀 e\u0301\u0327 end", false)
	for cut := range len(ids) + 1 {
		checkStream(t, tok, ids, cut, true)
	}
	s := tok.NewStream(nil, true)
	var emitted []string
	for _, id := range ids {
		if part := s.Push(id); part != "" {
			emitted = append(emitted, part)
		}
	}
	if len(emitted) < 8 {
		t.Errorf("the stream holds text back: %q", emitted)
	}
	if !slices.Contains(emitted, "😀") {
		t.Errorf("the emoji did not come out whole: %q", emitted)
	}
}

func TestPublishedStreams(t *testing.T) {
	for _, name := range publishedNames {
		tok, cases := loadPublished(t, name)
		for i, c := range cases {
			checkStream(t, tok, c.IDs, len(c.IDs)*(i%4)/4, i%2 == 0)
		}
	}
}

func TestStreamAllocatesNothing(t *testing.T) {
	llama := mustParse(t, llamaStyle())
	for name, tok := range map[string]*Tokenizer{"byte level": loadTiny(t),
		"byte fallback": llama} {
		ids := tok.Encode("the a the at the", false)
		s := tok.NewStream(ids, true)
		i := 0
		if n := testing.AllocsPerRun(200, func() { s.Push(ids[i%len(ids)]); i++ }); n != 0 {
			t.Errorf("%s: Push allocates %v times", name, n)
		}
	}
}

func TestTokenBytes(t *testing.T) {
	tiny, llama := loadTiny(t), mustParse(t, llamaStyle())
	// Every token of a byte-level model, decoded together, is the bytes put together.
	var all []byte
	var ids []int32
	for id := range int32(tiny.VocabSize()) {
		all = append(all, tiny.TokenBytes(id)...)
		ids = append(ids, id)
	}
	if tiny.Decode(ids, false) != validText(string(all)) {
		t.Error("TokenBytes and Decode disagree")
	}
	tests := []struct {
		token string
		want  string
	}{
		{"▁the", " the"}, {"<0x0A>", "\n"}, {"<0xE4>", "\xe4"}, {"</s>", "</s>"}, {"▁▁", "  "},
		{"t", "t"},
	}
	for _, test := range tests {
		id, ok := llama.ID(test.token)
		if !ok {
			t.Fatalf("no token %q", test.token)
		}
		if got := string(llama.TokenBytes(id)); got != test.want {
			t.Errorf("TokenBytes(%q) = %q, want %q", test.token, got, test.want)
		}
	}
	if llama.TokenBytes(-1) != nil || llama.TokenBytes(1<<20) != nil {
		t.Error("TokenBytes of an unknown id is not nil")
	}
}

func FuzzStream(f *testing.F) {
	toks := []*Tokenizer{loadTiny(f), mustParse(f, llamaStyle())}
	f.Add([]byte{1, 2, 3}, uint8(1), false)
	f.Add([]byte{0xe4, 0xbd, 0xa0, 0xff, 0xc3}, uint8(2), true)
	f.Fuzz(func(t *testing.T, data []byte, cut uint8, skip bool) {
		for _, tok := range toks {
			var ids []int32
			for i, b := range data {
				if i%5 == 4 {
					ids = append(ids, int32(b)*8%int32(tok.VocabSize()+2))
				} else {
					ids = append(ids, int32(b)+3)
				}
			}
			checkStream(t, tok, ids, min(int(cut), len(ids)), skip)
		}
	})
}
