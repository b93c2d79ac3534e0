// Package output reads what a model wrote: it divides the text of an answer, as it comes, into
// reasoning, content and tool calls, by the conventions of the model's family. Whatever way the
// text is cut into pieces, the parts join to the same answer, and no part contradicts an earlier
// one: an answer that is streamed equals one that is not.
//
// The names of parsers are vLLM's (--tool-call-parser, --reasoning-parser).
package output

import "github.com/eagleray/eagleray/internal/text/typed"

// Kind says what a Part is.
type Kind uint8

// The kinds of parts.
const (
	// Reasoning is text that the model thought before its answer.
	Reasoning Kind = iota
	// Content is text for the user.
	Content
	// Call begins a call of a tool: Index, ID and Name are set.
	Call
	// Arguments is more of the arguments of call Index, JSON text.
	Arguments
)

// Part is a piece of an answer. Parts of one kind that follow one another belong together.
type Part struct {
	Kind Kind
	// Index counts the calls of the answer from 0; calls do not interleave.
	Index int
	// ID and Name are complete, in the part that begins the call.
	ID, Name string
	// Text is whole characters if what was pushed was.
	Text string
	// From and To are where content is in the answer, in bytes. What was left out within it, as
	// white space is before a call, is between.
	From, To int
}

// Span is a part of an answer, with its tags: from a byte up to another, math.MaxInt if it does not
// end, or has not yet.
type Span struct{ From, To int }

// State is what a prompt leaves of the reasoning.
type State uint8

const (
	// Unsaid prompts have neither begun the reasoning nor ended it.
	Unsaid State = iota
	// Open prompts have begun it: the answer goes on thinking.
	Open
	// Closed prompts have ended it: the answer is content.
	Closed
)

// Options say how an answer is read. The zero value takes all of it for content.
type Options struct {
	// Tools is how calls are written; nil for no calls.
	Tools *Format
	// Reasoning is how reasoning is written; nil for none.
	Reasoning *Thinking
	// State is what the prompt leaves of the reasoning.
	State State
	// Types says what a parameter of a function may be, for formats that write values without
	// quotes; nil says that nothing is known.
	Types func(function, parameter string) typed.Types
	// ID makes the id of a call that the model gave none.
	ID func() string
	// Drop are texts that are no part of an answer: special tokens that are in the text only
	// because tags are among them.
	Drop []string
	// Single ends the answer with its first call.
	Single bool
}
