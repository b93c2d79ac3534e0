package chattemplate

import (
	"strings"
	"unicode"
)

// filterFunc is a filter: v is what stands before the bar.
type filterFunc func(run *Budget, v Value, a *Args) (Value, error)

// filters are set in init, because some of them look up others.
var filters map[string]filterFunc

func init() {
	filters = map[string]filterFunc{
		"abs": filterAbs, "attr": filterAttr, "batch": filterBatch, "capitalize": textFilter(Capitalize),
		"center": filterCenter, "count": filterLength, "d": filterDefault, "default": filterDefault,
		"dictsort": filterDictSort, "e": filterEscape, "escape": filterEscape, "first": filterFirst,
		"float": filterFloat, "forceescape": filterForceEscape, "format": filterFormat, "groupby": filterGroupBy,
		"indent": filterIndent, "int": filterInt, "items": filterItems, "join": filterJoin, "last": filterLast,
		"length": filterLength, "list": filterList, "lower": textFilter(Lower), "map": filterMap,
		"max": extremeFilter(">"), "min": extremeFilter("<"), "reject": selectFilter(false, false),
		"rejectattr": selectFilter(false, true), "replace": filterReplace, "reverse": filterReverse,
		"round": filterRound, "safe": filterSafe, "select": selectFilter(true, false),
		"selectattr": selectFilter(true, true), "slice": filterSlice, "sort": filterSort, "string": filterString,
		"sum": filterSum, "title": textFilter(filterTitle), "tojson": filterToJSON, "trim": filterTrim,
		"truncate": filterTruncate, "unique": filterUnique, "upper": textFilter(Upper),
		"urlencode": filterURLEncode, "wordcount": filterWordCount,
	}
}

func textFilter(f func(string) string) filterFunc {
	return func(run *Budget, v Value, a *Args) (Value, error) {
		if err := a.Bind(nil, 0); err != nil {
			return Value{}, err
		}
		v, err := run.ToString(v)
		if err != nil {
			return Value{}, err
		}
		return run.NewString(f(v.Text))
	}
}

func filterAttr(*Budget, Value, *Args) (Value, error) {
	return Value{}, Errorf("the filter 'attr' is refused in the sandbox")
}

func filterLength(_ *Budget, v Value, a *Args) (Value, error) {
	if v.Kind == KindLoop {
		return Value{}, Errorf("use loop.length for the length of a loop")
	}
	n, ok := v.Length()
	if !ok {
		return Value{}, Errorf("object of type '%s' has no len()", v.TypeName())
	}
	return Int(int64(n)), a.Bind(nil, 0)
}

func filterDefault(_ *Budget, v Value, a *Args) (Value, error) {
	var p [2]Value
	if err := a.Bind(p[:], 0, "default_value", "boolean"); err != nil {
		return Value{}, err
	}
	if !v.IsUndefined() && !(p[1].Truth() && !v.Truth()) {
		return v, nil
	}
	if p[0].Kind == KindMissing {
		return Str(""), nil
	}
	return p[0], nil
}

func filterString(run *Budget, v Value, a *Args) (Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return Value{}, err
	}
	return run.ToString(v)
}

func filterSafe(run *Budget, v Value, a *Args) (Value, error) {
	v, err := filterString(run, v, a)
	v.Markup = true
	return v, err
}

func filterEscape(run *Budget, v Value, a *Args) (Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return Value{}, err
	}
	return Escape(run, v)
}

func filterForceEscape(run *Budget, v Value, a *Args) (Value, error) {
	v.Markup = false
	return filterEscape(run, v, a)
}

func filterTrim(run *Budget, v Value, a *Args) (Value, error) {
	var p [1]Value
	if err := a.Bind(p[:], 0, "chars"); err != nil {
		return Value{}, err
	}
	v, err := run.ToString(v)
	if err != nil {
		return Value{}, err
	}
	return Stripped(run, v, p[0], strings.TrimFunc)
}

func filterReplace(run *Budget, v Value, a *Args) (Value, error) {
	var p [3]Value
	if err := a.Bind(p[:], 2, "old", "new", "count"); err != nil {
		return Value{}, err
	}
	count := -1
	if p[2].Kind != KindNone {
		var err error
		if count, err = WantInt(p[2], "count", -1); err != nil {
			return Value{}, err
		}
	}
	var texts [3]Value
	for i, x := range [3]Value{v, p[0], p[1]} {
		var err error
		if texts[i], err = run.ToString(x); err != nil {
			return Value{}, err
		}
	}
	return Replace(run, texts[0].Text, texts[1].Text, texts[2].Text, count)
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
		if IsSpace(r) || strings.ContainsRune("-({[<", r) {
			word(i)
			out.WriteRune(r)
			start = i + len(string(r))
		}
	}
	word(len(s))
	return out.String()
}

func capitalizeUpper(s string) string {
	n := ByteOffset(s, 1)
	return Upper(s[:n]) + Lower(s[n:])
}

