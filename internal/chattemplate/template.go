// Package chattemplate renders Hugging Face chat templates: the subset of Jinja2 that such templates use,
// evaluated with the semantics of Python's jinja2 3.1 in the environment that transformers sets up
// (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls, the generation tag, tojson as
// json.dumps(ensure_ascii=False), raise_exception, strftime_now), byte for byte.
//
// A template comes with the model and is untrusted: it reaches no Go object, changes nothing but its own
// namespaces, and every rendering is bounded in steps, output, memory and recursion.
package chattemplate

import (
	"errors"
	"fmt"
	"time"
)

const (
	defaultMaxOutput = 16 << 20
	defaultMaxSteps  = 10_000_000
	defaultMaxMemory = 512 << 20

	maxSource     = 1 << 20 // bytes of template text
	maxNesting    = 250     // of a template's syntax tree
	maxMacroDepth = 200     // of macro calls; Python's own limit is near 300
	maxValueDepth = 500     // of nested lists and maps that are printed, compared or serialised
	maxJSONDepth  = 256     // of JSON given to FromJSON
	maxJSONValues = 1 << 20 // of JSON given to FromJSON: each takes some 50 times its shortest text
	maxRange      = 100_000 // jinja2.sandbox.MAX_RANGE
	maxTupleKey   = 1 << 16 // bytes of a tuple used as a dict key
	bytesPerStep  = 64      // text scanned or copied for the price of one step
	valueSize     = 64      // bytes charged for one element of a list or map
)

// Error is a template that does not parse or a rendering that failed.
type Error struct {
	Line   int    // line of the template, from 1; 0 where unknown
	Msg    string // what is wrong; the template's own text when Raised
	Raised bool   // the template called raise_exception: the conversation, not the template, is at fault
}

// Error returns the message with the line.
func (e *Error) Error() string {
	if e.Line == 0 {
		return "chat template: " + e.Msg
	}
	return fmt.Sprintf("chat template line %d: %s", e.Line, e.Msg)
}

func errorf(format string, args ...any) *Error { return &Error{Msg: fmt.Sprintf(format, args...)} }

func errorAt(line int, format string, args ...any) *Error {
	return &Error{Line: line, Msg: fmt.Sprintf(format, args...)}
}

func errNesting() *Error { return errorf("value is nested too deeply") }

// atLine gives an error that has no line the line of the statement or call it came from.
func atLine(err error, line int) error {
	var e *Error
	if errors.As(err, &e) && e.Line == 0 {
		e.Line = line
	}
	return err
}

// Options bound and feed one rendering. The zero Options are the defaults.
type Options struct {
	// Now is the clock of strftime_now; nil means time.Now.
	Now func() time.Time
	// MaxOutput is the largest output, in bytes; 0 means 16 MiB.
	MaxOutput int
	// MaxSteps bounds the work: one step per evaluated node, iteration, and 64 bytes of text handled; 0 means 10 million.
	MaxSteps int
	// MaxMemory bounds the bytes of all strings, lists and maps the template makes, freed or not; 0 means 512 MiB.
	MaxMemory int
}

// Template is a parsed chat template. It is immutable, and safe for use by several goroutines.
type Template struct {
	body  []stmt
	slots int // variables of the outermost scope
}

// Parse parses a template. The error, if any, is an *Error.
func Parse(source string) (*Template, error) {
	if len(source) > maxSource {
		return nil, errorf("template has %d bytes, more than %d", len(source), maxSource)
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, err := p.parseTemplate()
	if err != nil {
		return nil, err
	}
	root := &scope{}
	r := &resolver{scope: root}
	if err := r.body(body); err != nil {
		return nil, err
	}
	return &Template{body: body, slots: root.size()}, nil
}

// Render evaluates the template with the given variables (messages, tools, add_generation_prompt,
// bos_token and so on) and returns the text. The error, if any, is an *Error.
func (t *Template) Render(vars *Map, opt Options) (string, error) {
	st := &state{
		vars:      vars,
		now:       opt.Now,
		maxOutput: positive(opt.MaxOutput, defaultMaxOutput),
		steps:     positive(opt.MaxSteps, defaultMaxSteps),
		memory:    positive(opt.MaxMemory, defaultMaxMemory),
		frame:     &frame{vars: make([]Value, t.slots)},
		out:       make([]byte, 0, 1024),
	}
	if st.now == nil {
		st.now = time.Now
	}
	if _, err := st.run(t.body); err != nil {
		return "", err
	}
	return string(st.out), nil
}

func positive(n, otherwise int) int {
	if n <= 0 {
		return otherwise
	}
	return n
}
