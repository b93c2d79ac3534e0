package generate

import (
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
	"github.com/eagleray/eagleray/internal/text/output"
)

// anyType is every type of JSON.
const anyType = output.String | output.Number | output.Bool | output.Null | output.Array |
	output.Object

var typeNames = map[string]output.Types{"string": output.String, "number": output.Number,
	"integer": output.Number, "boolean": output.Bool, "null": output.Null, "array": output.Array,
	"object": output.Object}

// parameterTypes are the types of the parameters of every tool, by function and parameter.
func parameterTypes(tools []Tool) map[string]map[string]output.Types {
	types := map[string]map[string]output.Types{}
	for _, t := range tools {
		if t.parameters == nil {
			continue
		}
		of := map[string]output.Types{}
		types[t.Name] = of
		for name, s := range jsonx.Members(MemberOf(t.parameters, "properties", '{')) {
			of[name] = schemaTypes(t.parameters, s, maxTypeDepth)
		}
	}
	return types
}

// MemberOf returns a member of an object, nil where there is none that begins so.
func MemberOf(object []byte, name string, begin byte) []byte {
	if len(object) == 0 || object[0] != '{' {
		return nil
	}
	for key, raw := range jsonx.Members(object) {
		if key == name && raw[0] == begin {
			return raw
		}
	}
	return nil
}

// maxTypeDepth bounds how deep a type is looked for.
const maxTypeDepth = 8

// schemaTypes are the types that a schema admits, as far as they are easily seen; document is what
// its references are into.
func schemaTypes(document, schema []byte, depth int) output.Types {
	if schema[0] != '{' || depth == 0 {
		return anyType
	}
	types := anyType
	for key, raw := range jsonx.Members(schema) {
		var of output.Types
		switch {
		case key == "type" && raw[0] == '"':
			of = typeNames[wire.Unquote(raw)]
		case key == "type" && raw[0] == '[':
			for _, s := range jsonx.Elements(raw) {
				if s[0] == '"' {
					of |= typeNames[wire.Unquote(s)]
				}
			}
		case key == "enum" && raw[0] == '[':
			for _, s := range jsonx.Elements(raw) {
				of |= valueType(s)
			}
		case key == "const":
			of = valueType(raw)
		case (key == "anyOf" || key == "oneOf") && raw[0] == '[':
			for _, s := range jsonx.Elements(raw) {
				of |= schemaTypes(document, s, depth-1)
			}
		case key == "$ref" && raw[0] == '"':
			if to := referred(document, wire.Unquote(raw)); to != nil {
				of = schemaTypes(document, to, depth-1)
			}
		default:
			continue
		}
		if of != 0 {
			types &= of
		}
	}
	return types
}

// referred is what "#/$defs/name" or "#/definitions/name" refers to, nil for other references.
func referred(document []byte, ref string) []byte {
	for _, in := range []string{"$defs", "definitions"} {
		if name, ok := strings.CutPrefix(ref, "#/"+in+"/"); ok {
			return MemberOf(MemberOf(document, in, '{'), name, '{')
		}
	}
	return nil
}

func valueType(raw []byte) output.Types {
	switch raw[0] {
	case '"':
		return output.String
	case '{':
		return output.Object
	case '[':
		return output.Array
	case 't', 'f':
		return output.Bool
	case 'n':
		return output.Null
	}
	return output.Number
}
