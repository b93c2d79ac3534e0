package chattemplate

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

type (
	// Value is a dynamic value as a template sees it. The zero Value is undefined.
	Value = values.Value
	// Map is a dict: it keeps its keys in the order they were first set. It is not safe to Set
	// while another goroutine reads it.
	Map = values.Map
	// Error is a template that does not parse or a rendering that failed.
	Error = values.Error
)

// None returns Python's None, JSON's null.
func None() Value { return values.None() }

// Bool returns a bool.
func Bool(b bool) Value { return values.Bool(b) }

// String returns a str. Bytes of s that are not UTF-8 become U+FFFD.
func String(s string) Value { return values.String(s) }

// NewMap returns an empty map.
func NewMap() *Map { return values.NewMap() }

// FromJSON reads a JSON text as Python's json.loads does: see [values.FromJSON].
func FromJSON(raw []byte) (Value, error) { return values.FromJSON(raw) }
