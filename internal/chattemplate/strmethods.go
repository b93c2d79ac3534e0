package chattemplate

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// stringMethods are the methods of str. Python's methods that take positional-only arguments accept them
// by keyword here too.
var stringMethods map[string]methodFunc

func init() {
	stringMethods = map[string]methodFunc{
		"upper":      textMethod(upper),
		"lower":      textMethod(lower),
		"casefold":   textMethod(fold),
		"title":      textMethod(titleWords),
		"capitalize": textMethod(capitalize),
		"swapcase":   textMethod(swapCase),

		"isdigit":   runesMethod(isDigit),
		"isdecimal": runesMethod(unicode.IsDigit),
		"isalpha":   runesMethod(unicode.IsLetter),
		"isalnum":   runesMethod(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isspace":   runesMethod(isSpace),
		"isupper":   testMethod(func(s string) bool { return allCased(s, unicode.IsUpper) }),
		"islower":   testMethod(func(s string) bool { return allCased(s, unicode.IsLower) }),
		"istitle":   testMethod(func(s string) bool { return allCased(s, func(rune) bool { return true }) && titleWords(s) == s }),
		"isascii":   testMethod(isASCII),

		"strip":  stripMethod(strings.TrimFunc),
		"lstrip": stripMethod(strings.TrimLeftFunc),
		"rstrip": stripMethod(strings.TrimRightFunc),

		"startswith":   affixMethod(strings.HasPrefix),
		"endswith":     affixMethod(strings.HasSuffix),
		"removeprefix": cutMethod(strings.TrimPrefix),
		"removesuffix": cutMethod(strings.TrimSuffix),

		"find":   findMethod(strings.Index, false),
		"rfind":  findMethod(strings.LastIndex, false),
		"index":  findMethod(strings.Index, true),
		"rindex": findMethod(strings.LastIndex, true),
		"count":  countMethod,

		"split":      splitMethod(splitSpace, func(s, sep string, max int) []string { return strings.SplitN(s, sep, splitCount(max)) }),
		"rsplit":     splitMethod(rsplitSpace, rsplit),
		"splitlines": splitLinesMethod,
		"partition":  partitionMethod(strings.Index, false),
		"rpartition": partitionMethod(strings.LastIndex, true),

		"replace":    replaceMethod,
		"join":       joinMethod,
		"format":     formatMethod,
		"zfill":      zfillMethod,
		"ljust":      justifyMethod(func(room int) int { return 0 }),
		"rjust":      justifyMethod(func(room int) int { return room }),
		"center":     centerMethod,
		"expandtabs": expandTabsMethod,
	}
}

func splitCount(max int) int {
	if max < 0 {
		return -1
	}
	return max + 1
}

func textMethod(f func(string) string) methodFunc {
	return func(run *budget, self Value, a *callArgs) (Value, error) {
		if err := a.bind(nil, 0); err != nil {
			return Value{}, err
		}
		return run.newString(f(self.str))
	}
}

func testMethod(f func(string) bool) methodFunc {
	return func(_ *budget, self Value, a *callArgs) (Value, error) {
		return Bool(f(self.str)), a.bind(nil, 0)
	}
}

func runesMethod(pass func(rune) bool) methodFunc {
	return testMethod(func(s string) bool { return allRunes(s, pass) })
}

func swapCase(s string) string {
	var out strings.Builder
	for _, r := range s {
		if unicode.IsUpper(r) {
			out.WriteString(lower(string(r)))
		} else {
			out.WriteString(upper(string(r)))
		}
	}
	return out.String()
}

func stripMethod(trim func(string, func(rune) bool) string) methodFunc {
	return func(run *budget, self Value, a *callArgs) (Value, error) {
		var p [1]Value
		if err := a.bind(p[:], 0, "chars"); err != nil {
			return Value{}, err
		}
		return Stripped(run, self, p[0], trim)
	}
}

// Stripped trims the characters of chars, or white space if it is not given or None.
func Stripped(run *budget, self, chars Value, trim func(string, func(rune) bool) string) (Value, error) {
	if chars.kind == kindMissing || chars.kind == kindNone {
		return strValue(trim(self.str, isSpace)), nil
	}
	set, err := wantString(chars, "strip argument")
	if err != nil {
		return Value{}, err
	}
	if len(set) > 256 {
		return Value{}, errorf("strip argument is too long")
	}
	if err := run.work(len(self.str) * (1 + len(set)/8)); err != nil {
		return Value{}, err
	}
	return strValue(trim(self.str, func(r rune) bool { return strings.ContainsRune(set, r) })), nil
}

// window cuts s to the characters from start to end as Python's optional arguments of that name do. from is
// the character where the cut begins; ok is false if the range lies outside s.
func window(s string, start, end Value) (cut string, from int, ok bool, err error) {
	if start.kind == kindNone {
		start = Value{}
	}
	if end.kind == kindNone {
		end = Value{}
	}
	if start.kind == kindMissing && end.kind == kindMissing {
		return s, 0, true, nil
	}
	n := utf8.RuneCountInString(s)
	from, err = wantInt(start, "start", 0)
	if err != nil {
		return "", 0, false, err
	}
	to, err := wantInt(end, "end", n)
	if err != nil {
		return "", 0, false, err
	}
	if from < 0 {
		from = max(0, from+n)
	}
	if to < 0 {
		to = max(0, to+n)
	}
	to = min(to, n)
	if from > to {
		return "", 0, false, nil
	}
	at := byteOffset(s, from)
	return s[at : at+byteOffset(s[at:], to-from)], from, true, nil
}

func affixMethod(has func(s, affix string) bool) methodFunc {
	return func(run *budget, self Value, a *callArgs) (Value, error) {
		var p [3]Value
		if err := a.bind(p[:], 1, "prefix", "start", "end"); err != nil {
			return Value{}, err
		}
		text, _, ok, err := window(self.str, p[1], p[2])
		if err != nil {
			return Value{}, err
		}
		affixes := []Value{p[0]}
		if p[0].kind == kindTuple {
			affixes = p[0].items()
		}
		for _, v := range affixes {
			affix, err := wantString(v, "first argument")
			if err != nil {
				return Value{}, err
			}
			if err := run.work(len(affix)); err != nil {
				return Value{}, err
			}
			if ok && has(text, affix) {
				return Bool(true), nil
			}
		}
		return Bool(false), nil
	}
}

func cutMethod(cut func(s, affix string) string) methodFunc {
	return func(_ *budget, self Value, a *callArgs) (Value, error) {
		var p [1]Value
		if err := a.bind(p[:], 1, "affix"); err != nil {
			return Value{}, err
		}
		affix, err := wantString(p[0], "argument")
		return strValue(cut(self.str, affix)), err
	}
}

func findMethod(index func(s, sub string) int, must bool) methodFunc {
	return func(_ *budget, self Value, a *callArgs) (Value, error) {
		var p [3]Value
		if err := a.bind(p[:], 1, "sub", "start", "end"); err != nil {
			return Value{}, err
		}
		sub, err := wantString(p[0], "argument")
		if err != nil {
			return Value{}, err
		}
		text, from, ok, err := window(self.str, p[1], p[2])
		if err != nil {
			return Value{}, err
		}
		if i := index(text, sub); ok && i >= 0 {
			return Int(int64(from + utf8.RuneCountInString(text[:i]))), nil
		}
		if must {
			return Value{}, errorf("substring not found")
		}
		return Int(-1), nil
	}
}

func countMethod(_ *budget, self Value, a *callArgs) (Value, error) {
	var p [3]Value
	if err := a.bind(p[:], 1, "sub", "start", "end"); err != nil {
		return Value{}, err
	}
	sub, err := wantString(p[0], "argument")
	if err != nil {
		return Value{}, err
	}
	text, _, ok, err := window(self.str, p[1], p[2])
	if err != nil || !ok {
		return Int(0), err
	}
	return Int(int64(strings.Count(text, sub))), nil
}

// NewTexts makes a list of texts that share the memory of another.
func NewTexts(run *budget, parts []string) (Value, error) {
	if err := run.chargeValues(len(parts)); err != nil {
		return Value{}, err
	}
	items := make([]Value, len(parts))
	for i, s := range parts {
		items[i] = strValue(s)
	}
	return listValue(items), nil
}

func splitMethod(bySpace func(string, int) []string, bySep func(string, string, int) []string) methodFunc {
	return func(run *budget, self Value, a *callArgs) (Value, error) {
		var p [2]Value
		if err := a.bind(p[:], 0, "sep", "maxsplit"); err != nil {
			return Value{}, err
		}
		max, err := wantInt(p[1], "maxsplit", -1)
		if err != nil {
			return Value{}, err
		}
		if p[0].kind == kindMissing || p[0].kind == kindNone {
			if err := run.charge(8 * len(self.str)); err != nil {
				return Value{}, err
			}
			return NewTexts(run, bySpace(self.str, max))
		}
		sep, err := wantString(p[0], "separator")
		if err != nil {
			return Value{}, err
		}
		if sep == "" {
			return Value{}, errorf("empty separator")
		}
		if err := run.charge(16 * strings.Count(self.str, sep)); err != nil {
			return Value{}, err
		}
		return NewTexts(run, bySep(self.str, sep, max))
	}
}

func splitLinesMethod(run *budget, self Value, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 0, "keepends"); err != nil {
		return Value{}, err
	}
	lines, err := SplitText(run, self.str, p[0].truth())
	if err != nil {
		return Value{}, err
	}
	return NewTexts(run, lines)
}

