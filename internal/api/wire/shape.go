package wire

import (
	"encoding/json"
	"maps"
	"slices"
)

// Shape is what a decoder reads of a body: the fields that it asks for by name, with their types.
// A decoder is the only description of its requests, so a Shape is made by running it (Read).
type Shape map[string]*FieldShape

// FieldShape is a field in the words of JSON Schema.
type FieldShape struct {
	// Type is integer, number, boolean, string, array or object; "" where the decoder sees to it.
	Type string
	// Items is the type of an array's elements, or of an object's values; "" for any.
	Items string
	// Null says that null is as good as no field.
	Null bool
	// Low and High bound an integer; nil for no bound.
	Low, High *int64
	// Required says that there is an error without the field.
	Required bool
	// Kind is what it has within it; nil where no example has the field.
	Kind *Kind
}

// never is the type of fields that a route has not.
const never = "never"

// Read runs a decoder over examples of bodies, and returns what it asked for. A field is required
// that all examples have, and that each is refused without.
func Read(decode func(*Fields) *Error, lim Limits, examples ...string) Shape {
	shape := Shape{}
	var required []string
	for i, text := range examples {
		members, _ := ParseObject([]byte(text), lim) // one that is none has no members
		f := NewFields(members, lim)
		f.shape = shape
		_ = decode(f) // one that this server does not accept has asked for fields as well
		var needed []string
		for at, m := range members {
			rest := slices.Delete(slices.Clone(members), at, at+1)
			bad := decode(NewFields(rest, lim))
			if bad != nil && bad.Param == m.Key && (i == 0 || slices.Contains(required, m.Key)) {
				needed = append(needed, m.Key)
			}
		}
		required = needed
	}
	maps.DeleteFunc(shape, func(_ string, f *FieldShape) bool { return f.Type == never })
	for _, name := range required {
		if f := shape[name]; f != nil {
			f.Required = true
		}
	}
	return shape
}

// Try adds what bodies have within their fields that are arrays, objects, or of no one type: those
// fields of the examples that this server does not refuse.
func (s Shape) Try(decode func(*Fields) *Error, lim Limits, examples ...string) {
	seen := map[string]bool{}
	wanted := func(name string, v any) bool {
		f := s[name]
		if f == nil || f.Items != "" || f.Type != "" && f.Type != "array" && f.Type != "object" {
			return false
		}
		text, err := json.Marshal(v)
		again := seen[name+string(text)]
		seen[name+string(text)] = true
		return err == nil && !again
	}
	for _, text := range examples {
		for name, k := range kindsOf(decode, lim, text, wanted) {
			s[name].Kind = merged(s[name].Kind, k)
		}
	}
}

// note keeps what is asked of a field. The first type counts; that of a value which is read later
// is no type yet.
func (f *Fields) note(name string, s FieldShape) {
	if f.shape == nil {
		return
	}
	if known := f.shape[name]; known == nil || known.Type == "" && s.Type != "" {
		f.shape[name] = &s
	}
}

// noteStrings notes that the elements of a field that is an array are strings.
func (f *Fields) noteStrings(name string) {
	if known := f.shape[name]; known != nil && known.Type == "array" {
		known.Items = "string"
	}
}
