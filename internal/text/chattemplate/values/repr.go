package values

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Writer prints values as Python does. The first error sticks, and nothing more is written.
type Writer struct {
	Run   *Budget // nil outside a rendering: then only depth and limit bound the work
	Buf   []byte
	Limit int
	Err   error
}

func (w *Writer) fail(err error) {
	if w.Err == nil {
		w.Err = err
	}
}

// WriteText writes a text as it is.
func (w *Writer) WriteText(s string) {
	if w.Err != nil {
		return
	}
	if len(w.Buf)+len(s) > w.Limit {
		w.fail(Errorf("template output is larger than %d bytes", w.Limit))
		return
	}
	if w.Run != nil {
		if err := w.Run.Charge(len(s)); err != nil {
			w.fail(err)
			return
		}
	}
	w.Buf = append(w.Buf, s...)
}

// String is Python's str(v), without a bound on its length.
func (v Value) String() string {
	w := Writer{Limit: math.MaxInt}
	w.WriteValue(v)
	return string(w.Buf)
}

// ToString is str(v) as a value.
func (run *Budget) ToString(v Value) (Value, error) {
	if v.Kind == KindString {
		return v, nil
	}
	w := Writer{Run: run, Limit: run.MaxOutput}
	w.WriteValue(v)
	if w.Err != nil {
		return Value{}, w.Err
	}
	return run.NewString(string(w.Buf))
}

// ReprOf is repr(v).
func (run *Budget) ReprOf(v Value) (string, error) {
	w := Writer{Run: run, Limit: run.MaxOutput}
	w.repr(v, 0)
	return string(w.Buf), w.Err
}

// WriteValue writes str(v).
func (w *Writer) WriteValue(v Value) {
	switch v.Kind {
	case KindString:
		w.WriteText(v.Text)
	case KindUndefined, KindMissing:
	default:
		w.repr(v, 0)
	}
}

func (w *Writer) repr(v Value, depth int) {
	if w.Err != nil {
		return
	}
	if depth > maxValueDepth {
		w.fail(errNesting())
		return
	}
	switch v.Kind {
	case KindUndefined, KindMissing:
		w.WriteText("Undefined")
	case KindNone:
		w.WriteText("None")
	case KindBool:
		if v.Num != 0 {
			w.WriteText("True")
		} else {
			w.WriteText("False")
		}
	case KindInt:
		w.WriteText(strconv.FormatInt(v.Num, 10))
	case KindBig:
		w.WriteText(BigOf(v).String())
	case KindFloat:
		w.WriteText(FormatFloat(v.AsFloat()))
	case KindString:
		if v.Markup {
			w.WriteText("Markup(")
			w.WriteText(Quote(v.Text))
			w.WriteText(")")
			return
		}
		w.WriteText(Quote(v.Text))
	case KindList:
		w.reprItems("[", v.Items(), "]", depth)
	case KindTuple:
		closing := ")"
		if len(v.Items()) == 1 {
			closing = ",)"
		}
		w.reprItems("(", v.Items(), closing, depth)
	case KindMap:
		w.reprMap(v.Mapping(), depth)
	case KindNamespace:
		w.WriteText("<Namespace ")
		w.reprMap(v.Mapping(), depth)
		w.WriteText(">")
	case KindKeys, KindValues, KindItems:
		w.reprView(v, depth)
	case KindRange:
		r := v.Ref.(*Range)
		text := "range(" + strconv.FormatInt(r.Start, 10) + ", " + strconv.FormatInt(r.Stop, 10)
		if r.Step != 1 {
			text += ", " + strconv.FormatInt(r.Step, 10)
		}
		w.WriteText(text + ")")
	case KindMacro:
		w.WriteText("<Macro " + Quote(v.Text) + ">")
	default:
		// Python prints an address here, which no template can depend on.
		w.WriteText("<" + v.TypeName() + " object>")
	}
}

func (w *Writer) reprItems(open string, items []Value, closing string, depth int) {
	w.WriteText(open)
	for i, item := range items {
		if i > 0 {
			w.WriteText(", ")
		}
		if w.repr(item, depth+1); w.Err != nil {
			return
		}
	}
	w.WriteText(closing)
}

func (w *Writer) reprMap(m *Map, depth int) {
	w.WriteText("{")
	for i, e := range m.Entries {
		if i > 0 {
			w.WriteText(", ")
		}
		w.repr(e.Key, depth+1)
		w.WriteText(": ")
		if w.repr(e.Value, depth+1); w.Err != nil {
			return
		}
	}
	w.WriteText("}")
}

func (w *Writer) reprView(v Value, depth int) {
	w.WriteText(v.TypeName() + "([")
	for i, e := range v.Mapping().Entries {
		if i > 0 {
			w.WriteText(", ")
		}
		switch v.Kind {
		case KindKeys:
			w.repr(e.Key, depth+1)
		case KindValues:
			w.repr(e.Value, depth+1)
		default:
			w.reprItems("(", []Value{e.Key, e.Value}, ")", depth+1)
		}
		if w.Err != nil {
			return
		}
	}
	w.WriteText("])")
}

// FormatFloat is Python's repr of a float: the shortest digits that read back the same.
func FormatFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	abs := math.Abs(f)
	if abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if strings.IndexByte(s, '.') < 0 {
		s += ".0"
	}
	return s
}

// Quote is Python's repr of a str.
func Quote(s string) string {
	delimiter := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		delimiter = '"'
	}
	out := make([]byte, 0, len(s)+2)
	out = append(out, delimiter)
	for _, r := range s {
		switch {
		case r == rune(delimiter) || r == '\\':
			out = append(out, '\\', byte(r))
		case r == '\n':
			out = append(out, '\\', 'n')
		case r == '\r':
			out = append(out, '\\', 'r')
		case r == '\t':
			out = append(out, '\\', 't')
		case r == ' ' || unicode.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r < 0x100:
			out = appendHex(append(out, '\\', 'x'), r, 2)
		case r < 0x10000:
			out = appendHex(append(out, '\\', 'u'), r, 4)
		default:
			out = appendHex(append(out, '\\', 'U'), r, 8)
		}
	}
	return string(append(out, delimiter))
}

func appendHex(out []byte, r rune, digits int) []byte {
	for i := digits - 1; i >= 0; i-- {
		out = append(out, "0123456789abcdef"[r>>(4*i)&15])
	}
	return out
}
