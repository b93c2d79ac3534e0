package chattemplate

import (
	"strings"
	"unicode"
)

// filterFunc is a filter: v is what stands before the bar.
type filterFunc func(run *budget, v Value, a *callArgs) (Value, error)

// filters are set in init, because some of them look up others.
var filters map[string]filterFunc

func init() {
	filters = map[string]filterFunc{
		"abs": filterAbs, "attr": filterAttr, "batch": filterBatch, "capitalize": textFilter(capitalize),
		"center": filterCenter, "count": filterLength, "d": filterDefault, "default": filterDefault,
		"dictsort": filterDictSort, "e": filterEscape, "escape": filterEscape, "first": filterFirst,
		"float": filterFloat, "forceescape": filterForceEscape, "format": filterFormat, "groupby": filterGroupBy,
		"indent": filterIndent, "int": filterInt, "items": filterItems, "join": filterJoin, "last": filterLast,
		"length": filterLength, "list": filterList, "lower": textFilter(lower), "map": filterMap,
		"max": extremeFilter(">"), "min": extremeFilter("<"), "reject": selectFilter(false, false),
		"rejectattr": selectFilter(false, true), "replace": filterReplace, "reverse": filterReverse,
		"round": filterRound, "safe": filterSafe, "select": selectFilter(true, false),
		"selectattr": selectFilter(true, true), "slice": filterSlice, "sort": filterSort, "string": filterString,
		"sum": filterSum, "title": textFilter(filterTitle), "tojson": filterToJSON, "trim": filterTrim,
		"truncate": filterTruncate, "unique": filterUnique, "upper": textFilter(upper),
		"urlencode": filterURLEncode, "wordcount": filterWordCount,
	}
}

func textFilter(f func(string) string) filterFunc {
	return func(run *budget, v Value, a *callArgs) (Value, error) {
		if err := a.bind(nil, 0); err != nil {
			return Value{}, err
		}
		v, err := run.toString(v)
		if err != nil {
			return Value{}, err
		}
		return run.newString(f(v.str))
	}
}

func filterAttr(*budget, Value, *callArgs) (Value, error) {
	return Value{}, errorf("the filter 'attr' is refused in the sandbox")
}

func filterLength(_ *budget, v Value, a *callArgs) (Value, error) {
	if v.kind == kindLoop {
		return Value{}, errorf("use loop.length for the length of a loop")
	}
	n, ok := v.length()
	if !ok {
		return Value{}, errorf("object of type '%s' has no len()", v.typeName())
	}
	return Int(int64(n)), a.bind(nil, 0)
}

func filterDefault(_ *budget, v Value, a *callArgs) (Value, error) {
	var p [2]Value
	if err := a.bind(p[:], 0, "default_value", "boolean"); err != nil {
		return Value{}, err
	}
	if !v.IsUndefined() && !(p[1].truth() && !v.truth()) {
		return v, nil
	}
	if p[0].kind == kindMissing {
		return strValue(""), nil
	}
	return p[0], nil
}

func filterString(run *budget, v Value, a *callArgs) (Value, error) {
	if err := a.bind(nil, 0); err != nil {
		return Value{}, err
	}
	return run.toString(v)
}

func filterSafe(run *budget, v Value, a *callArgs) (Value, error) {
	v, err := filterString(run, v, a)
	v.markup = true
	return v, err
}

func filterEscape(run *budget, v Value, a *callArgs) (Value, error) {
	if err := a.bind(nil, 0); err != nil {
		return Value{}, err
	}
	return Escape(run, v)
}

func filterForceEscape(run *budget, v Value, a *callArgs) (Value, error) {
	v.markup = false
	return filterEscape(run, v, a)
}

func filterTrim(run *budget, v Value, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 0, "chars"); err != nil {
		return Value{}, err
	}
	v, err := run.toString(v)
	if err != nil {
		return Value{}, err
	}
	return Stripped(run, v, p[0], strings.TrimFunc)
}

func filterReplace(run *budget, v Value, a *callArgs) (Value, error) {
	var p [3]Value
	if err := a.bind(p[:], 2, "old", "new", "count"); err != nil {
		return Value{}, err
	}
	count := -1
	if p[2].kind != kindNone {
		var err error
		if count, err = wantInt(p[2], "count", -1); err != nil {
			return Value{}, err
		}
	}
	var texts [3]Value
	for i, x := range [3]Value{v, p[0], p[1]} {
		var err error
		if texts[i], err = run.toString(x); err != nil {
			return Value{}, err
		}
	}
	return Replace(run, texts[0].str, texts[1].str, texts[2].str, count)
}

// filterTitle is do_title: words begin after white space, dashes and opening brackets.
func filterTitle(s string) string {
	var out strings.Builder
	start := 0
	word := func(end int) {
		if start < end {
			out.WriteString(capitalizeUpper(s[start:end]))
		}
	}
	for i, r := range s {
		if isSpace(r) || strings.ContainsRune("-({[<", r) {
			word(i)
			out.WriteRune(r)
			start = i + len(string(r))
		}
	}
	word(len(s))
	return out.String()
}

func capitalizeUpper(s string) string {
	n := byteOffset(s, 1)
	return upper(s[:n]) + lower(s[n:])
}

