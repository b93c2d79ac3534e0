package generate

import "github.com/eagleray/eagleray/internal/api/wire"

// RefuseFields refuses fields of chat that the dialect of a route has under other names, or not at
// all ("").
func RefuseFields(f *wire.Fields, route string, fields map[string]string) {
	for name, instead := range fields {
		raw := f.Refused(name)
		switch {
		case raw == nil, wire.IsNull(raw), instead == "" && (string(raw) == "false" ||
			string(raw) == "1" && name == "n"):
		case instead == "":
			f.Fail(wire.BadRequest(name, "`%s` is not supported by %s", name, route))
		default:
			f.Fail(wire.BadRequest(name, "`%s` is for POST %s; this route, %s, takes `%s`", name,
				"/v1/chat/completions", route, instead))
		}
	}
}