// SplitText charges for the lines before it makes them.
func SplitText(run *budget, s string, keepEnds bool) ([]string, error) {
	ends := 1
	for _, r := range s {
		if isLineEnd(r) {
			ends++
		}
	}
	if err := run.charge(16 * ends); err != nil {
		return nil, err
	}
	return splitLines(s, keepEnds), nil
}

func partitionMethod(index func(s, sep string) int, last bool) methodFunc {
	return func(run *budget, self Value, a *callArgs) (Value, error) {
		var p [1]Value
		if err := a.bind(p[:], 1, "sep"); err != nil {
			return Value{}, err
		}
		sep, err := wantString(p[0], "separator")
		if err != nil {
			return Value{}, err
		}
		if sep == "" {
			return Value{}, errorf("empty separator")
		}
		parts := [3]string{self.str, "", ""}
		if i := index(self.str, sep); i >= 0 {
			parts = [3]string{self.str[:i], sep, self.str[i+len(sep):]}
		} else if last {
			parts = [3]string{"", "", self.str}
		}
		v, err := NewTexts(run, parts[:])
		v.kind = kindTuple
		return v, err
	}
}

func replaceMethod(run *budget, self Value, a *callArgs) (Value, error) {
	var p [3]Value
	if err := a.bind(p[:], 2, "old", "new", "count"); err != nil {
		return Value{}, err
	}
	before, err := wantString(p[0], "replace() argument 1")
	if err != nil {
		return Value{}, err
	}
	after, err := wantString(p[1], "replace() argument 2")
	if err != nil {
		return Value{}, err
	}
	count, err := wantInt(p[2], "count", -1)
	if err != nil {
		return Value{}, err
	}
	return Replace(run, self.str, before, after, count)
}