func filterCenter(run *budget, v Value, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 0, "width"); err != nil {
		return Value{}, err
	}
	width, err := wantInt(p[0], "width", 80)
	if err != nil {
		return Value{}, err
	}
	if v, err = run.toString(v); err != nil {
		return Value{}, err
	}
	return Padded(run, v.str, width, " ", func(room int) int { return centerLeft(room, width) })
}

func filterFormat(run *budget, v Value, a *callArgs) (Value, error) {
	if len(a.pos) > 0 && len(a.kw) > 0 {
		return Value{}, errorf("can't handle positional and keyword arguments at the same time")
	}
	v, err := run.toString(v)
	if err != nil {
		return Value{}, err
	}
	if len(a.kw) > 0 {
		m := NewMap()
		for _, kw := range a.kw {
			m.Set(kw.name, kw.value)
		}
		return PercentFormat(run, v, m.Value())
	}
	return PercentFormat(run, v, tupleValue(append([]Value(nil), a.pos...)))
}

func filterIndent(run *budget, v Value, a *callArgs) (Value, error) {
	var p [3]Value
	if err := a.bind(p[:], 0, "width", "first", "blank"); err != nil {
		return Value{}, err
	}
	text, err := wantString(v, "indent input")
	if err != nil {
		return Value{}, err
	}
	indent := p[0]
	if indent.kind != kindString {
		width, err := wantInt(indent, "width", 4)
		if err != nil {
			return Value{}, err
		}
		if indent, err = Repeat(run, strValue(" "), Int(int64(width))); err != nil {
			return Value{}, err
		}
	}
	// As in jinja2, the newline makes splitlines keep a last empty line.
	lines, err := SplitText(run, text+"\n", false)
	if err != nil {
		return Value{}, err
	}
	w := writer{run: run, limit: run.maxOutput}
	for i, line := range lines {
		if i > 0 {
			w.write("\n")
		}
		if i == 0 && p[1].truth() || i > 0 && (line != "" || p[2].truth()) {
			w.write(indent.str)
		}
		if w.write(line); w.err != nil {
			return Value{}, w.err
		}
	}
	return run.newString(string(w.buf))
}

func filterTruncate(run *budget, v Value, a *callArgs) (Value, error) {
	var p [4]Value
	if err := a.bind(p[:], 0, "length", "killwords", "end", "leeway"); err != nil {
		return Value{}, err
	}
	n, ok := v.length()
	if !ok {
		return Value{}, errorf("object of type '%s' has no len()", v.typeName())
	}
	length, err := wantInt(p[0], "length", 255)
	if err != nil {
		return Value{}, err
	}
	end := "..."
	if p[2].kind != kindMissing {
		if end, err = wantString(p[2], "end"); err != nil {
			return Value{}, err
		}
	}
	leeway := 5
	if p[3].kind != kindNone {
		if leeway, err = wantInt(p[3], "leeway", 5); err != nil {
			return Value{}, err
		}
	}
	endLength, _ := strValue(end).length()
	if length < endLength {
		return Value{}, errorf("expected length >= %d, got %d", endLength, length)
	}
	if leeway < 0 {
		return Value{}, errorf("expected leeway >= 0, got %d", leeway)
	}
	if n <= length+leeway {
		return v, nil
	}
	text, err := wantString(v, "truncate input")
	if err != nil {
		return Value{}, err
	}
	cut := text[:byteOffset(text, length-endLength)]
	if !p[1].truth() {
		if i := strings.LastIndexByte(cut, ' '); i >= 0 {
			cut = cut[:i]
		}
	}
	return run.newString(cut + end)
}

func filterWordCount(run *budget, v Value, a *callArgs) (Value, error) {
	v, err := filterString(run, v, a)
	n, inWord := int64(0), false
	for _, r := range v.str {
		word := r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r)
		if word && !inWord {
			n++
		}
		inWord = word
	}
	return Int(n), err
}

func urlQuote(s string, query bool) string {
	var out []byte
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case isDecimal(c) || c|0x20 >= 'a' && c|0x20 <= 'z' || strings.IndexByte("_.-~", c) >= 0 || c == '/' && !query:
			out = append(out, c)
		case c == ' ' && query:
			out = append(out, '+')
		default:
			out = append(out, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		}
	}
	return string(out)
}

func filterURLEncode(run *budget, v Value, a *callArgs) (Value, error) {
	if err := a.bind(nil, 0); err != nil {
		return Value{}, err
	}
	if v.kind == kindString || !iterable(v) {
		v, err := run.toString(v)
		if err != nil {
			return Value{}, err
		}
		return run.newString(urlQuote(v.str, false))
	}
	if v.kind == kindMap {
		v.kind = kindItems
	}
	items, err := run.iterate(v)
	if err != nil {
		return Value{}, err
	}
	w := writer{run: run, limit: run.maxOutput}
	for i, item := range items {
		if i > 0 {
			w.write("&")
		}
		pair, err := run.iterate(item)
		if err != nil {
			return Value{}, err
		}
		if len(pair) != 2 {
			return Value{}, errorf("urlencode expects pairs")
		}
		for j, part := range pair {
			if j > 0 {
				w.write("=")
			}
			text, err := run.toString(part)
			if err != nil {
				return Value{}, err
			}
			w.write(urlQuote(text.str, true))
		}
		if w.err != nil {
			return Value{}, w.err
		}
	}
	return run.newString(string(w.buf))
}
