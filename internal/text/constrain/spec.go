// Package constrain restricts the tokens of an answer to those that keep its text within a
// language: a JSON Schema, a regular expression, a list of choices, a grammar, a structural tag. It
// is pure: it does no I/O, starts nothing, and gives equal results for equal input on every
// machine.
package constrain

import "fmt"

// Kind says what the text of a Spec is.
type Kind uint8

// The kinds of constraints.
const (
	// None is no constraint: the zero Spec.
	None Kind = iota
	// JSONSchema is a JSON Schema; the text is the schema.
	JSONSchema
	// JSONObject is any JSON object; the text is empty.
	JSONObject
	// Regex is a regular expression that the whole answer matches.
	Regex
	// Choice is a list of texts, as a JSON array of strings, of which the answer is one.
	Choice
	// Grammar is a context-free grammar in GBNF, EBNF or Lark's notation.
	Grammar
	// StructuralTag is a structural tag in xgrammar's JSON format.
	StructuralTag
	// Kinds is the number of values above.
	Kinds = iota
)

// String returns the name of the kind in the field structured_outputs of vLLM's API.
func (k Kind) String() string {
	switch k {
	case None:
		return "none"
	case JSONSchema:
		return "json"
	case JSONObject:
		return "json_object"
	case Regex:
		return "regex"
	case Choice:
		return "choice"
	case Grammar:
		return "grammar"
	case StructuralTag:
		return "structural_tag"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Spec states one constraint. Equal specs mean the same; the zero Spec is no constraint.
type Spec struct {
	Kind Kind
	// Text is what Kind says.
	Text string
	// Compact leaves no choice of white space between the tokens of JSON: none at all.
	Compact bool
	// Closed leaves keys out of JSON that a schema with properties does not mention, unless it says
	// something about such keys.
	Closed bool
	// AnyOrder lets the keys of an object stand in any order, not only in that of the schema; an
	// object with more than 500 keys keeps the schema's.
	AnyOrder bool
}

// Error is why a Spec cannot be enforced.
type Error struct {
	// Code is one of the reasons of package cfg, such as regex_invalid.
	Code string
	// Pointer is the JSON pointer to the part of the text at fault, where it is JSON; elsewhere it
	// is "" or "line:column".
	Pointer string
	// Source names the part of a structural tag at fault, where the tag does; Pointer is then into
	// that part alone.
	Source string
	// Reason says what is wrong, in the terms of who wrote the text.
	Reason string
	// Subject is the keyword or construct at fault, for counts of reasons; it may be "".
	Subject string
	// TooComplex says that a budget ran out, not that the text is wrong.
	TooComplex bool
}

// Error returns the reason, after the pointer if there is one.
func (e *Error) Error() string {
	if e.Pointer == "" {
		return e.Reason
	}
	return "at " + e.Pointer + ": " + e.Reason
}
