// Package builtins has what jinja2 gives every template: filters, tests and global functions.
package builtins

import (
	"strings"
	"unicode"

	"github.com/eagleray/eagleray/internal/text/chattemplate/ops"
	"github.com/eagleray/eagleray/internal/text/chattemplate/pytext"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// filters are set in init, because some of them look up others.
var filters map[string]values.Filter

// Filter returns the filter of that name, or nil.
func Filter(name string) values.Filter { return filters[name] }

func init() {
	filters = map[string]values.Filter{
		"abs": filterAbs, "attr": filterAttr, "batch": filterBatch,
		"capitalize": textFilter(pytext.Capitalize), "center": filterCenter, "count": filterLength,
		"d": filterDefault, "default": filterDefault, "dictsort": filterDictSort,
		"e": filterEscape, "escape": filterEscape, "first": filterFirst, "float": filterFloat,
		"forceescape": filterForceEscape, "format": filterFormat, "groupby": filterGroupBy,
		"indent": filterIndent, "int": filterInt, "items": filterItems, "join": filterJoin,
		"last": filterLast, "length": filterLength, "list": filterList,
		"lower": textFilter(pytext.Lower), "map": filterMap, "max": extremeFilter(">"),
		"min": extremeFilter("<"), "reject": selectFilter(false, false),
		"rejectattr": selectFilter(false, true), "replace": filterReplace,
		"reverse": filterReverse, "round": filterRound, "safe": filterSafe,
		"select": selectFilter(true, false), "selectattr": selectFilter(true, true),
		"slice": filterSlice, "sort": filterSort, "string": filterString, "sum": filterSum,
		"title": textFilter(filterTitle), "tojson": filterToJSON, "trim": filterTrim,
		"truncate": filterTruncate, "unique": filterUnique, "upper": textFilter(pytext.Upper),
		"urlencode": filterURLEncode, "wordcount": filterWordCount,
	}
}

func textFilter(f func(string) string) values.Filter {
	return func(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
		if err := a.Bind(nil, 0); err != nil {
			return values.Value{}, err
		}
		v, err := run.ToString(v)
		if err != nil {
			return values.Value{}, err
		}
		return run.NewString(f(v.Text))
	}
}

func filterAttr(*values.Budget, values.Value, *values.Args) (values.Value, error) {
	return values.Value{}, values.Errorf("the filter 'attr' is refused in the sandbox")
}

func filterLength(_ *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if v.Kind == values.KindLoop {
		return values.Value{}, values.Errorf("use loop.length for the length of a loop")
	}
	n, ok := v.Length()
	if !ok {
		return values.Value{}, values.Errorf("object of type '%s' has no len()", v.TypeName())
	}
	return values.Int(int64(n)), a.Bind(nil, 0)
}

func filterDefault(_ *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [2]values.Value
	if err := a.Bind(p[:], 0, "default_value", "boolean"); err != nil {
		return values.Value{}, err
	}
	if !v.IsUndefined() && !(p[1].Truth() && !v.Truth()) {
		return v, nil
	}
	if p[0].Kind == values.KindMissing {
		return values.Str(""), nil
	}
	return p[0], nil
}

func filterString(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return values.Value{}, err
	}
	return run.ToString(v)
}

func filterSafe(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	v, err := filterString(run, v, a)
	v.Markup = true
	return v, err
}

func filterEscape(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return values.Value{}, err
	}
	return ops.Escape(run, v)
}

func filterForceEscape(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	v.Markup = false
	return filterEscape(run, v, a)
}

func filterTrim(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 0, "chars"); err != nil {
		return values.Value{}, err
	}
	v, err := run.ToString(v)
	if err != nil {
		return values.Value{}, err
	}
	return ops.Stripped(run, v, p[0], strings.TrimFunc)
}

func filterReplace(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [3]values.Value
	if err := a.Bind(p[:], 2, "old", "new", "count"); err != nil {
		return values.Value{}, err
	}
	count := -1
	if p[2].Kind != values.KindNone {
		var err error
		if count, err = values.WantInt(p[2], "count", -1); err != nil {
			return values.Value{}, err
		}
	}
	var texts [3]values.Value
	for i, x := range [3]values.Value{v, p[0], p[1]} {
		var err error
		if texts[i], err = run.ToString(x); err != nil {
			return values.Value{}, err
		}
	}
	return ops.Replace(run, texts[0].Text, texts[1].Text, texts[2].Text, count)
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
		if pytext.IsSpace(r) || strings.ContainsRune("-({[<", r) {
			word(i)
			out.WriteRune(r)
			start = i + len(string(r))
		}
	}
	word(len(s))
	return out.String()
}

func capitalizeUpper(s string) string {
	n := pytext.ByteOffset(s, 1)
	return pytext.Upper(s[:n]) + pytext.Lower(s[n:])
}

func filterCenter(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 0, "width"); err != nil {
		return values.Value{}, err
	}
	width, err := values.WantInt(p[0], "width", 80)
	if err != nil {
		return values.Value{}, err
	}
	if v, err = run.ToString(v); err != nil {
		return values.Value{}, err
	}
	return ops.Padded(run, v.Text, width, " ",
		func(room int) int { return ops.CenterLeft(room, width) })
}

