package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
)

// split runs a pre_tokenizer section over a text.
func split(t testing.TB, section object, text string) []string {
	t.Helper()
	steps, err := parsePreTokenizer(encodeJSON(t, section))
	if err != nil {
		t.Fatal(err)
	}
	pieces := []piece{{text, true}}
	for _, step := range steps {
		var next []piece
		for _, p := range pieces {
			next = step.split(p, next, new(scratch))
		}
		pieces = next
	}
	var out []string
	for _, p := range pieces {
		out = append(out, p.text)
	}
	return out
}

func splitSection(pattern object, behavior string, invert bool) object {
	return object{"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
}

func TestPreTokenizers(t *testing.T) {
	dash := object{"String": "-"}
	dashRegex := object{"Regex": "-"}
	const text = "the-final--countdown"
	tests := []struct {
		name    string
		section object
		text    string
		want    string // joined by "|"
	}{
		// The examples in the documentation of SplitDelimiterBehavior.
		{"removed", splitSection(dash, "Removed", false), text, "the|final|countdown"},
		{"isolated", splitSection(dash, "Isolated", false), text, "the|-|final|-|-|countdown"},
		{"merged with previous", splitSection(dash, "MergedWithPrevious", false), text,
			"the-|final-|-|countdown"},
		{"merged with next", splitSection(dash, "MergedWithNext", false), text,
			"the|-final|-|-countdown"},
		{"contiguous", splitSection(dash, "Contiguous", false), text, "the|-|final|--|countdown"},
		{"regex", splitSection(dashRegex, "MergedWithNext", false), text,
			"the|-final|-|-countdown"},
		{"inverted", splitSection(object{"Regex": `\w+`}, "Removed", true), text,
			"the|final|countdown"},
		{"inverted contiguous", splitSection(object{"Regex": `\w`}, "Contiguous", true), "ab--c",
			"ab|--|c"},
		{"match at both ends", splitSection(dash, "MergedWithPrevious", false), "-a-", "-|a-"},
		// ^ is the start of a line
		{"lines", splitSection(object{"Regex": `^.`}, "Isolated", false), "ab\ncd", "a|b\n|c|d"},
		{"empty matches", splitSection(object{"Regex": `x*`}, "Isolated", false), "axxb", "a|xx|b"},
		{"known pattern removed", splitSection(object{"Regex": patternQwen2}, "Removed", true),
			"a b 12", "a| b| |1|2"},
		{"digits", object{"type": "Digits", "individual_digits": false}, "ab12c3", "ab|12|c|3"},
		{"single digits", object{"type": "Digits", "individual_digits": true}, "ab12c½",
			"ab|1|2|c|½"},
		{"white space split", object{"type": "WhitespaceSplit"}, " a,b  c\u00a0d ", "a,b|c|d"},
		{"white space", object{"type": "Whitespace"}, "Hey friend!  How_are é́ you?!",
			"Hey|friend|!|How_are|é́|you|?!"},
		{"punctuation", object{"type": "Punctuation"}, "Hey $5, «no»", "Hey |$|5|,| |«|no|»"},
		{"punctuation contiguous", object{"type": "Punctuation", "behavior": "Contiguous"}, "a?!b",
			"a|?!|b"},
		{"metaspace", object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
			"split": true}, "Hey my  friend", "▁Hey|▁my|▁|▁friend"},
		{"metaspace has one already", object{"type": "Metaspace", "replacement": "▁",
			"add_prefix_space": true}, " Hey", "▁Hey"},
		{"metaspace never", object{"type": "Metaspace", "replacement": "▁",
			"prepend_scheme": "never", "split": false}, "a b", "a▁b"},
		{"metaspace old never", object{"type": "Metaspace", "replacement": "▁",
			"add_prefix_space": false}, "a b", "a|▁b"},
		{"metaspace first", sequence("pretokenizers", splitSection(dash, "Removed", false),
			object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
				"split": true}), "a-b c", "▁a|b|▁c"},
		{"metaspace first after removal", sequence("pretokenizers", splitSection(dash, "Removed",
			false), object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
			"split": true}), "-b", "b"},
		{"byte level", object{"type": "ByteLevel", "add_prefix_space": true, "use_regex": true},
			"don't é", "Ġdon|'t|ĠÃ©"},
		{"byte level without regex", object{"type": "ByteLevel", "add_prefix_space": false,
			"use_regex": false}, "a b\n", "aĠbĊ"},
		// Falcon's: the byte-level alphabet in the middle.
		{"falcon", sequence("pretokenizers", object{"type": "Punctuation",
			"behavior": "Contiguous"}, object{"type": "ByteLevel", "add_prefix_space": false},
			object{"type": "Digits", "individual_digits": false},
			splitSection(object{"Regex": "[0-9][0-9][0-9]"}, "Isolated", false)), "in 12345?! é",
			"in|Ġ|123|45|?!|ĠÃ©"},
	}
	for _, test := range tests {
		if got := strings.Join(split(t, test.section, test.text), "|"); got != test.want {
			t.Errorf("%s: %q gives %q, want %q", test.name, test.text, got, test.want)
		}
	}
}

