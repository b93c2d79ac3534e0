// Package values has the values of templates with the semantics of the Python types they stand for:
// what they are, print as, compare as and are made of, and the budget that bounds a rendering.
package values

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// Kind is the type of a value.
type Kind uint8

const (
	// KindMissing marks a variable slot that holds nothing yet; templates never see it.
	KindMissing Kind = iota
	KindUndefined
	KindNone
	KindBool
	KindInt
	KindBig // an int outside int64: ref is a *big.Int
	KindFloat
	KindString
	KindList      // ref is a *list
	KindTuple     // ref is a *list
	KindMap       // ref is a *Map
	KindIter      // a Python iterator, spent by its first use: ref is a *iterator
	KindKeys      // dict views: ref is the *Map
	KindValues    //
	KindItems     //
	KindRange     // ref is a *rangeObject
	KindNamespace // ref is a *Map, the only thing a template may change
	KindLoop      // ref is an object
	KindFunc      // ref is a *function
	KindMacro     // ref is the macro, str its name
	KindCycler    // ref is a *cycler
	KindJoiner    // ref is a *joiner
)

// Value is a dynamic value as a template sees it, with the semantics of the Python type it stands
// for: undefined, None, bool, int, float, str, list, tuple, dict, and callables. Templates cannot
// change a Value; values given to Render may be shared between renderings that run at the same
// time. The zero Value is undefined.
type Value struct {
	Ref    any
	Text   string
	Num    int64 // bool, int, float bits; of an undefined value: why it is undefined
	Kind   Kind
	Markup bool // a str made by escape or safe (markupsafe's Markup)
}

// Object is what KindLoop refers to.
type Object interface {
	// Attribute is ErrNoAttribute for a name that it does not have.
	Attribute(name string) (Value, error)
}

// Sequence is what lists and tuples refer to.
type Sequence struct{ Items []Value }

type iterator struct {
	items []Value
	name  string // how Python prints its type
}

// Range is what KindRange refers to; N is its length.
type Range struct {
	Start, Stop, Step int64
	N                 int
}

// At is element i.
func (r *Range) At(i int) Value { return Int(r.Start + int64(i)*r.Step) }

// Why a value is undefined, kept in Value.num; Value.str is the name that was looked for.
const (
	undefVariable = iota
	UndefAttribute
	UndefElement
	UndefMessage // str is the whole message
)

// Undefined returns the undefined value: it prints as nothing, and using it otherwise is an error.
func Undefined() Value {
	return Value{Kind: KindUndefined, Num: UndefMessage, Text: "value is undefined"}
}

// None returns Python's None, JSON's null.
func None() Value { return Value{Kind: KindNone} }

// Bool returns a bool.
func Bool(b bool) Value {
	if b {
		return Value{Kind: KindBool, Num: 1}
	}
	return Value{Kind: KindBool}
}

// Int returns an int.
func Int(n int64) Value { return Value{Kind: KindInt, Num: n} }

// Float returns a float.
func Float(f float64) Value {
	return Value{Kind: KindFloat, Num: int64(math.Float64bits(f))}
}

// String returns a str. Bytes of s that are not UTF-8 become U+FFFD.
func String(s string) Value {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	return Str(s)
}

// resolved turns the zero Value, which callers may hold, into a proper undefined.
func (v Value) resolved() Value {
	if v.Kind == KindMissing {
		return Undefined()
	}
	return v
}

// Str returns a str of valid UTF-8; see [String].
func Str(s string) Value { return Value{Kind: KindString, Text: s} }

// NewList returns a list of l itself.
func NewList(l []Value) Value { return Value{Kind: KindList, Ref: &Sequence{l}} }

// NewTuple returns a tuple of l itself.
func NewTuple(l []Value) Value { return Value{Kind: KindTuple, Ref: &Sequence{l}} }

// UndefinedVariable is the undefined value of a variable that has none.
func UndefinedVariable(n string) Value {
	return Value{Kind: KindUndefined, Num: undefVariable, Text: n}
}

// NewIterator returns an iterator, which Python prints under name.
func NewIterator(name string, l []Value) Value {
	return Value{Kind: KindIter, Ref: &iterator{items: l, name: name}}
}

// Big returns an int.
func Big(n *big.Int) Value {
	if n.IsInt64() {
		return Int(n.Int64())
	}
	return Value{Kind: KindBig, Ref: n}
}

