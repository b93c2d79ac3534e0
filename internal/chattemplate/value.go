package chattemplate

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

type kind uint8

const (
	// kindMissing marks a variable slot that holds nothing yet; templates never see it.
	kindMissing kind = iota
	kindUndefined
	kindNone
	kindBool
	kindInt
	kindBig // an int outside int64: ref is a *big.Int
	kindFloat
	kindString
	kindList      // ref is a *list
	kindTuple     // ref is a *list
	kindMap       // ref is a *Map
	kindIter      // a Python iterator, spent by its first use: ref is a *iterator
	kindKeys      // dict views: ref is the *Map
	kindValues    //
	kindItems     //
	kindRange     // ref is a *rangeObject
	kindNamespace // ref is a *Map, the only thing a template may change
	kindLoop      // ref is an object
	kindFunc      // ref is a *function
	kindMacro     // ref is the macro, str its name
	kindCycler    // ref is a *cycler
	kindJoiner    // ref is a *joiner
)

// Value is a dynamic value as a template sees it, with the semantics of the Python type it stands for:
// undefined, None, bool, int, float, str, list, tuple, dict, and callables. Templates cannot change a
// Value; values given to Render may be shared between renderings that run at the same time. The zero
// Value is undefined.
type Value struct {
	ref    any
	str    string
	num    int64 // bool, int, float bits; of an undefined value: why it is undefined
	kind   kind
	markup bool // a str made by escape or safe (markupsafe's Markup)
}

// object is what kindLoop refers to.
type object interface {
	// attribute is errNoAttribute for a name that it does not have.
	attribute(name string) (Value, error)
}

type list struct{ items []Value }

type iterator struct {
	items []Value
	name  string // how Python prints its type
}

type rangeObject struct {
	start, stop, step int64
	n                 int
}

func (r *rangeObject) at(i int) Value { return Int(r.start + int64(i)*r.step) }

// Why a value is undefined, kept in Value.num; Value.str is the name that was looked for.
const (
	undefVariable = iota
	undefAttribute
	undefElement
	undefMessage // str is the whole message
)

// Undefined returns the undefined value: it prints as nothing, and using it otherwise is an error.
func Undefined() Value {
	return Value{kind: kindUndefined, num: undefMessage, str: "value is undefined"}
}

// None returns Python's None, JSON's null.
func None() Value { return Value{kind: kindNone} }

// Bool returns a bool.
func Bool(b bool) Value {
	if b {
		return Value{kind: kindBool, num: 1}
	}
	return Value{kind: kindBool}
}

// Int returns an int.
func Int(n int64) Value { return Value{kind: kindInt, num: n} }

// Float returns a float.
func Float(f float64) Value {
	return Value{kind: kindFloat, num: int64(math.Float64bits(f))}
}

// String returns a str. Bytes of s that are not UTF-8 become U+FFFD.
func String(s string) Value {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	return strValue(s)
}

// List returns a list of the given values, which it copies.
func List(items ...Value) Value {
	copied := make([]Value, len(items))
	for i, v := range items {
		copied[i] = v.settled()
	}
	return listValue(copied)
}

// settled turns the zero Value, which callers may hold, into a proper undefined.
func (v Value) settled() Value {
	if v.kind == kindMissing {
		return Undefined()
	}
	return v
}

func strValue(s string) Value     { return Value{kind: kindString, str: s} }
func listValue(l []Value) Value   { return Value{kind: kindList, ref: &list{l}} }
func tupleValue(l []Value) Value  { return Value{kind: kindTuple, ref: &list{l}} }
func undefinedVar(n string) Value { return Value{kind: kindUndefined, num: undefVariable, str: n} }

func iterValue(name string, l []Value) Value {
	return Value{kind: kindIter, ref: &iterator{items: l, name: name}}
}

func bigValue(n *big.Int) Value {
	if n.IsInt64() {
		return Int(n.Int64())
	}
	return Value{kind: kindBig, ref: n}
}

