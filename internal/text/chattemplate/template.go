// Package chattemplate renders Hugging Face chat templates: the subset of Jinja2 that such
// templates use, evaluated with the semantics of Python's jinja2 3.1 in the environment that
// transformers sets up (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls,
// the generation tag, tojson as json.dumps(ensure_ascii=False), raise_exception, strftime_now),
// byte for byte.
//
// A template comes with the model and is untrusted: it reaches no Go object, changes nothing but
// its own namespaces, and every rendering is bounded in steps, output, memory and recursion.
//
// The work is done further down, each package using those after it only: eval runs the tree that
// parser makes of lexer's tokens; builtins are jinja2's filters, tests and functions, ops what
// Python does with values.
package chattemplate

import (
	"time"

	"github.com/eagleray/eagleray/internal/text/chattemplate/eval"
	"github.com/eagleray/eagleray/internal/text/chattemplate/parser"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

const (
	defaultMaxOutput = 16 << 20
	defaultMaxSteps  = 10_000_000
	defaultMaxMemory = 512 << 20

	maxSource = 1 << 20 // bytes of template text
)

// Options bound and feed one rendering. The zero Options are the defaults.
type Options struct {
	// Now is the clock of strftime_now; nil means time.Now.
	Now func() time.Time
	// MaxOutput is the largest output, in bytes; 0 means 16 MiB.
	MaxOutput int
	// MaxSteps bounds the work: one step per evaluated node, iteration, and 64 bytes of text
	// handled; 0 means 10 million.
	MaxSteps int
	// Stop is asked now and then whether to go on, and ends the rendering by its error; nil is
	// never.
	Stop func() error
	// MaxMemory bounds the bytes of all strings, lists and maps the template makes, freed or not; 0
	// means 512 MiB.
	MaxMemory int
}

// Template is a parsed chat template. It is immutable, and safe for use by several goroutines.
type Template struct {
	parsed *parser.Parsed
	source string
}

// Reads is whether the template has a place for a variable: it reads the name somewhere.
func (t *Template) Reads(variable string) bool { return t.parsed.Reads[variable] }

// Source is the text of the template.
func (t *Template) Source() string { return t.source }

// Parse parses a template. The error, if any, is an *Error.
func Parse(source string) (*Template, error) {
	if len(source) > maxSource {
		return nil, values.Errorf("template has %d bytes, more than %d", len(source), maxSource)
	}
	parsed, err := parser.Parse(source)
	if err != nil {
		return nil, err
	}
	return &Template{parsed: parsed, source: source}, nil
}

// Render evaluates the template with the given variables (messages, tools, add_generation_prompt,
// bos_token and so on) and returns the text. The error, if any, is an *Error.
func (t *Template) Render(vars *values.Map, opt Options) (string, error) {
	run := values.Budget{
		Now:       opt.Now,
		Stop:      opt.Stop,
		MaxOutput: positive(opt.MaxOutput, defaultMaxOutput),
		Steps:     positive(opt.MaxSteps, defaultMaxSteps),
		Memory:    positive(opt.MaxMemory, defaultMaxMemory),
	}
	if run.Now == nil {
		run.Now = time.Now
	}
	return eval.Render(t.parsed.Body, t.parsed.Slots, vars, run)
}

func positive(n, otherwise int) int {
	if n <= 0 {
		return otherwise
	}
	return n
}
