package builtins

import (
	"strings"

	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

func filterToJSON(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [4]values.Value
	if err := a.Bind(p[:], 0, "ensure_ascii", "indent", "separators", "sort_keys"); err != nil {
		return values.Value{}, err
	}
	style := &values.JSONStyle{EnsureASCII: p[0].Truth(), SortKeys: p[3].Truth(), ItemSep: ", ",
		KeySep: ": "}
	switch indent := p[1]; indent.Kind {
	case values.KindMissing, values.KindNone:
	case values.KindString:
		style.Lines, style.Indent = true, indent.Text
	case values.KindInt, values.KindBool:
		if indent.Num > 1000 {
			return values.Value{}, values.Errorf("indent %d is too large", indent.Num)
		}
		style.Lines, style.Indent = true, strings.Repeat(" ", int(max(0, indent.Num)))
	default:
		return values.Value{}, values.Errorf("indent must be an int or a str, not %s",
			indent.TypeName())
	}
	if style.Lines {
		style.ItemSep = ","
	}
	if sep := p[2]; sep.Kind != values.KindMissing && sep.Kind != values.KindNone {
		items, err := run.Iterate(sep)
		if err != nil {
			return values.Value{}, err
		}
		if len(items) != 2 || items[0].Kind != values.KindString ||
			items[1].Kind != values.KindString {
			return values.Value{}, values.Errorf("separators must be two strings")
		}
		style.ItemSep, style.KeySep = items[0].Text, items[1].Text
	}
	w := values.Writer{Run: run, Limit: run.MaxOutput}
	w.WriteJSON(v, style, 0)
	if w.Err != nil {
		return values.Value{}, w.Err
	}
	return run.NewString(string(w.Buf))
}