func filterFormat(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if len(a.Pos) > 0 && len(a.Keywords) > 0 {
		return values.Value{}, values.Errorf("can't handle positional and keyword arguments at " +
			"the same time")
	}
	v, err := run.ToString(v)
	if err != nil {
		return values.Value{}, err
	}
	if len(a.Keywords) > 0 {
		m := values.NewMap()
		for _, kw := range a.Keywords {
			m.Set(kw.Name, kw.Value)
		}
		return ops.PercentFormat(run, v, m.Value())
	}
	return ops.PercentFormat(run, v, values.NewTuple(append([]values.Value(nil), a.Pos...)))
}

func filterIndent(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [3]values.Value
	if err := a.Bind(p[:], 0, "width", "first", "blank"); err != nil {
		return values.Value{}, err
	}
	text, err := values.WantString(v, "indent input")
	if err != nil {
		return values.Value{}, err
	}
	indent := p[0]
	if indent.Kind != values.KindString {
		width, err := values.WantInt(indent, "width", 4)
		if err != nil {
			return values.Value{}, err
		}
		if indent, err = ops.Repeat(run, values.Str(" "), values.Int(int64(width))); err != nil {
			return values.Value{}, err
		}
	}
	// As in jinja2, the newline makes splitlines keep a last empty line.
	lines, err := ops.SplitText(run, text+"\n", false)
	if err != nil {
		return values.Value{}, err
	}
	w := values.Writer{Run: run, Limit: run.MaxOutput}
	for i, line := range lines {
		if i > 0 {
			w.WriteText("\n")
		}
		if i == 0 && p[1].Truth() || i > 0 && (line != "" || p[2].Truth()) {
			w.WriteText(indent.Text)
		}
		if w.WriteText(line); w.Err != nil {
			return values.Value{}, w.Err
		}
	}
	return run.NewString(string(w.Buf))
}

func filterTruncate(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [4]values.Value
	if err := a.Bind(p[:], 0, "length", "killwords", "end", "leeway"); err != nil {
		return values.Value{}, err
	}
	n, ok := v.Length()
	if !ok {
		return values.Value{}, values.Errorf("object of type '%s' has no len()", v.TypeName())
	}
	length, err := values.WantInt(p[0], "length", 255)
	if err != nil {
		return values.Value{}, err
	}
	end := "..."
	if p[2].Kind != values.KindMissing {
		if end, err = values.WantString(p[2], "end"); err != nil {
			return values.Value{}, err
		}
	}
	leeway := 5
	if p[3].Kind != values.KindNone {
		if leeway, err = values.WantInt(p[3], "leeway", 5); err != nil {
			return values.Value{}, err
		}
	}
	endLength, _ := values.Str(end).Length()
	if length < endLength {
		return values.Value{}, values.Errorf("expected length >= %d, got %d", endLength, length)
	}
	if leeway < 0 {
		return values.Value{}, values.Errorf("expected leeway >= 0, got %d", leeway)
	}
	if n <= length+leeway {
		return v, nil
	}
	text, err := values.WantString(v, "truncate input")
	if err != nil {
		return values.Value{}, err
	}
	cut := text[:pytext.ByteOffset(text, length-endLength)]
	if !p[1].Truth() {
		if i := strings.LastIndexByte(cut, ' '); i >= 0 {
			cut = cut[:i]
		}
	}
	return run.NewString(cut + end)
}

func filterWordCount(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	v, err := filterString(run, v, a)
	n, inWord := int64(0), false
	for _, r := range v.Text {
		word := r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r)
		if word && !inWord {
			n++
		}
		inWord = word
	}
	return values.Int(n), err
}

func urlQuote(s string, query bool) string {
	var out []byte
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case pytext.IsDecimal(c) || c|0x20 >= 'a' && c|0x20 <= 'z' ||
			strings.IndexByte("_.-~", c) >= 0 || c == '/' && !query:
			out = append(out, c)
		case c == ' ' && query:
			out = append(out, '+')
		default:
			out = append(out, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		}
	}
	return string(out)
}

func filterURLEncode(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return values.Value{}, err
	}
	if v.Kind == values.KindString || !values.Iterable(v) {
		v, err := run.ToString(v)
		if err != nil {
			return values.Value{}, err
		}
		return run.NewString(urlQuote(v.Text, false))
	}
	if v.Kind == values.KindMap {
		v.Kind = values.KindItems
	}
	items, err := run.Iterate(v)
	if err != nil {
		return values.Value{}, err
	}
	w := values.Writer{Run: run, Limit: run.MaxOutput}
	for i, item := range items {
		if i > 0 {
			w.WriteText("&")
		}
		pair, err := run.Iterate(item)
		if err != nil {
			return values.Value{}, err
		}
		if len(pair) != 2 {
			return values.Value{}, values.Errorf("urlencode expects pairs")
		}
		for j, part := range pair {
			if j > 0 {
				w.WriteText("=")
			}
			text, err := run.ToString(part)
			if err != nil {
				return values.Value{}, err
			}
			w.WriteText(urlQuote(text.Text, true))
		}
		if w.Err != nil {
			return values.Value{}, w.Err
		}
	}
	return run.NewString(string(w.Buf))
}
