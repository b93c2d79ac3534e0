package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
)

func TestNormalizers(t *testing.T) {
	simple := func(kind string) object { return object{"type": kind} }
	replace := func(pattern object, content string) object {
		return object{"type": "Replace", "pattern": pattern, "content": content}
	}
	tests := []struct {
		name       string
		section    object
		text, want string
	}{
		{"nfc", simple("NFC"), "e\u0301 \u212b", "é Å"},
		{"nfd", simple("NFD"), "é", "e\u0301"},
		{"nfkc", simple("NFKC"), "ﬁ ①", "fi 1"},
		{"nfkd", simple("NFKD"), "ﬁé", "fie\u0301"},
		// U+1AC0 came with Unicode 14
		{"no composition across an unknown mark", simple("NFC"), "e\u1ac0\u0301", "e\u1ac0\u0301"},
		{"an unknown mark is not reordered", simple("NFD"), "e\u0301\u1ac0", "e\u0301\u1ac0"},
		// U+32FF came with Unicode 12.1
		{"unknown compatibility character", simple("NFKC"), "㋿", "㋿"},
		{"lowercase", simple("Lowercase"), "ÀΣİK\U00010d50", "àσi\u0307k\U00010d70"},
		{"strip accents", simple("StripAccents"), "e\u0301a\u1ac0", "ea\u1ac0"},
		{"strip", object{"type": "Strip", "strip_left": true, "strip_right": true}, " \u00a0a b\n",
			"a b"},
		{"strip left", object{"type": "Strip", "strip_left": true, "strip_right": false}, " a ",
			"a "},
		{"prepend", object{"type": "Prepend", "prepend": "▁"}, "a", "▁a"},
		{"prepend to nothing", object{"type": "Prepend", "prepend": "▁"}, "", ""},
		{"replace", replace(object{"String": "ab"}, "$0"), "abab", "$0$0"},
		{"replace regex", replace(object{"Regex": " {2,}"}, "_"), "a  b c   ", "a_b c_"},
		{"byte level", simple("ByteLevel"), "é ", "Ã©Ġ"},
		{"sequence", sequence("normalizers", simple("NFD"), simple("StripAccents"),
			simple("Lowercase")), "ÉA", "ea"},
	}
	for _, test := range tests {
		steps, err := parseNormalizer(encodeJSON(t, test.section))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if got := normalize(steps, test.text, new(work)); got != test.want {
			t.Errorf("%s: %q becomes %q, want %q", test.name, test.text, got, test.want)
		}
	}
}

// Runs of combining characters of any length normalize by the definition: package norm alone would
// insert U+034F into them.
func TestLongCombiningRuns(t *testing.T) {
	const n = 100
	marks := strings.Repeat("\u0301", n)
	below := strings.Repeat("\u0323", n)
	nfc := canonical(norm.NFC, norm.NFD)
	if got, want := nfc("e"+marks, new(work)), "é"+strings.Repeat("\u0301", n-1); got != want {
		t.Errorf("NFC gives %q", got)
	}
	if got, want := nfc("e"+marks+below, new(work)), "ẹ"+strings.Repeat("\u0323",
		n-1)+marks; got != want {
		t.Errorf("NFC gives %q", got)
	}
	nfd := canonical(norm.NFD, norm.NFD)
	if got, want := nfd("é"+marks[2:]+below, new(work)), "e"+below+marks; got != want {
		t.Errorf("NFD gives %q", got)
	}
	if got := nfc(marks, new(work)); got != marks {
		t.Errorf("NFC of marks alone gives %q", got)
	}
}

// On short runs, where package norm follows the definition, both ways must agree.
func TestNormalizeLongAgreesWithNorm(t *testing.T) {
	chars := []rune(
		"aeoEsÅÀé\u0301\u0327\u0323\u0302\u0338\u0345ﬁ①²한ᄒ\u1161\u11ab각ק\u05b7\u0958か\u3099ゔΩ\u212b\u1e69\u0344")
	rng := rand.New(rand.NewPCG(13, 14))
	for range 20000 {
		text := make([]rune, rng.IntN(9))
		for i := range text {
			text[i] = chars[rng.IntN(len(chars))]
		}
		s := string(text)
		for form, decompose := range map[norm.Form]norm.Form{norm.NFC: norm.NFD, norm.NFD: norm.NFD,
			norm.NFKC: norm.NFKD, norm.NFKD: norm.NFKD} {
			if got, want := normalizeLong(s, form, decompose, new(work)),
				form.String(s); got != want {
				t.Fatalf("form %d of %+q is %+q, want %+q", form, s, got, want)
			}
		}
	}
}