// Replace is str.replace; it knows the size of the result before making it.
func Replace(run *budget, s, before, after string, count int) (Value, error) {
	n := strings.Count(s, before)
	if count >= 0 {
		n = min(n, count)
	}
	if n == 0 {
		return strValue(s), nil
	}
	if grow := len(after) - len(before); grow > 0 && n > run.memory/grow {
		return Value{}, errorf("template uses too much memory")
	}
	if err := run.charge(max(len(s), len(s)+n*(len(after)-len(before)))); err != nil {
		return Value{}, err
	}
	return strValue(strings.Replace(s, before, after, n)), nil
}

func joinMethod(run *budget, self Value, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 1, "iterable"); err != nil {
		return Value{}, err
	}
	items, err := run.iterate(p[0])
	if err != nil {
		return Value{}, err
	}
	for i, v := range items {
		if v.kind != kindString {
			return Value{}, errorf("sequence item %d: expected str instance, %s found", i, v.typeName())
		}
	}
	return JoinTexts(run, items, self.str)
}

// JoinTexts concatenates texts with a separator.
func JoinTexts(run *budget, items []Value, sep string) (Value, error) {
	w := writer{run: run, limit: run.maxOutput}
	for i, v := range items {
		if i > 0 {
			w.write(sep)
		}
		if w.write(v.str); w.err != nil {
			return Value{}, w.err
		}
	}
	return run.newString(string(w.buf))
}

// padded puts self in a field: left of the padding is the given share of it.
// centerLeft is the padding CPython puts on the left when it centres.
