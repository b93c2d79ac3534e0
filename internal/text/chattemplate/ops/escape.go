package ops

import (
	"strings"

	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`,
	"&#34;")

// Escape is markupsafe's escape: it leaves Markup alone.
func Escape(run *values.Budget, v values.Value) (values.Value, error) {
	if v.Kind == values.KindString && v.Markup {
		return v, nil
	}
	v, err := run.ToString(v)
	if err == nil {
		v, err = run.NewString(htmlEscapes.Replace(v.Text))
	}
	v.Markup = true
	return v, err
}
