package regex

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestDeadAmongLongTexts: whether a language has a text is found by the short ones, however long
// its texts may be, and a language that has none is seen to by its shape where that says so.
func TestDeadAmongLongTexts(t *testing.T) {
	for _, c := range []struct {
		pattern string
		dead    bool
	}{
		{`^(?=.{1,65536}$)([a-z]+:)?(//([a-z.]|%[0-9a-f]{2})*(:[0-9]{1,5})?)?(/[a-z]*)*$`, false},
		{`^(?!.*://)(?=.{1,255}$)((.{1,63}\.){1,127}(?![0-9]*$)[a-z0-9-]+\.?)$`, false},
		{`^(?=.{1,60000}$)(?!.)(.{1,63}\.){1,127}$`, true},
		{`^(?![\s\S]*)(.{1,63}\.){1,127}$`, true},
	} {
		b := NewBuilder(plenty)
		x, err := b.Pattern(c.pattern, Syntax{Search: true, JSON: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{
			"", "a", "ab", "ex.a", "exam.ple.", "a.b.c.d.e", "...........", "%4",
		} {
			y := x
			for _, ch := range []byte(text) {
				y = b.Derivative(y, ch)
			}
			b.Refuel(3000)
			if dead := b.Dead(y); b.Exhausted() || c.dead && !dead {
				t.Errorf("%s after %q: dead %v, exhausted %v", c.pattern, text, dead, b.Exhausted())
			}
			b.Refuel(plenty)
		}
	}
}

// TestNestedCounts goes through a text at each of whose places a count may begin anew: what remains
// are as many alternatives as there are counts of one kind, not as there are pairs.
func TestNestedCounts(t *testing.T) {
	b := NewBuilder(plenty)
	x, err := b.Pattern(`(.{1,63}\.){1,127}z`, Syntax{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 120 {
		x = b.Derivative(x, '.')
		if n := &b.nodes[x]; n.kind == kOr && int(n.b-n.a) > 70 {
			t.Fatalf("%d alternatives after %d characters", n.b-n.a, i+1)
		}
	}
	if !b.Match(x, ".z") || b.Match(x, ".") || !b.Match(x, "z") {
		t.Error("the text may not end as it should")
	}
}

// TestAbsorb compares unions of counted alternatives with the alternatives one by one, on every
// short text.
func TestAbsorb(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var texts []string
	for _, n := range []int{0, 1, 2, 3, 4, 5, 6} {
		for i := range 1 << n {
			var s strings.Builder
			for j := range n {
				s.WriteByte("ab"[i>>j&1])
			}
			texts = append(texts, s.String())
		}
	}
	absorbed := 0
	for range 3000 {
		b := NewBuilder(plenty)
		unit := []Ex{b.Bytes('a', 'b'), b.Lit("ab"), b.Lit("b")}[r.IntN(2):]
		of := func() Ex {
			lo := r.IntN(3)
			hi := lo + r.IntN(3)
			if r.IntN(6) == 0 {
				hi = Inf
			}
			return b.Rep(unit[0], lo, hi)
		}
		alts := make([]Ex, 2+r.IntN(4))
		for i := range alts {
			x := of()
			if r.IntN(2) == 0 {
				x = b.Rep(b.Cat(x, unit[1]), r.IntN(2), 1+r.IntN(3))
			}
			alts[i] = b.Cat(x, unit[r.IntN(2)])
		}
		union := b.Or(alts...)
		if n := &b.nodes[union]; n.kind != kOr || int(n.b-n.a) < len(alts) {
			absorbed++
		}
		for _, s := range texts {
			want := slices.ContainsFunc(alts, func(x Ex) bool { return b.Match(x, s) })
			if b.Match(union, s) != want {
				t.Fatalf("a union of %d alternatives matches %q: %v", len(alts), s, !want)
			}
		}
	}
	if absorbed < 300 {
		t.Errorf("only %d unions have become shorter", absorbed)
	}
}

// TestWhole: what is made of whole characters is in the language of all texts, and what is not is
// not taken for it.
func TestWhole(t *testing.T) {
	b := NewBuilder(plenty)
	all, text := b.JSONText(), b.AnyText()
	quote, digit := b.JSONRunes('"', '"'), b.Bytes('0', '9')
	for _, c := range []struct {
		x              Ex
		inJSON, inText bool
	}{
		{digit, true, true},
		{b.Cat(quote, b.Rep(b.JSONRunes('a', 0x3000), 2, 5)), true, true},
		{b.JSONLit("é\n"), true, true},
		{b.Runes(0, 0x3000), false, true},
		{b.Lit(`"`), false, true},
		{b.Bytes(0x80, 0xBF), false, false},
		{b.Derivative(b.JSONRunes('é', 'é'), 0xC3), false, false},
		{b.And(b.Not(digit), b.Star(digit)), true, true},
		{b.Not(digit), false, false},
	} {
		if got := b.Or(c.x, all) == all; got != c.inJSON {
			t.Errorf("expression %d is in all JSON texts: %v", c.x, got)
		}
		if got := b.And(c.x, b.Not(all)) == Empty; got != c.inJSON {
			t.Errorf("expression %d has no text but JSON's: %v", c.x, got)
		}
		if got := b.Or(c.x, text) == text; got != c.inText {
			t.Errorf("expression %d is in all texts: %v", c.x, got)
		}
		// The shape says what is so.
		if c.inJSON && !b.Dead(b.And(c.x, b.Not(b.Cat(all, Eps)))) ||
			c.inText && !b.Within(c.x, b.Cat(text, Eps)) {
			t.Errorf("expression %d is taken for what it is not", c.x)
		}
	}
}