func filterCenter(run *Budget, v Value, a *Args) (Value, error) {
	var p [1]Value
	if err := a.Bind(p[:], 0, "width"); err != nil {
		return Value{}, err
	}
	width, err := WantInt(p[0], "width", 80)
	if err != nil {
		return Value{}, err
	}
	if v, err = run.ToString(v); err != nil {
		return Value{}, err
	}
	return Padded(run, v.Text, width, " ", func(room int) int { return centerLeft(room, width) })
}

func filterFormat(run *Budget, v Value, a *Args) (Value, error) {
	if len(a.Pos) > 0 && len(a.Keywords) > 0 {
		return Value{}, Errorf("can't handle positional and keyword arguments at the same time")
	}
	v, err := run.ToString(v)
	if err != nil {
		return Value{}, err
	}
	if len(a.Keywords) > 0 {
		m := NewMap()
		for _, kw := range a.Keywords {
			m.Set(kw.Name, kw.Value)
		}
		return PercentFormat(run, v, m.Value())
	}
	return PercentFormat(run, v, NewTuple(append([]Value(nil), a.Pos...)))
}

func filterIndent(run *Budget, v Value, a *Args) (Value, error) {
	var p [3]Value
	if err := a.Bind(p[:], 0, "width", "first", "blank"); err != nil {
		return Value{}, err
	}
	text, err := WantString(v, "indent input")
	if err != nil {
		return Value{}, err
	}
	indent := p[0]
	if indent.Kind != KindString {
		width, err := WantInt(indent, "width", 4)
		if err != nil {
			return Value{}, err
		}
		if indent, err = Repeat(run, Str(" "), Int(int64(width))); err != nil {
			return Value{}, err
		}
	}
	// As in jinja2, the newline makes splitlines keep a last empty line.
	lines, err := SplitText(run, text+"\n", false)
	if err != nil {
		return Value{}, err
	}
	w := Writer{Run: run, Limit: run.MaxOutput}
	for i, line := range lines {
		if i > 0 {
			w.WriteText("\n")
		}
		if i == 0 && p[1].Truth() || i > 0 && (line != "" || p[2].Truth()) {
			w.WriteText(indent.Text)
		}
		if w.WriteText(line); w.Err != nil {
			return Value{}, w.Err
		}
	}
	return run.NewString(string(w.Buf))
}

func filterTruncate(run *Budget, v Value, a *Args) (Value, error) {
	var p [4]Value
	if err := a.Bind(p[:], 0, "length", "killwords", "end", "leeway"); err != nil {
		return Value{}, err
	}
	n, ok := v.Length()
	if !ok {
		return Value{}, Errorf("object of type '%s' has no len()", v.TypeName())
	}
	length, err := WantInt(p[0], "length", 255)
	if err != nil {
		return Value{}, err
	}
	end := "..."
	if p[2].Kind != KindMissing {
		if end, err = WantString(p[2], "end"); err != nil {
			return Value{}, err
		}
	}
	leeway := 5
	if p[3].Kind != KindNone {
		if leeway, err = WantInt(p[3], "leeway", 5); err != nil {
			return Value{}, err
		}
	}
	endLength, _ := Str(end).Length()
	if length < endLength {
		return Value{}, Errorf("expected length >= %d, got %d", endLength, length)
	}
	if leeway < 0 {
		return Value{}, Errorf("expected leeway >= 0, got %d", leeway)
	}
	if n <= length+leeway {
		return v, nil
	}
	text, err := WantString(v, "truncate input")
	if err != nil {
		return Value{}, err
	}
	cut := text[:ByteOffset(text, length-endLength)]
	if !p[1].Truth() {
		if i := strings.LastIndexByte(cut, ' '); i >= 0 {
			cut = cut[:i]
		}
	}
	return run.NewString(cut + end)
}

func filterWordCount(run *Budget, v Value, a *Args) (Value, error) {
	v, err := filterString(run, v, a)
	n, inWord := int64(0), false
	for _, r := range v.Text {
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
		case IsDecimal(c) || c|0x20 >= 'a' && c|0x20 <= 'z' || strings.IndexByte("_.-~", c) >= 0 || c == '/' && !query:
			out = append(out, c)
		case c == ' ' && query:
			out = append(out, '+')
		default:
			out = append(out, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		}
	}
	return string(out)
}

func filterURLEncode(run *Budget, v Value, a *Args) (Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return Value{}, err
	}
	if v.Kind == KindString || !Iterable(v) {
		v, err := run.ToString(v)
		if err != nil {
			return Value{}, err
		}
		return run.NewString(urlQuote(v.Text, false))
	}
	if v.Kind == KindMap {
		v.Kind = KindItems
	}
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	w := Writer{Run: run, Limit: run.MaxOutput}
	for i, item := range items {
		if i > 0 {
			w.WriteText("&")
		}
		pair, err := run.Iterate(item)
		if err != nil {
			return Value{}, err
		}
		if len(pair) != 2 {
			return Value{}, Errorf("urlencode expects pairs")
		}
		for j, part := range pair {
			if j > 0 {
				w.WriteText("=")
			}
			text, err := run.ToString(part)
			if err != nil {
				return Value{}, err
			}
			w.WriteText(urlQuote(text.Text, true))
		}
		if w.Err != nil {
			return Value{}, w.Err
		}
	}
	return run.NewString(string(w.Buf))
}
