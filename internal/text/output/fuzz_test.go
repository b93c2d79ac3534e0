package output

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/typed"
)

// FuzzParsers reads any text by every parser: in pieces as whole, without losing text where there
// is no call, and in time that grows with its length.
func FuzzParsers(f *testing.F) {
	for i, v := range vectors(f) {
		f.Add(v.Out, uint64(i))
	}
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		if !utf8.ValidString(text) || len(text) > 1<<14 {
			t.Skip()
		}
		dice := rand.New(rand.NewPCG(seed, 1))
		for _, format := range formats {
			o := Options{Tools: format, Reasoning: thinkings[dice.IntN(len(thinkings))],
				Types: types,
				State: State(dice.IntN(3)), Single: dice.IntN(4) == 0,
				ID: func() string { return "made" }}
			whole := fold(t, o, text)
			pieces := randomPieces(dice, text)
			if got := fold(t, o, pieces...); got.String() != whole.String() {
				t.Fatalf("%s in pieces %q\n%s\nwhole\n%s", format.Names[0], pieces, got, whole)
			}
			if o.State == Closed && len(whole.calls) == 0 && !slices.ContainsFunc(
				slices.Concat(o.Reasoning.End, format.openers, o.layout().all()),
				func(tag string) bool { return strings.Contains(text, tag) }) &&
				whole.content != text {
				t.Fatalf("%s: %q became %q", format.Names[0], text, whole.content)
			}
		}
	})
}

// TestNothingIsLost reads words with tags of a family between them, whether they make sense or not:
// in pieces as whole, and where there is no call, every word is said, in its order.
func TestNothingIsLost(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 3))
	words := []string{"a", "be ", " {", "}\n", "\n\n", "é", "[", "日本", " to=", "1:", `"`}
	said := 0
	for _, format := range formats {
		o := Options{Tools: format, Reasoning: thinkingWith(format), Types: types,
			ID: func() string { return "made" }}
		tags := slices.Concat(format.Tags(), o.Reasoning.Tags(), format.words())
		for range 300 {
			var text strings.Builder
			n := 0
			for range 1 + dice.IntN(12) {
				if dice.IntN(2) == 0 {
					text.WriteString(tags[dice.IntN(len(tags))])
				} else if dice.IntN(3) > 0 {
					text.WriteString(words[dice.IntN(len(words))])
				} else {
					text.WriteRune(rune('０' + n)) // which is in no tag
					n++
				}
			}
			o.State = State(dice.IntN(3))
			whole := fold(t, o, text.String())
			pieces := randomPieces(dice, text.String())
			if got := fold(t, o, pieces...); got.String() != whole.String() {
				t.Fatalf("%s in pieces %q\n%s\nwhole\n%s", format.Names[0], pieces, got, whole)
			}
			if len(whole.calls) > 0 || format.cuts(text.String()) {
				continue
			}
			said++
			at := 0
			for i := range n {
				found := strings.IndexRune(whole.said[at:], rune('０'+i))
				if found < 0 {
					t.Fatalf("%s: %q became %s", format.Names[0], text.String(), whole)
				}
				at += found
			}
		}
	}
	if said < 1000 {
		t.Errorf("only %d texts without calls", said)
	}
}

// cuts is whether the end of a text may cut a call or a header.
func (f *Format) cuts(text string) bool {
	begins := f.openers
	if l := f.layout; l != nil && len(l.inner) > 0 {
		begins = slices.Concat(begins, l.headers)
		text = text[strings.LastIndex(text, l.inner[0])+1:]
	}
	return slices.ContainsFunc(begins, func(tag string) bool { return strings.Contains(text, tag) })
}

// words are what stands in headers beside the tags.
func (f *Format) words() []string {
	if f.layout == nil {
		return nil
	}
	return append([]string{f.layout.begin, f.layout.aside, f.layout.next}, f.layout.follows...)
}

// FuzzTypedArguments: what is written between tags, of whatever type, becomes JSON.
func FuzzTypedArguments(f *testing.F) {
	f.Add("a", "1", uint8(typed.String))
	f.Add("a\"b", "{\"x\": [\"\\", uint8(typed.Object|typed.Array|typed.Null))
	f.Add("k", "True", uint8(typed.Bool))
	f.Fuzz(func(t *testing.T, key, value string, kind uint8) {
		if !utf8.ValidString(key) || !utf8.ValidString(value) || strings.Contains(key, ">") ||
			strings.Contains(value, "</parameter>") || strings.Contains(value, "\n<") {
			t.Skip()
		}
		o := Options{Tools: FormatNamed("qwen3_xml"), ID: func() string { return "made" },
			Types: func(string, string) typed.Types { return typed.Types(kind) & typed.Any }}
		got := fold(t, o, "<tool_call>\n<function=f>\n<parameter="+key+">\n"+value+
			"\n</parameter>\n</function>\n</tool_call>")
		var v map[string]any
		if err := json.Unmarshal([]byte(got.calls[0][1]), &v); err != nil || len(v) != 1 {
			t.Fatalf("%q: %v", got.calls[0][1], err)
		}
		s, ok := v[strings.Trim(key, space)]
		if typed.Types(kind)&typed.Any == typed.String && (!ok || s != value) {
			t.Fatalf("%q became %q", value, s)
		}
	})
}

// TestLinearTime: text that looks like the beginning of calls over and over is read once.
func TestLinearTime(t *testing.T) {
	for _, format := range formats {
		for _, unit := range append(slices.Concat(format.openers, format.closers, format.inner), "{", "[", `"`, "\\",
			`<tool_call>{"a":[`, `{"parameters":[`, "[f(a=[", "<tool_call>\n<function=a><parameter=", " \n") {
			if testing.Short() && len(unit) == 1 {
				continue
			}
			size := 1 << 14
			if testing.Short() {
				size = 1 << 12
			}
			text := strings.Repeat(unit, size/len(unit))
			o := Options{Tools: format, Reasoning: thinkings[0], State: Closed,
				ID: func() string { return "made" }}
			p := New(o)
			for _, c := range text {
				p.Push(string(c))
			}
			p.Close()
			if got, most := cap(p.r.buf), 8*size; got > most {
				t.Errorf("%s: %q needs a buffer of %d bytes", format.Names[0], unit, got)
			}
		}
	}
}

// TestDrop: special tokens that only stand in the text because tags are special too go.
func TestDrop(t *testing.T) {
	o := Options{Tools: FormatNamed("mistral"), Reasoning: ThinkingNamed("mistral"),
		Drop: []string{"<s>", "[INST]"}, ID: func() string { return "made" }}
	got := fold(t, o, "[THINK]a<s>b[/THINK]c[INS", "T]d<s", ">[TOOL_CALLS]f[ARGS]{}<s>")
	want := folded{reasoning: "ab", content: "cd", calls: [][2]string{{"f", "{}"}},
		ids: []string{"made"}}
	if got.String() != want.String() {
		t.Errorf("%s, want %s", got, &want)
	}
}

// TestNames: every name finds its parser.
func TestNames(t *testing.T) {
	for _, name := range FormatNames() {
		if FormatNamed(name) == nil {
			t.Errorf("no format %s", name)
		}
	}
	for _, name := range ThinkingNames() {
		if ThinkingNamed(name) == nil {
			t.Errorf("no reasoning %s", name)
		}
	}
	if FormatNamed("none") != nil || ThinkingNamed("") != nil {
		t.Error("parsers without a name")
	}
}
