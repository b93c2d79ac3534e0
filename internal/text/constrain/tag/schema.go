package tag

import (
	"encoding/json"
	"strings"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
)

// schema is the symbol of the valid texts of a schema, in one of the styles of writing them.
func (c *compiler) schema(f *format, at string) (cfg.Sym, error) {
	at += "/json_schema"
	if f.Schema == nil {
		return cfg.None, invalid(at, "there is no json_schema")
	}
	if f.Type == "qwen_xml_parameter" {
		f.Style = "qwen_xml"
	}
	switch f.Style {
	case "", "json":
		text := string(f.Schema)
		if quoted, ok := asText(f.Schema); ok && json.Valid([]byte(quoted)) {
			text = quoted
		}
		s, err := c.h.Schema(text, f.Closed)
		return s, within(at, err)
	}
	if s := styles[f.Style]; s != nil {
		return c.styled(s, f.Schema, at)
	}
	return cfg.None, invalid(strings.TrimSuffix(at, "/json_schema")+"/style",
		"the style %q is not supported", f.Style)
}
