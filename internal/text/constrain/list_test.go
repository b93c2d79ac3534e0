package constrain

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// reads says whether a text of one-letter elements, with commas between or without, keeps a list.
func reads(l cfg.List, letters, text string) bool {
	if l.Sep != cfg.None {
		parts := strings.Split(text, ",")
		if text == "" {
			parts = nil
		}
		if text = strings.Join(parts, ""); len(text) != len(parts) {
			return false
		}
	}
	if len(text) < l.Min || l.Max >= 0 && len(text) > l.Max {
		return false
	}
	counts := make([]int, len(l.Elems))
	for _, c := range text {
		i := strings.IndexRune(letters, c)
		if i < 0 {
			return false
		}
		counts[i]++
	}
	if !l.AnyOrder && !slices.IsSortedFunc([]byte(text), func(a, b byte) int {
		return strings.IndexByte(letters, a) - strings.IndexByte(letters, b)
	}) {
		return false
	}
	last := 0
	if text != "" {
		last = strings.IndexByte(letters, text[len(text)-1])
	}
	for i, e := range l.Elems {
		if e.Max >= 0 && counts[i] > e.Max {
			return false
		}
		if counts[i] >= e.Min {
			continue
		}
		// A prefix may end after every element; what it has gone past is whole.
		if !l.Prefix || text != "" && i < last {
			return false
		}
	}
	return true
}

// TestLists compares lists of every kind with what their bounds say, text by text.
func TestLists(t *testing.T) {
	v := small()
	r := rand.New(rand.NewPCG(4, 4))
	const letters = "abc"
	texts := []string{""}
	for i := 0; i < len(texts); i++ {
		if len(texts[i]) < 5 {
			for _, c := range letters {
				texts = append(texts, texts[i]+string(c))
			}
		}
	}
	for range 400 {
		g := cfg.New(regex.NewBuilder(1<<20), cfg.Greedy, 1000)
		bound := func(lo int) int {
			if r.IntN(3) == 0 {
				return cfg.Inf
			}
			return lo + r.IntN(3)
		}
		l := cfg.List{Min: r.IntN(4), AnyOrder: r.IntN(2) == 0}
		l.Max = bound(l.Min)
		l.Prefix = !l.AnyOrder && r.IntN(3) == 0
		if r.IntN(2) == 0 {
			l.Sep = g.Lit(",")
		}
		for i := range 1 + r.IntN(3) {
			e := cfg.Elem{Sym: g.Lit(letters[i : i+1]), Min: r.IntN(3)}
			e.Max = bound(e.Min)
			l.Elems = append(l.Elems, e)
		}
		c, err := link(g, g.List(l), v, Limits{}.filled())
		some := false
		for _, text := range texts {
			if l.Sep != cfg.None {
				text = strings.Join(strings.Split(text, ""), ",")
			}
			want := reads(l, letters[:len(l.Elems)], text)
			some = some || want
			if err == nil && accepts(c, v, text) != want {
				t.Fatalf("%+v: %q is to be %v", l, text, want)
			}
		}
		if err != nil && some {
			t.Fatalf("%+v: %v", l, err)
		}
		if err == nil {
			wander(t, r, c, v, 6)
		}
	}
}

// TestManyKeys has more counts than fit a word.
func TestManyKeys(t *testing.T) {
	v := small()
	var keys, required []string
	for i := range 150 {
		keys = append(keys, fmt.Sprintf(`"k%d":{"type":"integer"}`, i))
		if i%50 == 0 {
			required = append(required, fmt.Sprintf(`"k%d"`, i))
		}
	}
	c := compiled(t, Spec{Kind: JSONSchema, AnyOrder: true,
		Text: `{"type":"object","properties":{` + strings.Join(keys, ",") + `},"required":[` +
			strings.Join(required, ",") +
			`],"additionalProperties":false}`}, v)
	for text, want := range map[string]bool{
		`{"k100":1,"k7":2,"k0":3,"k149":4,"k50":5}`: true,
		`{"k100":1,"k7":2,"k0":3,"k7":4,"k50":5}`:   false,
		`{"k100":1,"k7":2,"k0":3}`:                  false,
	} {
		if got := accepts(c, v, text); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
