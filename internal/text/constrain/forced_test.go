package constrain

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestForced: what is forced at any place of an answer is admitted token by token, is found where
// there is no choice, and there is what every answer goes on with.
func TestForced(t *testing.T) {
	v := small()
	r := rand.New(rand.NewPCG(5, 1))
	found := 0
	for _, s := range []Spec{
		{Kind: Regex, Text: `(xy[0-9]{1,2}, "abcabc"; ){1,3}end`},
		{Kind: Choice, Text: `["abcabc e+","abcabc xx","abc"]`},
		{Kind: JSONSchema, Compact: true, Text: `{"type":"object","properties":{"abc":{"const":"trued"},` +
			`"xx":{"type":"boolean"}},"required":["abc","xx"],"additionalProperties":false}`},
	} {
		c := compiled(t, s, v)
		mask := make([]uint32, v.Words())
		for range 40 {
			m, text := c.Matcher(), ""
			at := map[int]string{} // what is forced, by place
			for range 80 {
				if r.IntN(2) == 0 {
					check, what := m.Clone(), ""
					for _, id := range m.Clone().Forced(nil, 9, mask, math.MaxInt) {
						if !check.Accept(id) {
							t.Fatalf("%v: token %d is forced after %q and is not admitted", s, id,
								text+what)
						}
						what += string(v.tokens[id])
					}
					at[len(text)] = what
				}
				if m.Accepting() && r.IntN(3) == 0 {
					break
				}
				m.Mask(mask)
				var allowed []int32
				for id := range int32(len(v.tokens)) {
					if mask[id>>5]>>(id&31)&1 == 1 {
						allowed = append(allowed, id)
					}
				}
				if len(allowed) == 0 {
					break
				}
				id := allowed[r.IntN(len(allowed))]
				m.Accept(id)
				text += string(v.tokens[id])
			}
			for place, what := range at {
				rest := text[place:]
				if n := min(len(what), len(rest)); what[:n] != rest[:n] {
					t.Fatalf("%v: %q is forced at %d of %q", s, what, place, text)
				}
				found += len(what)
			}
		}
	}
	if found < 2000 {
		t.Errorf("%d bytes were forced", found)
	}
	m := compiled(t, Spec{Kind: Choice, Text: `["abcabc"]`}, v).Matcher()
	var text strings.Builder
	for _, id := range m.Forced(nil, 9, make([]uint32, v.Words()), math.MaxInt) {
		text.Write(v.tokens[id])
	}
	if text.String() != "abcabc" {
		t.Errorf("of one choice %q is forced", text.String())
	}
	if !m.Accepting() {
		t.Error("the matcher has not gone on")
	}
}
