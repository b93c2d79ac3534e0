package output

import (
	"slices"
	"strings"
)

// The tags of harmony, which gpt-oss writes: messages with a header each, that says in which
// channel they are, for which recipient, and what their text is.
const (
	harmonyStart     = "<|start|>"
	harmonyChannel   = "<|channel|>"
	harmonyConstrain = "<|constrain|>"
	harmonyMessage   = "<|message|>"
	harmonyEnd       = "<|end|>"
	harmonyCall      = "<|call|>"
	harmonyReturn    = "<|return|>"
)

// harmony divides an answer into messages. The analysis is reasoning, whenever it comes; the final
// channel and commentary for no recipient are content; what is for a function is a call:
//
//	<|channel|>analysis<|message|>It is …<|end|><|start|>assistant
//	<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>
//
// vLLM joins messages of one kind with a line break where it does not stream, and with nothing
// where it does: here the break is there always. What is for built-in tools, in other channels or
// by other roles vLLM leaves out; here it is content, header and all, since the model wrote it.
var harmony = &layout{
	tags:     []string{harmonyEnd, harmonyCall, harmonyReturn},
	headers:  []string{harmonyStart, harmonyChannel},
	inner:    []string{harmonyMessage, harmonyConstrain},
	follows:  append([]string{"assistant"}, harmonyChannels...),
	read:     (*reader).harmonyMessage,
	begin:    harmonyChannel + "final" + harmonyMessage,
	aside:    harmonyChannel + "commentary" + harmonyMessage,
	asideEnd: harmonyEnd,
	next:     harmonyStart + "assistant",
}

var harmonyChannels = []string{"analysis", "commentary", "final"}

// harmonyThinking is its reasoning.
var harmonyThinking = &Thinking{Names: []string{"openai_gptoss"}, layout: harmony,
	Start: []string{harmonyChannel + "analysis" + harmonyMessage}, End: []string{harmonyEnd}}

// harmonyCalls are its calls. Where the prompt ends, the recipient may come first.
var harmonyCalls = &Format{
	Names:  []string{"openai"},
	layout: harmony,
	envelope: &envelope{begin: harmonyChannel + "commentary to=functions.NAME " + harmonyConstrain +
		"json" + harmonyMessage, between: harmonyEnd + harmony.next},
	start: func(r *reader) verdict {
		if first := r.base+r.pos == 0; !first {
			return refused
		}
		if r.spaces(); !r.starts("to=") {
			return refused
		}
		return r.harmonyMessage("")
	},
}

// harmonyMessage reads a header of which a tag was read, and the reasoning or the call that it
// begins.
func (r *reader) harmonyMessage(tag string) verdict {
	from := r.base + r.keep
	channel, recipient, v := r.harmonyHeader(tag)
	switch {
	case v != called:
		return v
	case recipient != "":
		name := strings.TrimPrefix(recipient, "functions.")
		if !r.ownCalls() || name == recipient && builtin(name) || name == "" {
			return refused
		}
		r.call(name, "")
		r.harmonyArguments()
	case channel == "analysis":
		if !r.ownReasoning() {
			return refused
		}
		r.reason(r.opt.Reasoning, from)
	case channel == "":
		return refused
	default:
		r.apart(from)
	}
	return called
}

// builtin is whether a recipient is none of the functions of a request.
func builtin(recipient string) bool {
	tool, _, _ := strings.Cut(recipient, ".")
	return tool == "browser" || tool == "python" || tool == "container" || tool == "assistant"
}

// harmonyHeader reads the rest of a header, with the tag that ends it.
func (r *reader) harmonyHeader(tag string) (channel, recipient string, v verdict) {
	typed, open := false, false // what the text is, or a place for it
	if tag == harmonyStart && !r.accept("assistant") {
		return "", "", r.lacks("assistant")
	}
	if tag == harmonyChannel {
		if channel = r.harmonyChannel(); channel == "" {
			return "", "", r.lacks(harmonyChannels...)
		}
	}
	for {
		open = open || r.next(' ')
		r.spaces()
		switch {
		case r.accept(harmonyMessage):
			return channel, recipient, called
		case channel == "" && r.accept(harmonyChannel):
			if channel = r.harmonyChannel(); channel == "" {
				return "", "", r.lacks(harmonyChannels...)
			}
		case recipient == "" && r.accept("to="):
			if recipient = r.wordOf(ofName); recipient == "" {
				return "", "", r.noCall()
			}
		case !typed && r.accept(harmonyConstrain):
			open = true
			continue
		case open && !typed && r.wordOf(isLetter) != "":
			typed = true
		default:
			return "", "", r.lacks(harmonyMessage, harmonyChannel, harmonyConstrain)
		}
		open = false
	}
}

// harmonyChannel reads the name of one, "" for none.
func (r *reader) harmonyChannel() string {
	for _, s := range harmonyChannels {
		if r.accept(s) {
			return s
		}
	}
	return ""
}

// harmonyArguments reads the text of a call up to its end: JSON, or what the function's own
// constraint is, as it is. None at all are none, which vLLM makes an empty text.
func (r *reader) harmonyArguments() {
	if r.spaces(); r.next('{') {
		r.jsonArguments()
		return
	}
	var blank []byte
	some := false
	marks := slices.Concat(r.layout.tags, r.layout.headers)
	i := r.until(marks, func(b []byte) {
		some = true
		end := len(trimRight(b))
		if end > 0 {
			r.arguments(blank)
			blank = blank[:0]
			r.arguments(b[:end])
		}
		blank = append(blank, b[end:]...)
	})
	if i >= 0 {
		r.pos -= len(marks[i])
	}
	if !some {
		r.argumentText("{}")
	}
}
