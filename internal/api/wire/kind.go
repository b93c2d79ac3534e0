package wire

import (
	"encoding/json"
	"maps"
	"slices"
)

// Kind is what a decoder accepts in a place of a body. It is found by trying: what stands there in
// an example is replaced by values of other types, and each of its members is left out. So it
// cannot differ from what the decoder does. Types beside the decoders would one day, and what only
// a chat template reads is passed on unread: it has no type either way.
type Kind struct {
	// Types are those of JSON Schema that are accepted, by name.
	Types map[string]bool
	// Words are the only texts that are accepted; nil for any.
	Words []string
	// Items are an array's elements, nil where the examples have none.
	Items *Kind
	// Objects are the forms of an object, which differ by the words of their type.
	Objects []*Object
}

// Object is a form of an object.
type Object struct {
	// Members are by name. Others are ignored, or refused.
	Members map[string]*Kind
	// Required are the members that the decoder wants, in order.
	Required []string
	// Values are those of an object whose names are numbers; nil for others.
	Values *Kind
}

// samples are a value of each type.
var samples = map[string]any{"null": nil, "boolean": true, "integer": 7, "number": 7.5,
	"string": "word", "array": []any{}, "object": map[string]any{}}

// enumerated are the names of members whose texts are words of the API; other texts that are
// refused are so for what they refer to.
var enumerated = []string{"type", "role", "mode", "effort"}

// Any says that values of every type are accepted.
func (k *Kind) Any() bool { return len(k.Types) >= len(samples)-1 }

// kindsOf are the kinds of the members of an example that are wanted, nil for one that is refused.
func kindsOf(decode func(*Fields) *Error, lim Limits, example string,
	wanted func(name string, v any) bool) map[string]*Kind {
	accepts := func(body map[string]any) bool {
		text, err := json.Marshal(body)
		if err != nil {
			return false
		}
		members, bad := ParseObject(text, lim)
		return bad == nil && decode(NewFields(members, lim)) == nil
	}
	var body map[string]any
	if json.Unmarshal([]byte(example), &body) != nil || !accepts(body) {
		return nil
	}
	kinds := map[string]*Kind{}
	for name, v := range body {
		if !wanted(name, v) {
			continue
		}
		kinds[name] = kindOf(v, true, func(other any) bool {
			return accepts(with(body, name, other))
		})
	}
	return kinds
}

// kindOf is the kind of a place where v stands; try says of another value whether it is accepted.
// A text of which others are refused is a word where there may be some.
func kindOf(v any, words bool, try func(any) bool) *Kind {
	k := &Kind{Types: map[string]bool{typeOf(v): true}}
	for name, sample := range samples {
		// A boolean is a number to a lenient reader.
		if _, numeric := v.(float64); !(numeric && name == "boolean") && try(sample) {
			k.Types[name] = true
		}
	}
	switch v := v.(type) {
	case string:
		if words && !try(samples["string"]) {
			k.Words = []string{v}
		}
	case []any:
		for i, e := range v {
			k.Items = merged(k.Items, kindOf(e, true, func(other any) bool {
				list := slices.Clone(v)
				list[i] = other
				return try(list)
			}))
		}
	case map[string]any:
		k.Objects = []*Object{objectOf(v, try)}
	}
	return k
}

func objectOf(v map[string]any, try func(any) bool) *Object {
	o := &Object{Members: map[string]*Kind{}}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		k := kindOf(v[name], slices.Contains(enumerated, name), func(other any) bool {
			return try(with(v, name, other))
		})
		if name[0] >= '0' && name[0] <= '9' {
			o.Values = merged(o.Values, k)
			continue
		}
		o.Members[name] = k
		rest := maps.Clone(v)
		delete(rest, name)
		if !try(rest) {
			o.Required = append(o.Required, name)
		}
	}
	return o
}

// with is an object that has another value for a member.
func with(object map[string]any, name string, value any) map[string]any {
	object = maps.Clone(object)
	object[name] = value
	return object
}

// typeOf is the type of a value that encoding/json has read.
func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case float64:
		if v == float64(int64(v)) {
			return "integer"
		}
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}

// merged is what one of two kinds is; nil is none.
func merged(a, b *Kind) *Kind {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	k := &Kind{Types: maps.Clone(a.Types), Items: merged(a.Items, b.Items),
		Objects: slices.Clone(a.Objects)}
	maps.Copy(k.Types, b.Types)
	switch {
	case !a.Types["string"]:
		k.Words = b.Words
	case !b.Types["string"]:
		k.Words = a.Words
	case a.Words != nil && b.Words != nil:
		k.Words = slices.Compact(slices.Sorted(slices.Values(slices.Concat(a.Words, b.Words))))
	}
	for _, o := range b.Objects {
		i := slices.IndexFunc(k.Objects, o.resembles)
		if i < 0 {
			k.Objects = append(k.Objects, o)
		} else {
			k.Objects[i] = k.Objects[i].merge(o)
		}
	}
	return k
}

// resembles says that two are one form: their types have a word in common, or are no words, or
// nothing else differs.
func (o *Object) resembles(other *Object) bool {
	a, b := o.Members["type"], other.Members["type"]
	if a == nil || b == nil || a.Words == nil || b.Words == nil {
		return true
	}
	shared := func(w string) bool { return slices.Contains(b.Words, w) }
	return slices.ContainsFunc(a.Words, shared) ||
		slices.Equal(o.names(), other.names()) && slices.Equal(o.Required, other.Required)
}

func (o *Object) names() []string { return slices.Sorted(maps.Keys(o.Members)) }

func (o *Object) merge(other *Object) *Object {
	m := &Object{Members: maps.Clone(o.Members), Values: merged(o.Values, other.Values)}
	for name, k := range other.Members {
		m.Members[name] = merged(m.Members[name], k)
	}
	for _, name := range o.Required {
		if slices.Contains(other.Required, name) {
			m.Required = append(m.Required, name)
		}
	}
	return m
}