func (v Value) float() float64 { return math.Float64frombits(uint64(v.num)) }
func (v Value) items() []Value { return v.ref.(*list).items }
func (v Value) mapping() *Map  { return v.ref.(*Map) }
func (v Value) isString() bool { return v.kind == kindString }

// AsString returns the text of a str, and whether v is one.
func (v Value) AsString() (string, bool) { return v.str, v.kind == kindString }

// AsMap returns the map of a dict, and whether v is one. It must not be changed.
func (v Value) AsMap() (*Map, bool) {
	if v.kind != kindMap {
		return nil, false
	}
	return v.mapping(), true
}

// AsList returns the items of a list, and whether v is one. They must not be changed.
func (v Value) AsList() ([]Value, bool) {
	if v.kind != kindList {
		return nil, false
	}
	return v.items(), true
}

// IsNone tells whether v is None.
func (v Value) IsNone() bool { return v.kind == kindNone }

// IsUndefined tells whether v is undefined.
func (v Value) IsUndefined() bool { return v.kind == kindUndefined || v.kind == kindMissing }

// typeName is the name of v's type as Python's messages have it.
func (v Value) typeName() string {
	switch v.kind {
	case kindUndefined, kindMissing:
		return "Undefined"
	case kindNone:
		return "NoneType"
	case kindBool:
		return "bool"
	case kindInt, kindBig:
		return "int"
	case kindFloat:
		return "float"
	case kindString:
		if v.markup {
			return "Markup"
		}
		return "str"
	case kindList:
		return "list"
	case kindTuple:
		return "tuple"
	case kindMap:
		return "dict"
	case kindIter:
		return v.ref.(*iterator).name
	case kindKeys:
		return "dict_keys"
	case kindValues:
		return "dict_values"
	case kindItems:
		return "dict_items"
	case kindRange:
		return "range"
	case kindNamespace:
		return "Namespace"
	case kindLoop:
		return "LoopContext"
	case kindMacro:
		return "Macro"
	case kindCycler:
		return "Cycler"
	case kindJoiner:
		return "Joiner"
	default:
		return "function"
	}
}

// truth is Python's bool(v).
func (v Value) truth() bool {
	switch v.kind {
	case kindUndefined, kindMissing, kindNone:
		return false
	case kindBool, kindInt:
		return v.num != 0
	case kindFloat:
		return v.float() != 0
	case kindString:
		return v.str != ""
	case kindList, kindTuple:
		return len(v.items()) > 0
	case kindMap, kindKeys, kindValues, kindItems:
		return v.mapping().Len() > 0
	case kindRange:
		return v.ref.(*rangeObject).n > 0
	default:
		return true
	}
}

// undefinedError explains the use of an undefined value the way jinja2 does.
func (v Value) undefinedError() *Error {
	switch v.num {
	case undefVariable:
		if v.kind != kindMissing {
			return errorf("'%s' is undefined", v.str)
		}
		return errorf("value is undefined")
	case undefAttribute:
		owner, _ := v.ref.(string)
		return errorf("'%s' has no attribute '%s'", owner, v.str)
	case undefElement:
		owner, _ := v.ref.(string)
		return errorf("%s has no element %s", owner, v.str)
	default:
		return errorf("%s", v.str)
	}
}

// length is Python's len(v); ok is false where Python has none.
func (v Value) length() (n int, ok bool) {
	switch v.kind {
	case kindUndefined, kindMissing:
		return 0, true
	case kindString:
		return utf8.RuneCountInString(v.str), true
	case kindList, kindTuple:
		return len(v.items()), true
	case kindMap, kindKeys, kindValues, kindItems:
		return v.mapping().Len(), true
	case kindRange:
		return v.ref.(*rangeObject).n, true
	case kindLoop:
		return 0, false
	default:
		return 0, false
	}
}

// weight is a measure, in bytes, of what walking over v once costs.
func (v Value) weight() int {
	if v.kind == kindString {
		return len(v.str)
	}
	n, _ := v.length()
	return n * bytesPerStep
}
