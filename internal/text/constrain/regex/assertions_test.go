package regex

import (
	"encoding/json"
	"math/big"
	"math/rand/v2"
	"os"
	"regexp"
	"testing"
)

// reading says whether an expression matches s from i on to a place of which then says yes.
type reading func(s []rune, i int, then func(int) bool) bool

// written is an expression as a pattern, and how it is read by trying everything.
type written struct {
	pattern string
	read    reading
}

func condition(pattern string, holds func(s []rune, i int) bool) written {
	return written{pattern, func(s []rune, i int, then func(int) bool) bool {
		return holds(s, i) && then(i)
	}}
}

func wordAt(s []rune, i int) bool {
	return i >= 0 && i < len(s) && s[i] < 0x80 && isWord(byte(s[i]))
}

// randomWritten makes an expression of depth with every kind of assertion; without looks it is one
// that Go's regexp reads alike.
func randomWritten(r *rand.Rand, depth int, looks bool) written {
	one := func(pattern string, ok func(rune) bool) written {
		return written{pattern, func(s []rune, i int, then func(int) bool) bool {
			return i < len(s) && ok(s[i]) && then(i+1)
		}}
	}
	sub := func() written { return randomWritten(r, depth-1, looks) }
	k := r.IntN(16)
	switch {
	case depth == 0 && k < 10 || k < 3:
		switch c := []rune("ab é")[r.IntN(4)]; r.IntN(5) {
		case 0:
			return one(".", func(rune) bool { return true })
		case 1:
			return one(`\w`, func(x rune) bool { return wordAt([]rune{x}, 0) })
		case 2:
			return one("[^"+string(c)+"]", func(x rune) bool { return x != c })
		default:
			return one(string(c), func(x rune) bool { return x == c })
		}
	case depth == 0 || k < 6:
		switch r.IntN(6) {
		case 0:
			return condition("^", func(_ []rune, i int) bool { return i == 0 })
		case 1:
			return condition("$", func(s []rune, i int) bool { return i == len(s) })
		case 2:
			return condition(`\B`, func(s []rune, i int) bool {
				return wordAt(s, i) == wordAt(s, i-1)
			})
		}
		return condition(`\b`, func(s []rune, i int) bool { return wordAt(s, i) != wordAt(s, i-1) })
	case k < 10:
		x, y := sub(), sub()
		return written{x.pattern + y.pattern, func(s []rune, i int, then func(int) bool) bool {
			return x.read(s, i, func(j int) bool { return y.read(s, j, then) })
		}}
	case k < 12:
		x, y := sub(), sub()
		return written{"(?:" + x.pattern + "|" + y.pattern + ")",
			func(s []rune, i int, then func(int) bool) bool {
				return x.read(s, i, then) || y.read(s, i, then)
			}}
	case k < 14 || !looks:
		return repeatedly(r, sub())
	}
	x, ahead, negated := sub(), r.IntN(2) == 0, r.IntN(2) == 0
	opening := map[[2]bool]string{{true, false}: "(?=", {true, true}: "(?!", {false, false}: "(?<=",
		{false, true}: "(?<!"}[[2]bool{ahead, negated}]
	return condition(opening+x.pattern+")", func(s []rune, i int) bool {
		if ahead {
			return x.read(s, i, func(int) bool { return true }) != negated
		}
		for j := range i + 1 {
			if x.read(s, j, func(k int) bool { return k == i }) {
				return !negated
			}
		}
		return negated
	})
}

func repeatedly(r *rand.Rand, x written) written {
	counts := []struct {
		text   string
		lo, hi int
	}{{"*", 0, 9}, {"+", 1, 9}, {"?", 0, 1}, {"{2}", 2, 2}, {"{1,3}", 1, 3}, {"{2,}", 2, 9}}
	c := counts[r.IntN(len(counts))]
	var times func(s []rune, i, n int, then func(int) bool) bool
	times = func(s []rune, i, n int, then func(int) bool) bool {
		return n >= c.lo && then(i) || n < c.hi && x.read(s, i, func(j int) bool {
			return (j > i || n < c.lo) && times(s, j, n+1, then)
		})
	}
	return written{"(?:" + x.pattern + ")" + c.text,
		func(s []rune, i int, then func(int) bool) bool { return times(s, i, 0, then) }}
}

// shortTexts are all texts of at most n of some characters.
func shortTexts(alphabet string, n int) []string {
	all := []string{""}
	for from, i := 0, 0; i < n; i++ {
		to := len(all)
		for ; from < to; from++ {
			for _, c := range alphabet {
				all = append(all, all[from]+string(c))
			}
		}
	}
	return all
}

// TestAssertions compares patterns with assertions anywhere in them, on all short texts, with a
// matcher that tries everything, and those that it can read with Go's own.
func TestAssertions(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	texts := shortTexts("ab é", 4)
	refused, automata := 0, 0
	n := 400
	if testing.Short() {
		n = 150
	}
	for i := range n {
		w := randomWritten(r, 3, i%2 == 0)
		var reference *regexp.Regexp
		if i%2 == 1 {
			reference = regexp.MustCompile(w.pattern)
		}
		b := NewBuilder(plenty)
		var xs [4]Ex
		for k := range xs {
			x, err := b.Pattern(w.pattern, Syntax{Search: k&1 == 1, JSON: k&2 == 2, DotAll: true})
			if err != nil {
				refused++
				break
			}
			xs[k] = x
		}
		automata += len(b.defs)
		alive := [4]bool{}
		for _, s := range texts {
			rs := []rune(s)
			whole := w.read(rs, 0, func(j int) bool { return j == len(rs) })
			found := false
			for j := 0; j <= len(rs) && !found; j++ {
				found = w.read(rs, j, func(int) bool { return true })
			}
			if reference != nil && reference.MatchString(s) != found {
				t.Fatalf("%q on %q: the matcher of the test says %v", w.pattern, s, found)
			}
			for k, x := range xs {
				want := whole
				if k&1 == 1 {
					want = found
				}
				if got := b.Match(x, s); got != want {
					t.Fatalf("%q on %q, search %v, JSON %v: %v", w.pattern, s, k&1 == 1, k&2 == 2,
						got)
				}
				alive[k] = alive[k] || want
			}
		}
		for k, x := range xs {
			if alive[k] && b.Dead(x) {
				t.Fatalf("%q is said to be dead", w.pattern)
			}
		}
	}
	if refused > 0 || automata == 0 {
		t.Errorf("%d patterns are refused, %d states", refused, automata)
	}
}

// TestAssertionsAgainstPython compares with what Python's re finds (testdata/assertions.py).
func TestAssertionsAgainstPython(t *testing.T) {
	var reference struct {
		Alphabet string
		Length   int
		Found    map[string]string
	}
	text, err := os.ReadFile("testdata/assertions.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &reference); err != nil {
		t.Fatal(err)
	}
	texts := shortTexts(reference.Alphabet, reference.Length)
	for pattern, hex := range reference.Found {
		bits, ok := new(big.Int).SetString(hex, 16)
		if !ok {
			t.Fatal(hex)
		}
		b := NewBuilder(plenty)
		x, err := b.Pattern(pattern, Syntax{Search: true, Python: true})
		if err != nil {
			t.Errorf("%q: %v", pattern, err)
			continue
		}
		for i, s := range texts {
			if want := bits.Bit(len(texts)-1-i) == 1; b.Match(x, s) != want {
				t.Errorf("%q on %q: %v", pattern, s, !want)
			}
		}
	}
	if len(reference.Found) < 30 {
		t.Errorf("%d patterns", len(reference.Found))
	}
}
