package pytext

import (
	"math/rand/v2"
	"testing"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// TestCases compares all letters, and small and capital sigmas within words, with package cases. It
// takes Cherokee for letters that fold as others do, which Python does not.
func TestCases(t *testing.T) {
	lower, upper := cases.Lower(language.Und), cases.Upper(language.Und)
	fold, title := cases.Fold(), cases.Title(language.Und)
	same := func(what, of, got, want string) {
		if got != want {
			t.Errorf("%s of %q: %+q, want %+q", what, of, got, want)
		}
	}
	for r := range rune(0x1f000) {
		if unicode.Is(unicode.Lo, r) || !unicode.In(r, unicode.L, unicode.M, unicode.P, unicode.S,
			unicode.Cf) {
			continue // neither a case, nor ignored between letters
		}
		s := string(r)
		same("upper case", s, Upper(s), upper.String(s))
		same("lower case", s, Lower(s), lower.String(s))
		if !unicode.Is(unicode.Cherokee, r) {
			same("fold", s, Fold(s), fold.String(s))
		}
		want := string(unicode.ToTitle(r))
		if want == s && r > unicode.MaxASCII {
			want = title.String(s)
		}
		same("title case", s, titleRune(r), want)
		same("lower case", "aΣ"+s+"b", Lower("aΣ"+s+"b"), lower.String("aΣ"+s+"b"))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	letters := []rune("aΣσ.'-1\u0308İʰA:ßﬁΑ\u00ad·ς")
	for range 20000 {
		text := make([]rune, rng.IntN(9))
		for i := range text {
			text[i] = letters[rng.IntN(len(letters))]
		}
		s := string(text)
		same("lower case", s, Lower(s), lower.String(s))
		same("upper case", s, Upper(s), upper.String(s))
		same("fold", s, Fold(s), fold.String(s))
	}
	same("fold", "Ꭰꭰ", Fold("Ꭰꭰ"), "ᎠᎠ")
}
