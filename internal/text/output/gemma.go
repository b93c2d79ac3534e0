package output

import (
	"github.com/eagleray/eagleray/internal/text/typed"
)

// gemma are the calls of Gemma 4, and with other tags of FunctionGemma: objects whose keys have no
// quotes, and whose texts have tags instead:
//
//	<|tool_call>call:f{x:1,y:<|"|>z<|"|>,l:[{a:true}]}<tool_call|>
//
// What vLLM reads twice, for streams and for answers, is read once here. A text for a parameter of
// another type is what it says, as "1" for a number; vLLM's FunctionGemma reads every text so, and
// loses values without tags.
//
//go:noinline
func gemma(opener, closer string, n *typed.Notation) *Format {
	return &Format{
		Names:    []string{n.Name},
		openers:  []string{opener},
		closers:  []string{closer},
		inner:    []string{n.Quote},
		follows:  []string{"call:", ":"},
		envelope: &envelope{begin: opener + "call:NAME", end: closer, notation: n},
		read: func(r *reader, _ string) verdict {
			r.spaces()
			if !r.accept("call:") && !r.accept(":") {
				return r.lacks("call:")
			}
			function, at, v := r.name("{", closer, "\n")
			if v != called || at > 0 {
				return max(v, refused)
			}
			r.call(function, "")
			g := gemmaReader{r, n.Quote, closer}
			g.members(function, 0)
			return called
		},
	}
}

// gemmaReader reads values of Gemma's.
type gemmaReader struct {
	*reader
	quote, closer string
}

// members reads those of an object, behind its brace. They are the arguments of a function, "" for
// an object within them. It is false where the text ends within, or is none.
func (g gemmaReader) members(function string, depth int) bool {
	for n := 0; ; n++ {
		if g.spaces(); g.accept("}") {
			g.endMembers(n)
			return true
		}
		key, ok := g.key()
		if !ok {
			return false
		}
		g.member(n, key)
		var t typed.Types
		if function != "" {
			t = g.types(function, key)
		}
		if !g.any(t, depth+1) {
			return false
		}
		if g.spaces(); !g.accept(",") && !g.next('}') {
			return false
		}
	}
}

// key reads a key and its colon.
func (g gemmaReader) key() (key string, ok bool) {
	switch {
	case g.next('"'):
		key, ok = g.quoted()
	case g.accept(g.quote):
		at := g.until([]string{g.quote}, func(b []byte) { key += string(b) })
		ok = at == 0
	default:
		key, at := g.word(":", "}", g.closer)
		return key, at == 0
	}
	g.spaces()
	return key, ok && g.accept(":")
}

// any reads a value and emits it as JSON.
func (g gemmaReader) any(t typed.Types, depth int) bool {
	g.spaces()
	c, ok := g.peek()
	switch {
	case !ok || depth > maxNesting:
		return false
	case g.accept(g.quote):
		if t&typed.String != 0 {
			t = typed.String
		}
		return g.typedValue(t, []string{g.quote}) >= 0
	case c == '{':
		g.pos++
		return g.members("", depth)
	case c == '[':
		g.pos++
		return g.items(depth)
	case c == '"':
		g.argumentText(`"`)
		ok = g.decoded(func(b []byte) { g.arguments(escaped(b)) })
		if ok {
			g.argumentText(`"`)
		}
		return ok
	}
	if t == 0 {
		t = typed.Any &^ typed.String
	}
	marks := []string{",", "}", "]", g.closer}
	at := g.typedValue(t, marks)
	if at >= 0 {
		g.pos -= len(marks[at])
	}
	return at >= 0
}

// items reads those of a list, behind its bracket.
func (g gemmaReader) items(depth int) bool {
	g.argumentText("[")
	for n := 0; ; n++ {
		if g.spaces(); g.accept("]") {
			g.argumentText("]")
			return true
		}
		if n > 0 {
			g.argumentText(", ")
		}
		if !g.any(0, depth+1) {
			return false
		}
		if g.spaces(); !g.accept(",") && !g.next(']') {
			return false
		}
	}
}

// gemma4 thinks in a channel, which it may open again.
var gemma4 = &layout{
	headers: []string{"<|channel>"},
	follows: []string{"thought"},
	read: func(r *reader, _ string) verdict {
		from := r.base + r.keep
		if !r.ownReasoning() || !r.accept("thought") {
			return r.lacks("thought")
		}
		r.accept("\n")
		r.reason(r.opt.Reasoning, from)
		return called
	},
}

var gemma4Thinking = &Thinking{Names: []string{"gemma4"}, layout: gemma4,
	Start: []string{"<|channel>thought\n", "<|channel>thought"}, End: []string{"<channel|>"}}

var gemma4Calls = func() *Format {
	f := gemma("<|tool_call>", "<tool_call|>", typed.Gemma4)
	f.layout = gemma4
	return f
}()
