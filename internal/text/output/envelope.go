package output

import (
	"encoding/json"
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
	// style is how arguments are written; nil is JSON.
	style *typed.Style
}

// objects are calls as JSON objects.
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
func (f *Format) HasTriggers() bool { return f.envelope != nil && !f.loose && len(f.openers) > 0 }

// Calls is at least one call of the tools, and no more with single. Parameters that a schema does
// not mention are left out.
func (f *Format) Calls(tools []Tool, single bool) Element {
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
	content := Element{"type": "json_schema", "json_schema": tool.Parameters, "closed": true}
	if tool.Source != "" {
		content["source"] = tool.Source
	}
	if e.style != nil {
		content["style"] = e.style.Name
	}
	if e.numbered {
		content = sequence(Element{"type": "regex", "pattern": "[0-9]{1,3}"}, constant(e.middle),
			content)
	}
	return Element{"type": "tag", "begin": strings.Replace(e.begin, "NAME", tool.Name, 1),
		"content": content, "end": e.end}
}

// FreeCalls is text in which calls of the tools may be: every one that begins is one.
func (f *Format) FreeCalls(tools []Tool, single bool) Element {
	e := f.envelope
	trigger := f.openers[0]
	free := Element{"type": "triggered_tags", "triggers": []string{trigger},
		"stop_after_first": single}
	if e.before != "" {
		rest := *f
		rest.envelope = new(*e)
		rest.envelope.before, rest.envelope.after = "", ""
		free["tags"] = []Element{{"type": "tag", "begin": e.before,
			"content": rest.Calls(tools, single), "end": e.after}}
		return free
	}
	tags := make([]Element, len(tools))
	for i := range tools {
		tags[i] = e.tag(&tools[i])
	}
	free["tags"] = tags
	return free
}

// Constrain is the structural tag, in xgrammar's JSON, of an answer that thinks, if the state
// leaves that open, and then is of a format.
func Constrain(t *Thinking, s State, then Element) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	// Only a schema that is no JSON could not be encoded: those of requests are.
	_ = e.Encode(Element{"type": "structural_tag",
		"format": sequence(append(t.before(s), then)...)})
	return b.String()
}

// before are the formats of what comes before an answer that is constrained.
func (t *Thinking) before(s State) []Element {
	if t == nil || s == Closed {
		return nil
	}
	thought := Element{"type": "tag", "begin": "", "content": Element{"type": "any_text"},
		"end": t.End}
	space := Element{"type": "regex", "pattern": "[ \\n]{0,4}"}
	if s == Open || t.Always {
		return []Element{thought, space}
	}
	var starts []Element
	for _, start := range t.Start {
		starts = append(starts, constant(start))
	}
	return []Element{{"type": "optional", "content": sequence(AnyOf(starts...), thought, space)}}
}
