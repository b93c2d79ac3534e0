package chattemplate

import (
	"strings"
)

var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

// Escape is markupsafe's escape: it leaves Markup alone.
func Escape(run *budget, v Value) (Value, error) {
	if v.kind == kindString && v.markup {
		return v, nil
	}
	v, err := run.toString(v)
	if err == nil {
		v, err = run.newString(htmlEscapes.Replace(v.str))
	}
	v.markup = true
	return v, err
}
