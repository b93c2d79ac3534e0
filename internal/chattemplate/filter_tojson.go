package chattemplate

import (
	"strings"
)

func filterToJSON(run *Budget, v Value, a *Args) (Value, error) {
	var p [4]Value
	if err := a.Bind(p[:], 0, "ensure_ascii", "indent", "separators", "sort_keys"); err != nil {
		return Value{}, err
	}
	style := &JsonStyle{EnsureASCII: p[0].Truth(), SortKeys: p[3].Truth(), ItemSep: ", ", KeySep: ": "}
	switch indent := p[1]; indent.Kind {
	case KindMissing, KindNone:
	case KindString:
		style.Lines, style.Indent = true, indent.Text
	case KindInt, KindBool:
		if indent.Num > 1000 {
			return Value{}, Errorf("indent %d is too large", indent.Num)
		}
		style.Lines, style.Indent = true, strings.Repeat(" ", int(max(0, indent.Num)))
	default:
		return Value{}, Errorf("indent must be an int or a str, not %s", indent.TypeName())
	}
	if style.Lines {
		style.ItemSep = ","
	}
	if sep := p[2]; sep.Kind != KindMissing && sep.Kind != KindNone {
		items, err := run.Iterate(sep)
		if err != nil {
			return Value{}, err
		}
		if len(items) != 2 || items[0].Kind != KindString || items[1].Kind != KindString {
			return Value{}, Errorf("separators must be two strings")
		}
		style.ItemSep, style.KeySep = items[0].Text, items[1].Text
	}
	w := Writer{Run: run, Limit: run.MaxOutput}
	w.WriteJSON(v, style, 0)
	if w.Err != nil {
		return Value{}, w.Err
	}
	return run.NewString(string(w.Buf))
}