// AsFloat is the number of a float.
func (v Value) AsFloat() float64 { return math.Float64frombits(uint64(v.Num)) }

// Items are those of a list or tuple. They must not be changed.
func (v Value) Items() []Value { return v.Ref.(*Sequence).Items }

// Mapping is the map of a dict, a view or a namespace.
func (v Value) Mapping() *Map { return v.Ref.(*Map) }

// IsString tells whether v is a str.
func (v Value) IsString() bool { return v.Kind == KindString }

// AsString returns the text of a str, and whether v is one.
func (v Value) AsString() (string, bool) { return v.Text, v.Kind == KindString }

// AsMap returns the map of a dict, and whether v is one. It must not be changed.
func (v Value) AsMap() (*Map, bool) {
	if v.Kind != KindMap {
		return nil, false
	}
	return v.Mapping(), true
}

// AsList returns the items of a list, and whether v is one. They must not be changed.
func (v Value) AsList() ([]Value, bool) {
	if v.Kind != KindList {
		return nil, false
	}
	return v.Items(), true
}

// IsNone tells whether v is None.
func (v Value) IsNone() bool { return v.Kind == KindNone }

// IsUndefined tells whether v is undefined.
func (v Value) IsUndefined() bool { return v.Kind == KindUndefined || v.Kind == KindMissing }

// TypeName is the name of v's type as Python's messages have it.
func (v Value) TypeName() string {
	switch v.Kind {
	case KindUndefined, KindMissing:
		return "Undefined"
	case KindNone:
		return "NoneType"
	case KindBool:
		return "bool"
	case KindInt, KindBig:
		return "int"
	case KindFloat:
		return "float"
	case KindString:
		if v.Markup {
			return "Markup"
		}
		return "str"
	case KindList:
		return "list"
	case KindTuple:
		return "tuple"
	case KindMap:
		return "dict"
	case KindIter:
		return v.Ref.(*iterator).name
	case KindKeys:
		return "dict_keys"
	case KindValues:
		return "dict_values"
	case KindItems:
		return "dict_items"
	case KindRange:
		return "range"
	case KindNamespace:
		return "Namespace"
	case KindLoop:
		return "LoopContext"
	case KindMacro:
		return "Macro"
	case KindCycler:
		return "Cycler"
	case KindJoiner:
		return "Joiner"
	default:
		return "function"
	}
}

// Truth is Python's bool(v).
func (v Value) Truth() bool {
	switch v.Kind {
	case KindUndefined, KindMissing, KindNone:
		return false
	case KindBool, KindInt:
		return v.Num != 0
	case KindFloat:
		return v.AsFloat() != 0
	case KindString:
		return v.Text != ""
	case KindList, KindTuple:
		return len(v.Items()) > 0
	case KindMap, KindKeys, KindValues, KindItems:
		return v.Mapping().Len() > 0
	case KindRange:
		return v.Ref.(*Range).N > 0
	default:
		return true
	}
}

// UndefinedError explains the use of an undefined value the way jinja2 does.
func (v Value) UndefinedError() *Error {
	switch v.Num {
	case undefVariable:
		if v.Kind != KindMissing {
			return Errorf("'%s' is undefined", v.Text)
		}
		return Errorf("value is undefined")
	case UndefAttribute:
		owner, _ := v.Ref.(string)
		return Errorf("'%s' has no attribute '%s'", owner, v.Text)
	case UndefElement:
		owner, _ := v.Ref.(string)
		return Errorf("%s has no element %s", owner, v.Text)
	default:
		return Errorf("%s", v.Text)
	}
}

// Length is Python's len(v); ok is false where Python has none.
func (v Value) Length() (n int, ok bool) {
	switch v.Kind {
	case KindUndefined, KindMissing:
		return 0, true
	case KindString:
		return utf8.RuneCountInString(v.Text), true
	case KindList, KindTuple:
		return len(v.Items()), true
	case KindMap, KindKeys, KindValues, KindItems:
		return v.Mapping().Len(), true
	case KindRange:
		return v.Ref.(*Range).N, true
	case KindLoop:
		return 0, false
	default:
		return 0, false
	}
}

// Weight is a measure, in bytes, of what walking over v once costs.
func (v Value) Weight() int {
	if v.Kind == KindString {
		return len(v.Text)
	}
	n, _ := v.Length()
	return n * BytesPerStep
}