// A step that keeps everything must put the text together again.
func TestSplitsCoverTheText(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, behavior := range []string{"Isolated", "MergedWithPrevious", "MergedWithNext",
		"Contiguous"} {
		for _, pattern := range []object{{"String": "a"}, {"Regex": "a|b?"},
			{"Regex": `(?=b)|é+`}} {
			for _, invert := range []bool{false, true} {
				section := splitSection(pattern, behavior, invert)
				for range 200 {
					text := randomText(rng, 12)
					if text == "" {
						continue
					}
					if got := strings.Join(split(t, section, text), ""); got != text {
						t.Fatalf("%v: %q becomes %q", section, text, got)
					}
				}
			}
		}
	}
}

// randomText draws from the characters that the known patterns treat differently.
func randomText(rng *rand.Rand, n int) string {
	const alphabet = "abstrevlmdSTREVLMD'''  " +
		"\t\n\n\r\r\n\u00a0\u2003\u0085ſK.,!-_1٣½²éДж漢字\u0301\u0b95😀ǅ\U0001d7d8\U00016ac0"
	chars := []rune(alphabet)
	var b strings.Builder
	for range rng.IntN(n + 1) {
		b.WriteRune(chars[rng.IntN(len(chars))])
	}
	return b.String()
}

func scannerPieces(sc *scanner, text string) []span { return sc.find(text, nil, new(work)) }

func checkScanner(t *testing.T, expr string, re *regexPattern, text string) {
	t.Helper()
	got := scannerPieces(scannerFor(expr), text)
	want := re.find(text, nil, new(work))
	if !slices.Equal(got, want) {
		t.Fatalf("pattern %s: %q is cut %v, the regular expression cuts %v", expr, text, got, want)
	}
}

func TestScannersAgreeWithRegex(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, expr := range []string{patternGPT2, patternCL100K, patternQwen2} {
		re, err := newRegexPattern(expr)
		if err != nil {
			t.Fatal(err)
		}
		for range 20000 {
			checkScanner(t, expr, re, randomText(rng, 20))
		}
	}
}

func FuzzScanner(f *testing.F) {
	for _, s := range []string{"don't", " \n a", "12345", "'ſ'LL", "\u3000\u3000x",
		"a\r\n\r\nb  "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = validText(text)
		for _, r := range text {
			if unicode.Is(letters16, r) || unicode.Is(numbers16, r) {
				return // package unicode, and with it the engine, does not know them yet
			}
		}
		for _, expr := range []string{patternGPT2, patternCL100K, patternQwen2} {
			re, err := newRegexPattern(expr)
			if err != nil {
				t.Fatal(err)
			}
			checkScanner(t, expr, re, text)
		}
	})
}

