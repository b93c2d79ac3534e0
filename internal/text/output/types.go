package output

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
