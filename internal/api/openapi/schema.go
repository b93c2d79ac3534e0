package openapi

import (
	"encoding"
	"encoding/json"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// schema is a JSON Schema (draft 2020-12, as OpenAPI 3.1 has it).
type schema map[string]any

// schemas are those of the types that have names, by these.
type schemas map[string]schema

// prefix is where the document has them.
const prefix = "#/components/schemas/"

var (
	rawMessage    = reflect.TypeFor[json.RawMessage]()
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// of is the schema of a type as encoding/json writes it. A slice or map is never null unless its
// field says so by the tag null:"true"; a text with the tag enum is one of its words.
func (s schemas) of(t reflect.Type) schema {
	switch {
	case t.Kind() == reflect.Pointer:
		return nullable(s.of(t.Elem()))
	case t == rawMessage, t.Implements(marshaler), t.Kind() == reflect.Interface:
		return schema{}
	case t.Implements(textMarshaler):
		return schema{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return schema{"type": "number"}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return schema{"type": "string", "contentEncoding": "base64"}
		}
		return schema{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		return s.named(t)
	}
	return schema{"type": "integer"}
}

// named is a reference to a struct, which is described once; one without a name is described where
// it stands.
func (s schemas) named(t reflect.Type) schema {
	name := typeName(t)
	if name == "" {
		return s.object(t)
	}
	if s[name] == nil {
		s[name] = schema{} // a type may be within itself
		s[name] = s.object(t)
	}
	return schema{"$ref": prefix + name}
}

// typeName is package.Type, "" for a type without a name.
func typeName(t reflect.Type) string {
	if t.Name() == "" {
		return ""
	}
	name, of, generic := strings.Cut(t.Name(), "[")
	if generic { // answer[…/pooling.scoreItem] is AnswerOfScoreItem
		of = strings.TrimSuffix(of, "]")
		name += "Of" + exported(of[strings.LastIndex(of, ".")+1:])
	}
	return path.Base(t.PkgPath()) + "." + exported(name)
}

func exported(name string) string {
	r := []rune(name)
	r[0] = unicode.ToUpper(r[0])
	return string(r)
}

func (s schemas) object(t reflect.Type) schema {
	properties, required := schema{}, []string{}
	s.members(t, properties, &required)
	v := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		v["required"] = required
	}
	return v
}

// members adds the fields of a struct, and those of structs that it embeds.
func (s schemas) members(t reflect.Type, properties schema, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			s.members(f.Type, properties, required)
			continue
		case name == "-" || !f.IsExported():
			continue
		case name == "":
			name = f.Name
		}
		v := s.of(f.Type)
		if words := f.Tag.Get("enum"); words != "" {
			v["enum"] = strings.Split(words, ",")
		}
		if f.Tag.Get("null") == "true" {
			v = nullable(v)
		}
		properties[name] = v
		if !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}

// nullable is a schema that null is valid by as well.
func nullable(s schema) schema {
	switch kind := s["type"].(type) {
	case string:
		s["type"] = []string{kind, "null"}
		return s
	case nil:
		if s["$ref"] != nil {
			return schema{"anyOf": []schema{s, {"type": "null"}}}
		}
	}
	return s
}

// requestOf is the schema of what a decoder reads. Fields that are not known are ignored.
func requestOf(shape wire.Shape) schema {
	properties, required := schema{}, []string{}
	for name, f := range shape {
		v := schema{}
		if f.Type != "" {
			v["type"] = f.Type
		}
		switch {
		case f.Items != "" && f.Type == "object":
			v["additionalProperties"] = schema{"type": f.Items}
		case f.Items != "":
			v["items"] = schema{"type": f.Items}
		}
		if f.Low != nil {
			v["minimum"], v["maximum"] = *f.Low, *f.High
		}
		if f.Kind != nil && f.Items == "" {
			if f.Null && !f.Required {
				f.Kind.Types["null"] = true
			}
			v = kindOf(f.Kind)
		} else if f.Null {
			v = nullable(v)
		}
		properties[name] = v
		if f.Required {
			required = append(required, name)
		}
	}
	v := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		v["required"] = sorted(required)
	}
	return v
}

// kindOf is the schema of what a decoder accepts in a place.
func kindOf(k *wire.Kind) schema {
	forms := make([]schema, 0, len(k.Objects))
	for _, o := range k.Objects {
		forms = append(forms, objectOf(o))
	}
	if k.Any() { // the names are for those who read
		if len(forms) == 0 {
			return schema{}
		}
		return forms[0]
	}
	var plain []string
	var list []schema
	for _, name := range slices.Sorted(maps.Keys(k.Types)) {
		switch {
		case name == "integer" && k.Types["number"]:
		case name == "object" && len(forms) > 0:
			for _, f := range forms {
				f["type"] = name
				list = append(list, f)
			}
		case name == "array" && k.Items != nil:
			list = append(list, schema{"type": name, "items": kindOf(k.Items)})
		case name == "string" && k.Words != nil:
			list = append(list, schema{"type": name, "enum": k.Words})
		default:
			plain = append(plain, name)
		}
	}
	if len(plain) == 1 {
		list = append(list, schema{"type": plain[0]})
	} else if len(plain) > 1 {
		list = append(list, schema{"type": plain})
	}
	return oneOf(list)
}

func objectOf(o *wire.Object) schema {
	properties := schema{}
	for name, k := range o.Members {
		properties[name] = kindOf(k)
	}
	v := schema{}
	if len(properties) > 0 {
		v["properties"] = properties
	}
	if o.Required != nil {
		v["required"] = o.Required
	}
	if o.Values != nil {
		v["additionalProperties"] = kindOf(o.Values)
	}
	return v
}

// oneOf is the schema of what one of several is of.
func oneOf(list []schema) schema {
	if len(list) == 1 {
		return list[0]
	}
	return schema{"anyOf": list}
}