func TestUnicode16(t *testing.T) {
	table := planeClasses()
	for _, test := range []struct {
		r    rune
		want uint8
	}{{0x11380, classLetter}, {0x1c89, classLetter}, {0xa7dc, classLetter}, {0x10d40, classNumber},
		{0x1ccf5, classNumber},
		{'a', classLetter}, {'٣', classNumber}, {0x85, classSpace}, {0x200b, classOther}, {0x1f600,
			classOther}} {
		if got, _ := table.at(string(test.r), 0); got != test.want {
			t.Errorf("%U has class %d, want %d", test.r, got, test.want)
		}
	}
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r >= 0xd800 && r < 0xe000 {
			continue
		}
		if got, _ := table.at(string(r), 0); got != classOf(r) {
			t.Fatalf("%U: the table says %d, the definition %d", r, got, classOf(r))
		}
	}
}

// Patterns of published models that run on the general engine. Each is written for Oniguruma; the
// expected pieces follow from reading the pattern.
func TestPublishedPatterns(t *testing.T) {
	const (
		o200k    = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		qwen35   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		deepseek = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" +
			"[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|" +
			"\\s+(?!\\S)|\\s+"
		chinese = "[一-龥\u3040-ゟ゠-ヿ]+"
	)
	tests := []struct{ pattern, text, want string }{
		{o200k, "HelloWorld's 12345 a//\n  x", "Hello|World's| |123|45| a|//\n| | x"},
		{qwen35, "e\u0301a 12 ?!\n", "e\u0301a| |1|2| ?!\n"},
		{deepseek, "a.bc  d?!\n\n e", "a|.bc| | d|?!\n\n| e"},
		{chinese, "ab漢字ひらcd", "ab|漢字ひら|cd"},
	}
	for _, test := range tests {
		got := strings.Join(split(t, splitSection(object{"Regex": test.pattern}, "Isolated", false),
			test.text), "|")
		if got != test.want {
			t.Errorf("%s: %q gives %q, want %q", test.pattern, test.text, got, test.want)
		}
	}
}

// A pattern that backtracks without end must not hold up a request for longer than its time limit.
func TestRegexTimeout(t *testing.T) {
	p, err := newRegexPattern(`(?:a|aa)+$`)
	if err != nil {
		t.Fatal(err)
	}
	if p.re.MatchTimeout != regexTimeout {
		t.Errorf("the time limit is %v", p.re.MatchTimeout)
	}
	p.re.MatchTimeout = 50 * time.Millisecond
	text := strings.Repeat("a", 60) + "b"
	begin := time.Now()
	spans := p.find(text, nil, new(work))
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	if end := spans[len(spans)-1].end; end != len(text) {
		t.Errorf("the spans end at %d of %d", end, len(text))
	}
}

func TestDirectScanner(t *testing.T) {
	tok := loadTiny(t)
	if tok.direct == nil || !tok.model.(*bpe).rawBytes {
		t.Fatal("the Qwen pre-tokenizer does not take the fast way")
	}
	slow := withRegex(t, tok, patternQwen2)
	rng := rand.New(rand.NewPCG(9, 10))
	for range 3000 {
		text := randomText(rng, 40)
		if got, want := tok.Encode(text, false), slow.Encode(text, false); !slices.Equal(got,
			want) {
			t.Fatalf("%q gives %v, want %v", text, got, want)
		}
	}
}

// The byte-level alphabet spelled out and raw bytes are two ways to the same tokens.
func TestRawBytesAgreeWithSpelling(t *testing.T) {
	raw := loadTiny(t)
	spelled := loadTiny(t)
	spelled.direct, spelled.model.(*bpe).rawBytes = nil, false
	for _, step := range spelled.steps {
		if b, ok := step.(*byteLevel); ok {
			b.rewrite = true
		}
	}
	rng := rand.New(rand.NewPCG(11, 12))
	for range 2000 {
		text := randomText(rng, 60)
		if got, want := raw.Encode(text, false), spelled.Encode(text, false); !slices.Equal(got,
			want) {
			t.Fatalf("%q gives %v as bytes, %v spelled", text, got, want)
		}
	}
}
