package output

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/text/typed"
)

// envelope is how a family writes calls, for a grammar that admits nothing else.
type envelope struct {
	// before and after surround all calls; between stands between two.
	before, after, between string
	// begin and end surround the arguments of one; begin has NAME for the function's name.
	begin, end string
	// numbered says that begin ends where the call's number stands, before the text middle.
	numbered bool
	middle   string
	// style or notation is how arguments are written; without either it is JSON.
	style    *typed.Style
	notation *typed.Notation
}

// objects are calls as JSON objects.
//
//go:noinline
func objects(before, arguments, between, after string) *envelope {
	return &envelope{before: before, after: after, between: between,
		begin: `{"name": "NAME", "` + arguments + `": `, end: "}"}
}

// Tool is a function that may be called.
type Tool struct {
	Name string
	// Parameters is the JSON Schema of its arguments, Source the field that has it, for errors.
	Parameters json.RawMessage
	Source     string
}

// Listed are calls as a list of JSON objects, as vLLM has models write them whose own way is not
// known.
var Listed = &Format{
	Names:    []string{"json"},
	envelope: objects("[", "parameters", ", ", "]"),
	start: func(r *reader) verdict {
		r.spaces()
		return r.listCall(&plainObject)
	},
}

// Bare is the call of one function whose arguments are all of the answer.
func Bare(name string) *Format {
	return &Format{
		envelope: &envelope{},
		start: func(r *reader) verdict {
			if r.spaces(); r.ended() {
				return cut
			}
			r.call(name, "")
			r.jsonArguments()
			return called
		},
	}
}

// Element is a format of xgrammar's structural tags, as its JSON says it.
type Element map[string]any

func constant(text string) Element { return Element{"type": "const_string", "value": text} }

// anyText is text without those tags.
func anyText(without []string) Element {
	e := Element{"type": "any_text"}
	if len(without) > 0 {
		e["excludes"] = without
	}
	return e
}

func sequence(list ...Element) Element {
	if len(list) == 1 {
		return list[0]
	}
	return Element{"type": "sequence", "elements": list}
}

// AnyOf is any of several formats.
func AnyOf(list ...Element) Element {
	if len(list) == 1 {
		return list[0]
	}
	return Element{"type": "or", "elements": list}
}

// HasEnvelope says whether calls of the format can be forced.
func (f *Format) HasEnvelope() bool { return f.envelope != nil }

// HasTriggers says whether calls of the format can be constrained in free text.
func (f *Format) HasTriggers() bool {
	return f.envelope != nil && !f.loose && (len(f.openers) > 0 || f.framed())
}

// Styled says that arguments are written in a style that cannot say all that a schema can: those of
// a function are what its schema lists.
func (f *Format) Styled() bool { return f.envelope != nil && f.envelope.style != nil }

// framed is whether the family's content begins with a tag of its own.
func (f *Format) framed() bool { return f.layout != nil && f.layout.begin != "" }

// Calls is at least one call of the tools, and no more where the answer has a single one.
// Parameters that a schema does not mention are left out.
func (o *Options) Calls(tools []Tool) Element {
	e := o.Tools.calls(tools, o.Single)
	if o.Tools.layout == nil {
		return o.Content(e)
	}
	return e
}

func (f *Format) calls(tools []Tool, single bool) Element {
	e := f.envelope
	tags := make([]Element, len(tools))
	for i := range tools {
		tags[i] = e.tag(&tools[i])
	}
	var list []Element
	if e.before != "" {
		list = append(list, constant(e.before))
	}
	list = append(list, Element{"type": "tags_with_separator", "tags": tags,
		"separator": e.between, "at_least_one": true, "stop_after_first": single})
	if e.after != "" {
		list = append(list, constant(e.after))
	}
	return sequence(list...)
}

// tag is one call.
func (e *envelope) tag(tool *Tool) Element {
	named := func(s string) string { return strings.Replace(s, "NAME", tool.Name, 1) }
	content := Element{"type": "json_schema", "json_schema": tool.Parameters, "closed": true}
	if tool.Source != "" {
		content["source"] = tool.Source
	}
	switch {
	case e.style != nil:
		content["style"] = e.style.Name
	case e.notation != nil:
		content["style"] = e.notation.Name
	}
	if e.numbered {
		content = sequence(Element{"type": "regex", "pattern": "[0-9]{1,3}"},
			constant(named(e.middle)), content)
	}
	return Element{"type": "tag", "begin": named(e.begin), "content": content, "end": e.end}
}

// FreeCalls is text in which calls of the tools may be: every one that begins is one.
func (o *Options) FreeCalls(tools []Tool) Element {
	f := o.Tools
	e := f.envelope
	if f.framed() {
		return f.layout.free(o, f.calls(tools, o.Single))
	}
	trigger := f.openers[0]
	free := Element{"type": "triggered_tags", "triggers": []string{trigger},
		"stop_after_first": o.Single}
	if len(f.openers) > 1 {
		free["excludes"] = f.openers[1:] // they begin calls, too
	}
	if e.before != "" {
		rest := *f
		rest.envelope = new(*e)
		rest.envelope.before, rest.envelope.after = "", ""
		free["tags"] = []Element{{"type": "tag", "begin": e.before,
			"content": rest.calls(tools, o.Single), "end": e.after}}
		return free
	}
	tags := make([]Element, len(tools))
	for i := range tools {
		tags[i] = e.tag(&tools[i])
	}
	free["tags"] = tags
	return free
}

// free is an answer of content, or of calls, before which content may be that they follow.
func (l *layout) free(o *Options, calls Element) Element {
	text := anyText(slices.Concat(l.headers, o.Tools.openers))
	either := AnyOf(calls, o.Content(text))
	if l.aside == "" {
		return either
	}
	aside := Element{"type": "tag", "begin": l.aside, "content": text, "end": l.asideEnd}
	return sequence(Element{"type": "optional", "content": sequence(aside, constant(l.next))},
		either)
}

// Content is an answer's content, between the tags that the family has for it.
func (o *Options) Content(e Element) Element {
	l := o.layout()
	if l.begin == "" || o.State == Closed {
		return e
	}
	return Element{"type": "tag", "begin": l.begin, "content": e, "end": l.end}
}

// Constrain is the structural tag, in xgrammar's JSON, of an answer that thinks, if the state
// leaves that open, and then is of a format.
func (o *Options) Constrain(then Element) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	// Only a schema that is no JSON could not be encoded: those of requests are.
	_ = e.Encode(Element{"type": "structural_tag",
		"format": sequence(append(o.before(), then)...)})
	return b.String()
}

// before are the formats of what comes before an answer that is constrained.
func (o *Options) before() []Element {
	t := o.Reasoning
	if t == nil || o.State == Closed {
		return nil
	}
	l := t.layout
	if l == nil {
		l = plain
	}
	others := l.headers // would end the thought, and begin what is not constrained
	if f := o.Tools; f != nil && !f.loose && len(f.openers) > 0 {
		others = append(slices.Clone(others), f.openers[0])
	}
	list := []Element{{"type": "tag", "begin": "", "content": anyText(others), "end": t.End}}
	if l.next != "" {
		list = append(list, constant(l.next))
	} else {
		list = append(list, Element{"type": "regex", "pattern": "[ \\n]{0,4}"})
	}
	if o.State == Open || t.Always {
		return list
	}
	var starts []Element
	for _, start := range t.Start {
		starts = append(starts, constant(start))
	}
	return []Element{{"type": "optional",
		"content": sequence(append([]Element{AnyOf(starts...)}, list...)...)}}
}
