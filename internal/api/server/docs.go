package server

import "github.com/eagleray/eagleray/internal/api/wire"

// Doc is what /openapi.json says of a route beside its path.
type Doc struct {
	// Summary says in a line what the route does, Group what it is a part of.
	Summary, Group string
	Query          []Param
	// Body is of a request with one; nil for none.
	Body *Body
	// Answer is a value of the type of the answer with status 200; nil for one without a type.
	Answer any
	// Media is the type of an answer that is not JSON; "" for JSON, or none where Answer is nil.
	Media string
	// Events are values of the types of an answer's events, which it comes as where the request
	// asks for a stream; nil for one that does not.
	Events []any
	// Forms are bodies that have between them the forms of what fields have within them. A server
	// that refuses one does not describe them.
	Forms []string
}

// Param is a parameter of a URL: its type in the words of JSON Schema, and its values where there
// are few.
type Param struct {
	Name, Type string
	Values     []string
}

// Paged are the parameters of lists.
var Paged = []Param{{Name: "limit", Type: "integer"}, {Name: "after", Type: "string"},
	{Name: "order", Type: "string", Values: []string{"asc", "desc"}}}

// PagedByID are the parameters of Anthropic's lists.
var PagedByID = []Param{{Name: "limit", Type: "integer"}, {Name: "after_id", Type: "string"},
	{Name: "before_id", Type: "string"}}

// Body is what a request's body may have: the fields that its decoder reads, or for one that is
// decoded elsewhere, a value of its type.
type Body struct {
	Decode func(*wire.Fields) *wire.Error
	// Examples are bodies that are accepted, where the model allows.
	Examples []string
	// Forms are those of Doc.
	Forms []string
	Value any
	// Media is the type of one that is not JSON, "" for JSON.
	Media string
}

// Reads is the body that a decoder reads, with examples of it: together they have at least one of
// the fields of each kind that exclude each other.
func Reads[T any](decode func(*wire.Fields) (T, *wire.Error), examples ...string) *Body {
	return &Body{Examples: examples, Decode: func(f *wire.Fields) *wire.Error {
		_, bad := decode(f)
		return bad
	}}
}
