package openai

import (
	"strings"

	"github.com/eagleray/eagleray/internal/answer"
	"github.com/eagleray/eagleray/internal/jsonx"
)

// anyType is every type of JSON.
const anyType = answer.String | answer.Number | answer.Bool | answer.Null | answer.Array |
	answer.Object

var typeNames = map[string]answer.Types{"string": answer.String, "number": answer.Number,
	"integer": answer.Number, "boolean": answer.Bool, "null": answer.Null, "array": answer.Array,
	"object": answer.Object}

// parameterTypes are the types of the parameters of every tool, by function and parameter; tools
// is a checked list.
func parameterTypes(tools []byte) map[string]map[string]answer.Types {
	types := map[string]map[string]answer.Types{}
	for _, tool := range jsonx.Elements(tools) {
		schema := parameters(tool)
		if schema == nil {
			continue
		}
		of := map[string]answer.Types{}
		types[functionName(tool)] = of
		for name, s := range jsonx.Members(memberOf(schema, "properties", '{')) {
			of[name] = schemaTypes(schema, s, maxTypeDepth)
		}
	}
	return types
}

// parameters is the schema of a tool's arguments, nil for none.
func parameters(tool []byte) []byte {
	return memberOf(memberOf(tool, "function", '{'), "parameters", '{')
}

// memberOf returns a member of an object, nil where there is none that begins so.
func memberOf(object []byte, name string, begin byte) []byte {
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
func schemaTypes(document, schema []byte, depth int) answer.Types {
	if schema[0] != '{' || depth == 0 {
		return anyType
	}
	types := anyType
	for key, raw := range jsonx.Members(schema) {
		var of answer.Types
		switch {
		case key == "type" && raw[0] == '"':
			of = typeNames[unquote(raw)]
		case key == "type" && raw[0] == '[':
			for _, s := range jsonx.Elements(raw) {
				if s[0] == '"' {
					of |= typeNames[unquote(s)]
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
			if to := referred(document, unquote(raw)); to != nil {
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
			return memberOf(memberOf(document, in, '{'), name, '{')
		}
	}
	return nil
}

func valueType(raw []byte) answer.Types {
	switch raw[0] {
	case '"':
		return answer.String
	case '{':
		return answer.Object
	case '[':
		return answer.Array
	case 't', 'f':
		return answer.Bool
	case 'n':
		return answer.Null
	}
	return answer.Number
}
