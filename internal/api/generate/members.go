package generate

import (
	"github.com/eagleray/eagleray/internal/sys/jsonx"
	"github.com/eagleray/eagleray/internal/text/constrain/schema"
	"github.com/eagleray/eagleray/internal/text/typed"
)

// parameterTypes says which types the parameters of functions may have. It reads the schema of a
// tool when that is called.
func parameterTypes(tools []Tool) func(function, parameter string) typed.Types {
	known := map[string]map[string]typed.Types{}
	return func(function, parameter string) typed.Types {
		types, ok := known[function]
		if !ok {
			for _, t := range tools {
				if t.Name == function && t.parameters != nil {
					types = schema.Types(string(t.parameters))
				}
			}
			known[function] = types
		}
		return types[parameter]
	}
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
