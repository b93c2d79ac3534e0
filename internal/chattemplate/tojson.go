package chattemplate

import (
	"math"
	"sort"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonStyle is the layout of json.dumps.
type jsonStyle struct {
	ensureASCII bool
	sortKeys    bool
	lines       bool   // one item per line
	indent      string // of one level, if lines
	itemSep     string
	keySep      string
}

// JSON returns the value as json.dumps(v, ensure_ascii=False) writes it.
func (v Value) JSON() (string, error) {
	w := writer{limit: math.MaxInt}
	w.json(v, &jsonStyle{itemSep: ", ", keySep: ": "}, 0)
	return string(w.buf), w.err
}

func (w *writer) json(v Value, style *jsonStyle, depth int) {
	if w.err != nil {
		return
	}
	if depth > maxValueDepth {
		w.fail(errNesting())
		return
	}
	switch v.kind {
	case kindNone:
		w.write("null")
	case kindBool:
		w.write(jsonBool(v))
	case kindInt, kindBig:
		w.repr(v, 0)
	case kindFloat:
		w.write(jsonFloat(v.float()))
	case kindString:
		w.jsonString(v.str, style.ensureASCII)
	case kindList, kindTuple:
		w.jsonItems(v.items(), style, depth)
	case kindMap:
		w.jsonMap(v.mapping(), style, depth)
	default:
		w.fail(errorf("object of type %s is not JSON serializable", v.typeName()))
	}
}

func jsonBool(v Value) string {
	if v.num != 0 {
		return "true"
	}
	return "false"
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return formatFloat(f)
}

func (w *writer) newline(style *jsonStyle, depth int) {
	if !style.lines {
		return
	}
	w.write("\n")
	for i := 0; i < depth && w.err == nil; i++ {
		w.write(style.indent)
	}
}

func (w *writer) jsonItems(items []Value, style *jsonStyle, depth int) {
	if len(items) == 0 {
		w.write("[]")
		return
	}
	w.write("[")
	for i, item := range items {
		if i > 0 {
			w.write(style.itemSep)
		}
		w.newline(style, depth+1)
		if w.json(item, style, depth+1); w.err != nil {
			return
		}
	}
	w.newline(style, depth)
	w.write("]")
}

func (w *writer) jsonMap(m *Map, style *jsonStyle, depth int) {
	if m.Len() == 0 {
		w.write("{}")
		return
	}
	entries := m.entries
	if style.sortKeys {
		var err error
		if entries, err = sortedEntries(m); err != nil {
			w.fail(err)
			return
		}
	}
	w.write("{")
	for i, e := range entries {
		if i > 0 {
			w.write(style.itemSep)
		}
		w.newline(style, depth+1)
		w.jsonKey(e.key, style)
		w.write(style.keySep)
		if w.json(e.value, style, depth+1); w.err != nil {
			return
		}
	}
	w.newline(style, depth)
	w.write("}")
}

func sortedEntries(m *Map) ([]entry, error) {
	entries := append([]entry(nil), m.entries...)
	for _, e := range entries {
		if e.key.kind != entries[0].key.kind || e.key.kind != kindString && e.key.kind != kindInt {
			return nil, errorf("cannot sort keys of different types")
		}
	}
	sort.SliceStable(entries, func(i, j int) bool {
		a, b := entries[i].key, entries[j].key
		if a.kind == kindInt {
			return a.num < b.num
		}
		return a.str < b.str
	})
	return entries, nil
}

func (w *writer) jsonKey(key Value, style *jsonStyle) {
	switch key.kind {
	case kindString:
		w.jsonString(key.str, style.ensureASCII)
	case kindNone:
		w.write(`"null"`)
	case kindBool:
		w.write(`"` + jsonBool(key) + `"`)
	case kindInt, kindBig:
		w.write(`"`)
		w.repr(key, 0)
		w.write(`"`)
	case kindFloat:
		w.write(`"` + jsonFloat(key.float()) + `"`)
	default:
		w.fail(errorf("keys must be str, int, float, bool or None, not %s", key.typeName()))
	}
}

func (w *writer) jsonString(s string, ensureASCII bool) {
	w.write(`"`)
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if ensureASCII {
				w.write(s[start:i])
				w.write(asciiEscape(r))
				start = i + n
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' && (c != 0x7f || !ensureASCII) {
			i++
			continue
		}
		w.write(s[start:i])
		w.write(jsonEscape(c))
		i++
		start = i
	}
	w.write(s[start:])
	w.write(`"`)
}

func jsonEscape(c byte) string {
	switch c {
	case '"':
		return `\"`
	case '\\':
		return `\\`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	}
	return asciiEscape(rune(c))
}

func asciiEscape(r rune) string {
	if r < 0x10000 {
		return string(appendHex([]byte(`\u`), r, 4))
	}
	high, low := utf16.EncodeRune(r)
	return string(appendHex(append(appendHex([]byte(`\u`), high, 4), `\u`...), low, 4))
}
