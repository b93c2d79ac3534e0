package answer

import (
	"encoding/json"
	"strings"
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
	// style is how arguments are written, in xgrammar's words; "" is JSON.
	style string
}

// objects are calls as JSON objects.
func objects(before, arguments, between, after string) *envelope {
	return &envelope{before: before, after: after, between: between,
		begin: `{"name": "NAME", "` + arguments + `": `, end: "}"}
}

// Tool is a function that may be called.
type Tool struct {
	Name string
	// Parameters is the JSON Schema of its arguments.
	Parameters json.RawMessage
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

// element is a format of xgrammar's structural tags.
type element map[string]any

func constant(text string) element { return element{"type": "const_string", "value": text} }

func sequence(list ...element) element {
	return element{"type": "sequence", "elements": list}
}

// HasEnvelope says whether the calls of a format can be forced.
func (f *Format) HasEnvelope() bool { return f.envelope != nil }

// Calls is the structural tag, in xgrammar's JSON, of an answer that thinks, if the state leaves
// that open, and then calls tools: at least one, and no more with single. Parameters that a schema
// does not mention are left out.
func (f *Format) Calls(t *Thinking, s State, tools []Tool, single bool) string {
	e := f.envelope
	tags := make([]element, len(tools))
	for i, tool := range tools {
		content := element{"type": "json_schema", "json_schema": tool.Parameters, "closed": true}
		if e.style != "" {
			content["style"] = e.style
		}
		if e.numbered {
			content = sequence(element{"type": "regex", "pattern": "[0-9]{1,3}"}, constant(e.middle),
				content)
		}
		tags[i] = element{"type": "tag", "begin": strings.Replace(e.begin, "NAME", tool.Name, 1),
			"content": content, "end": e.end}
	}
	list := t.before(s)
	if e.before != "" {
		list = append(list, constant(e.before))
	}
	list = append(list, element{"type": "tags_with_separator", "tags": tags,
		"separator": e.between, "at_least_one": true, "stop_after_first": single})
	if e.after != "" {
		list = append(list, constant(e.after))
	}
	return structuralTag(sequence(list...))
}

// Before is the structural tag of an answer that thinks, if the state leaves that open, and then
// follows a format of xgrammar's.
func (t *Thinking) Before(s State, format any) string {
	then, ok := format.(map[string]any)
	if !ok {
		then = nil
	}
	return structuralTag(sequence(append(t.before(s), element(then))...))
}

func structuralTag(format element) string {
	// Only schemas that are no JSON could not be marshalled: they have been checked.
	b, _ := json.Marshal(element{"type": "structural_tag", "format": format})
	return string(b)
}

// before are the formats of what comes before an answer that is constrained.
func (t *Thinking) before(s State) []element {
	if t == nil || s == Closed {
		return nil
	}
	thought := element{"type": "tag", "begin": "", "content": element{"type": "any_text"},
		"end": t.End}
	space := element{"type": "regex", "pattern": "[ \\n]{0,4}"}
	if s == Open || t.Always {
		return []element{thought, space}
	}
	var starts []element
	for _, start := range t.Start {
		starts = append(starts, constant(start))
	}
	return []element{{"type": "optional", "content": sequence(
		element{"type": "or", "elements": starts}, thought, space)}}
}
