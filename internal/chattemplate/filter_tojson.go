package chattemplate

import (
	"strings"
)

func filterToJSON(run *budget, v Value, a *callArgs) (Value, error) {
	var p [4]Value
	if err := a.bind(p[:], 0, "ensure_ascii", "indent", "separators", "sort_keys"); err != nil {
		return Value{}, err
	}
	style := &jsonStyle{ensureASCII: p[0].truth(), sortKeys: p[3].truth(), itemSep: ", ", keySep: ": "}
	switch indent := p[1]; indent.kind {
	case kindMissing, kindNone:
	case kindString:
		style.lines, style.indent = true, indent.str
	case kindInt, kindBool:
		if indent.num > 1000 {
			return Value{}, errorf("indent %d is too large", indent.num)
		}
		style.lines, style.indent = true, strings.Repeat(" ", int(max(0, indent.num)))
	default:
		return Value{}, errorf("indent must be an int or a str, not %s", indent.typeName())
	}
	if style.lines {
		style.itemSep = ","
	}
	if sep := p[2]; sep.kind != kindMissing && sep.kind != kindNone {
		items, err := run.iterate(sep)
		if err != nil {
			return Value{}, err
		}
		if len(items) != 2 || items[0].kind != kindString || items[1].kind != kindString {
			return Value{}, errorf("separators must be two strings")
		}
		style.itemSep, style.keySep = items[0].str, items[1].str
	}
	w := writer{run: run, limit: run.maxOutput}
	w.json(v, style, 0)
	if w.err != nil {
		return Value{}, w.err
	}
	return run.newString(string(w.buf))
}
