package constrain

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// specs are constraints of every kind of lexing.
var specs = []Spec{
	{Kind: JSONObject},
	{Kind: Regex, Text: `(a|b){2,300}c|"[^"]*"`},
	{Kind: JSONSchema, Text: `{"type":"object","properties":{"a":{"type":"string","maxLength":300},` +
		`"b":{"type":"array","items":{"enum":["x",1,null]}}},"required":["b"]}`},
	{Kind: Grammar, Text: `root ::= "a" root "b" | [ab]+ ("(" root ")")* | ""`},
	{Kind: Grammar, Text: "start: WORD (\"(\" start \")\")*\n%import common.WORD\n%ignore \" \""},
}

// TestTablesMakeNoDifference holds that masks are the same whatever came before: with new tables,
// with those of other answers, for a clone, and however the text so far is cut into tokens.
func TestTablesMakeNoDifference(t *testing.T) {
	v := small()
	r := rand.New(rand.NewPCG(6, 6))
	maskOf := func(m *Matcher) []uint32 {
		mask := make([]uint32, v.Words())
		m.Mask(mask)
		return mask
	}
	for _, s := range specs {
		used := compiled(t, s, v)
		for range 30 {
			m := used.Matcher()
			var text strings.Builder
			for range 10 {
				was := m.Clone()
				mask := maskOf(m)
				n, _ := count(mask)
				if n == 0 {
					break
				}
				skip := r.IntN(n)
				var id int32
				for id = 0; mask[id>>5]>>(id&31)&1 == 0 || skip > 0; id++ {
					if mask[id>>5]>>(id&31)&1 == 1 {
						skip--
					}
				}
				if !m.Accept(id) || !slices.Equal(maskOf(was), mask) {
					t.Fatalf("%v after %q: a clone goes along", s, text.String())
				}
				text.Write(v.tokens[id])
			}
			fresh, bytewise := compiled(t, s, v).Matcher(), used.Matcher()
			for _, id := range v.tokenize(text.String()) {
				if !fresh.Accept(id) {
					t.Fatalf("%v: %q is refused, cut otherwise", s, text.String())
				}
			}
			for _, c := range []byte(text.String()) {
				id := int32(slices.IndexFunc(v.tokens, func(tok []byte) bool {
					return len(tok) == 1 && tok[0] == c
				}))
				if !bytewise.Accept(id) {
					t.Fatalf("%v: %q is refused, byte by byte", s, text.String())
				}
			}
			want := maskOf(m)
			if !slices.Equal(maskOf(fresh), want) || !slices.Equal(maskOf(bytewise), want) ||
				fresh.Accepting() != m.Accepting() {
				t.Fatalf("%v: the masks after %q differ", s, text.String())
			}
		}
	}
}

// TestWarmMasksAllocateNothing goes through a text the second time.
func TestWarmMasksAllocateNothing(t *testing.T) {
	v := small()
	for _, s := range specs[:3] {
		c := compiled(t, s, v)
		mask := make([]uint32, v.Words())
		start := c.Matcher()
		m := start.Clone()
		ids := v.tokenize(map[Kind]string{JSONObject: `{"ab":[1,"x",{}]}`, Regex: "ababc",
			JSONSchema: `{"a":"abc","b":["x",1]}`}[s.Kind])
		run := func() {
			m.threads = append(m.threads[:0], start.threads...)
			for _, id := range ids {
				if m.Mask(mask); !m.Accept(id) {
					t.Fatalf("%v: token %d is refused", s, id)
				}
			}
		}
		run()
		if n := testing.AllocsPerRun(10, run); n > 0 {
			t.Errorf("%v: %.0f allocations", s, n)
		}
	}
}

// TestLimits holds that what takes more than it may says so, and that the next token is asked anew.
func TestLimits(t *testing.T) {
	v := small()
	text := `(?=.*b.{5})([a-c]{1,9}x?){2,40}`
	c, err := Compile(Spec{Kind: Regex, Text: text}, v, Limits{Steps: 50})
	if err != nil {
		t.Fatal(err)
	}
	m := c.Matcher()
	mask := make([]uint32, v.Words())
	m.Mask(mask)
	if n, _ := count(mask); n > 0 || !m.Exhausted() {
		t.Fatalf("%d tokens within 50 operations, exhausted: %v", n, m.Exhausted())
	}
	for range 10000 { // what was found out stays: with enough steps the mask comes to an end
		if m.Mask(mask); !m.Exhausted() {
			break
		}
	}
	want := make([]uint32, v.Words())
	compiled(t, Spec{Kind: Regex, Text: text}, v).Matcher().Mask(want)
	if m.Exhausted() || !slices.Equal(mask, want) {
		t.Error("the mask differs from that of one go")
	}
}
