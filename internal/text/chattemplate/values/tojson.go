package values

import (
	"math"
	"sort"
	"unicode/utf16"
	"unicode/utf8"
)

// JSONStyle is the layout of json.dumps.
type JSONStyle struct {
	EnsureASCII bool
	SortKeys    bool
	Lines       bool   // one item per line
	Indent      string // of one level, if lines
	ItemSep     string
	KeySep      string
}

// JSON returns the value as json.dumps(v, ensure_ascii=False) writes it.
func (v Value) JSON() (string, error) {
	w := Writer{Limit: math.MaxInt}
	w.WriteJSON(v, &JSONStyle{ItemSep: ", ", KeySep: ": "}, 0)
	return string(w.Buf), w.Err
}

// WriteJSON writes json.dumps(v); depth is that of v inside other values.
func (w *Writer) WriteJSON(v Value, style *JSONStyle, depth int) {
	if w.Err != nil {
		return
	}
	if depth > maxValueDepth {
		w.fail(errNesting())
		return
	}
	switch v.Kind {
	case KindNone:
		w.WriteText("null")
	case KindBool:
		w.WriteText(jsonBool(v))
	case KindInt, KindBig:
		w.repr(v, 0)
	case KindFloat:
		w.WriteText(jsonFloat(v.AsFloat()))
	case KindString:
		w.jsonString(v.Text, style.EnsureASCII)
	case KindList, KindTuple:
		w.jsonItems(v.Items(), style, depth)
	case KindMap:
		w.jsonMap(v.Mapping(), style, depth)
	default:
		w.fail(Errorf("object of type %s is not JSON serializable", v.TypeName()))
	}
}

func jsonBool(v Value) string {
	if v.Num != 0 {
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
	return FormatFloat(f)
}

func (w *Writer) newline(style *JSONStyle, depth int) {
	if !style.Lines {
		return
	}
	w.WriteText("\n")
	for i := 0; i < depth && w.Err == nil; i++ {
		w.WriteText(style.Indent)
	}
}

func (w *Writer) jsonItems(items []Value, style *JSONStyle, depth int) {
	if len(items) == 0 {
		w.WriteText("[]")
		return
	}
	w.WriteText("[")
	for i, item := range items {
		if i > 0 {
			w.WriteText(style.ItemSep)
		}
		w.newline(style, depth+1)
		if w.WriteJSON(item, style, depth+1); w.Err != nil {
			return
		}
	}
	w.newline(style, depth)
	w.WriteText("]")
}

func (w *Writer) jsonMap(m *Map, style *JSONStyle, depth int) {
	if m.Len() == 0 {
		w.WriteText("{}")
		return
	}
	entries := m.Entries
	if style.SortKeys {
		var err error
		if entries, err = sortedEntries(m); err != nil {
			w.fail(err)
			return
		}
	}
	w.WriteText("{")
	for i, e := range entries {
		if i > 0 {
			w.WriteText(style.ItemSep)
		}
		w.newline(style, depth+1)
		w.jsonKey(e.Key, style)
		w.WriteText(style.KeySep)
		if w.WriteJSON(e.Value, style, depth+1); w.Err != nil {
			return
		}
	}
	w.newline(style, depth)
	w.WriteText("}")
}

func sortedEntries(m *Map) ([]entry, error) {
	entries := append([]entry(nil), m.Entries...)
	for _, e := range entries {
		if e.Key.Kind != entries[0].Key.Kind || e.Key.Kind != KindString && e.Key.Kind != KindInt {
			return nil, Errorf("cannot sort keys of different types")
		}
	}
	sort.SliceStable(entries, func(i, j int) bool {
		a, b := entries[i].Key, entries[j].Key
		if a.Kind == KindInt {
			return a.Num < b.Num
		}
		return a.Text < b.Text
	})
	return entries, nil
}

func (w *Writer) jsonKey(key Value, style *JSONStyle) {
	switch key.Kind {
	case KindString:
		w.jsonString(key.Text, style.EnsureASCII)
	case KindNone:
		w.WriteText(`"null"`)
	case KindBool:
		w.WriteText(`"` + jsonBool(key) + `"`)
	case KindInt, KindBig:
		w.WriteText(`"`)
		w.repr(key, 0)
		w.WriteText(`"`)
	case KindFloat:
		w.WriteText(`"` + jsonFloat(key.AsFloat()) + `"`)
	default:
		w.fail(Errorf("keys must be str, int, float, bool or None, not %s", key.TypeName()))
	}
}

func (w *Writer) jsonString(s string, ensureASCII bool) {
	w.WriteText(`"`)
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if ensureASCII {
				w.WriteText(s[start:i])
				w.WriteText(asciiEscape(r))
				start = i + n
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' && (c != 0x7f || !ensureASCII) {
			i++
			continue
		}
		w.WriteText(s[start:i])
		w.WriteText(jsonEscape(c))
		i++
		start = i
	}
	w.WriteText(s[start:])
	w.WriteText(`"`)
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
