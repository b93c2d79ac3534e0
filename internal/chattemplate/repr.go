package chattemplate

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// writer prints values as Python does. The first error sticks, and nothing more is written.
type writer struct {
	run   *budget // nil outside a rendering: then only depth and limit bound the work
	buf   []byte
	limit int
	err   error
}

func (w *writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *writer) write(s string) {
	if w.err != nil {
		return
	}
	if len(w.buf)+len(s) > w.limit {
		w.fail(errorf("template output is larger than %d bytes", w.limit))
		return
	}
	if w.run != nil {
		if err := w.run.charge(len(s)); err != nil {
			w.fail(err)
			return
		}
	}
	w.buf = append(w.buf, s...)
}

// String is Python's str(v), without a bound on its length.
func (v Value) String() string {
	w := writer{limit: math.MaxInt}
	w.str(v)
	return string(w.buf)
}

// toString is str(v) as a value.
func (run *budget) toString(v Value) (Value, error) {
	if v.kind == kindString {
		return v, nil
	}
	w := writer{run: run, limit: run.maxOutput}
	w.str(v)
	if w.err != nil {
		return Value{}, w.err
	}
	return run.newString(string(w.buf))
}

// reprOf is repr(v).
func (run *budget) reprOf(v Value) (string, error) {
	w := writer{run: run, limit: run.maxOutput}
	w.repr(v, 0)
	return string(w.buf), w.err
}

func (w *writer) str(v Value) {
	switch v.kind {
	case kindString:
		w.write(v.str)
	case kindUndefined, kindMissing:
	default:
		w.repr(v, 0)
	}
}

func (w *writer) repr(v Value, depth int) {
	if w.err != nil {
		return
	}
	if depth > maxValueDepth {
		w.fail(errNesting())
		return
	}
	switch v.kind {
	case kindUndefined, kindMissing:
		w.write("Undefined")
	case kindNone:
		w.write("None")
	case kindBool:
		if v.num != 0 {
			w.write("True")
		} else {
			w.write("False")
		}
	case kindInt:
		w.write(strconv.FormatInt(v.num, 10))
	case kindBig:
		w.write(bigOf(v).String())
	case kindFloat:
		w.write(formatFloat(v.float()))
	case kindString:
		if v.markup {
			w.write("Markup(")
			w.write(quote(v.str))
			w.write(")")
			return
		}
		w.write(quote(v.str))
	case kindList:
		w.reprItems("[", v.items(), "]", depth)
	case kindTuple:
		closing := ")"
		if len(v.items()) == 1 {
			closing = ",)"
		}
		w.reprItems("(", v.items(), closing, depth)
	case kindMap:
		w.reprMap(v.mapping(), depth)
	case kindNamespace:
		w.write("<Namespace ")
		w.reprMap(v.mapping(), depth)
		w.write(">")
	case kindKeys, kindValues, kindItems:
		w.reprView(v, depth)
	case kindRange:
		r := v.ref.(*rangeObject)
		text := "range(" + strconv.FormatInt(r.start, 10) + ", " + strconv.FormatInt(r.stop, 10)
		if r.step != 1 {
			text += ", " + strconv.FormatInt(r.step, 10)
		}
		w.write(text + ")")
	case kindMacro:
		w.write("<Macro " + quote(v.str) + ">")
	default:
		// Python prints an address here, which no template can depend on.
		w.write("<" + v.typeName() + " object>")
	}
}

func (w *writer) reprItems(open string, items []Value, closing string, depth int) {
	w.write(open)
	for i, item := range items {
		if i > 0 {
			w.write(", ")
		}
		if w.repr(item, depth+1); w.err != nil {
			return
		}
	}
	w.write(closing)
}

func (w *writer) reprMap(m *Map, depth int) {
	w.write("{")
	for i, e := range m.entries {
		if i > 0 {
			w.write(", ")
		}
		w.repr(e.key, depth+1)
		w.write(": ")
		if w.repr(e.value, depth+1); w.err != nil {
			return
		}
	}
	w.write("}")
}

func (w *writer) reprView(v Value, depth int) {
	w.write(v.typeName() + "([")
	for i, e := range v.mapping().entries {
		if i > 0 {
			w.write(", ")
		}
		switch v.kind {
		case kindKeys:
			w.repr(e.key, depth+1)
		case kindValues:
			w.repr(e.value, depth+1)
		default:
			w.reprItems("(", []Value{e.key, e.value}, ")", depth+1)
		}
		if w.err != nil {
			return
		}
	}
	w.write("])")
}

// formatFloat is Python's repr of a float: the shortest digits that read back the same.
func formatFloat(f float64) string {
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

// quote is Python's repr of a str.
func quote(s string) string {
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
