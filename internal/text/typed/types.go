// Package typed is what the reading of a model's calls and the constraints on them have in common:
// the types of JSON, and the styles in which families of models write values without quotes.
package typed

// Types is a set of JSON types.
type Types uint8

// The types of JSON.
const (
	String Types = 1 << iota
	Number
	Bool
	Null
	Array
	Object
)

// Any is every type.
const Any = String | Number | Bool | Null | Array | Object
