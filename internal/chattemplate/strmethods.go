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
		"upper":      textMethod(Upper),
		"lower":      textMethod(Lower),
		"casefold":   textMethod(Fold),
		"title":      textMethod(TitleWords),
		"capitalize": textMethod(Capitalize),
		"swapcase":   textMethod(swapCase),

		"isdigit":   runesMethod(IsDigit),
		"isdecimal": runesMethod(unicode.IsDigit),
		"isalpha":   runesMethod(unicode.IsLetter),
		"isalnum":   runesMethod(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isspace":   runesMethod(IsSpace),
		"isupper":   testMethod(func(s string) bool { return AllCased(s, unicode.IsUpper) }),
		"islower":   testMethod(func(s string) bool { return AllCased(s, unicode.IsLower) }),
		"istitle":   testMethod(func(s string) bool { return AllCased(s, func(rune) bool { return true }) && TitleWords(s) == s }),
		"isascii":   testMethod(IsASCII),

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

		"split":      splitMethod(SplitSpace, func(s, sep string, max int) []string { return strings.SplitN(s, sep, splitCount(max)) }),
		"rsplit":     splitMethod(RsplitSpace, Rsplit),
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
	return func(run *Budget, self Value, a *Args) (Value, error) {
		if err := a.Bind(nil, 0); err != nil {
			return Value{}, err
		}
		return run.NewString(f(self.Text))
	}
}

func testMethod(f func(string) bool) methodFunc {
	return func(_ *Budget, self Value, a *Args) (Value, error) {
		return Bool(f(self.Text)), a.Bind(nil, 0)
	}
}

func runesMethod(pass func(rune) bool) methodFunc {
	return testMethod(func(s string) bool { return AllRunes(s, pass) })
}

func swapCase(s string) string {
	var out strings.Builder
	for _, r := range s {
		if unicode.IsUpper(r) {
			out.WriteString(Lower(string(r)))
		} else {
			out.WriteString(Upper(string(r)))
		}
	}
	return out.String()
}

func stripMethod(trim func(string, func(rune) bool) string) methodFunc {
	return func(run *Budget, self Value, a *Args) (Value, error) {
		var p [1]Value
		if err := a.Bind(p[:], 0, "chars"); err != nil {
			return Value{}, err
		}
		return Stripped(run, self, p[0], trim)
	}
}

// Stripped trims the characters of chars, or white space if it is not given or None.
func Stripped(run *Budget, self, chars Value, trim func(string, func(rune) bool) string) (Value, error) {
	if chars.Kind == KindMissing || chars.Kind == KindNone {
		return Str(trim(self.Text, IsSpace)), nil
	}
	set, err := WantString(chars, "strip argument")
	if err != nil {
		return Value{}, err
	}
	if len(set) > 256 {
		return Value{}, Errorf("strip argument is too long")
	}
	if err := run.Work(len(self.Text) * (1 + len(set)/8)); err != nil {
		return Value{}, err
	}
	return Str(trim(self.Text, func(r rune) bool { return strings.ContainsRune(set, r) })), nil
}

// window cuts s to the characters from start to end as Python's optional arguments of that name do. from is
// the character where the cut begins; ok is false if the range lies outside s.
func window(s string, start, end Value) (cut string, from int, ok bool, err error) {
	if start.Kind == KindNone {
		start = Value{}
	}
	if end.Kind == KindNone {
		end = Value{}
	}
	if start.Kind == KindMissing && end.Kind == KindMissing {
		return s, 0, true, nil
	}
	n := utf8.RuneCountInString(s)
	from, err = WantInt(start, "start", 0)
	if err != nil {
		return "", 0, false, err
	}
	to, err := WantInt(end, "end", n)
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
	at := ByteOffset(s, from)
	return s[at : at+ByteOffset(s[at:], to-from)], from, true, nil
}

func affixMethod(has func(s, affix string) bool) methodFunc {
	return func(run *Budget, self Value, a *Args) (Value, error) {
		var p [3]Value
		if err := a.Bind(p[:], 1, "prefix", "start", "end"); err != nil {
			return Value{}, err
		}
		text, _, ok, err := window(self.Text, p[1], p[2])
		if err != nil {
			return Value{}, err
		}
		affixes := []Value{p[0]}
		if p[0].Kind == KindTuple {
			affixes = p[0].Items()
		}
		for _, v := range affixes {
			affix, err := WantString(v, "first argument")
			if err != nil {
				return Value{}, err
			}
			if err := run.Work(len(affix)); err != nil {
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
	return func(_ *Budget, self Value, a *Args) (Value, error) {
		var p [1]Value
		if err := a.Bind(p[:], 1, "affix"); err != nil {
			return Value{}, err
		}
		affix, err := WantString(p[0], "argument")
		return Str(cut(self.Text, affix)), err
	}
}

func findMethod(index func(s, sub string) int, must bool) methodFunc {
	return func(_ *Budget, self Value, a *Args) (Value, error) {
		var p [3]Value
		if err := a.Bind(p[:], 1, "sub", "start", "end"); err != nil {
			return Value{}, err
		}
		sub, err := WantString(p[0], "argument")
		if err != nil {
			return Value{}, err
		}
		text, from, ok, err := window(self.Text, p[1], p[2])
		if err != nil {
			return Value{}, err
		}
		if i := index(text, sub); ok && i >= 0 {
			return Int(int64(from + utf8.RuneCountInString(text[:i]))), nil
		}
		if must {
			return Value{}, Errorf("substring not found")
		}
		return Int(-1), nil
	}
}

func countMethod(_ *Budget, self Value, a *Args) (Value, error) {
	var p [3]Value
	if err := a.Bind(p[:], 1, "sub", "start", "end"); err != nil {
		return Value{}, err
	}
	sub, err := WantString(p[0], "argument")
	if err != nil {
		return Value{}, err
	}
	text, _, ok, err := window(self.Text, p[1], p[2])
	if err != nil || !ok {
		return Int(0), err
	}
	return Int(int64(strings.Count(text, sub))), nil
}

// NewTexts makes a list of texts that share the memory of another.
func NewTexts(run *Budget, parts []string) (Value, error) {
	if err := run.ChargeValues(len(parts)); err != nil {
		return Value{}, err
	}
	items := make([]Value, len(parts))
	for i, s := range parts {
		items[i] = Str(s)
	}
	return NewList(items), nil
}

func splitMethod(bySpace func(string, int) []string, bySep func(string, string, int) []string) methodFunc {
	return func(run *Budget, self Value, a *Args) (Value, error) {
		var p [2]Value
		if err := a.Bind(p[:], 0, "sep", "maxsplit"); err != nil {
			return Value{}, err
		}
		max, err := WantInt(p[1], "maxsplit", -1)
		if err != nil {
			return Value{}, err
		}
		if p[0].Kind == KindMissing || p[0].Kind == KindNone {
			if err := run.Charge(8 * len(self.Text)); err != nil {
				return Value{}, err
			}
			return NewTexts(run, bySpace(self.Text, max))
		}
		sep, err := WantString(p[0], "separator")
		if err != nil {
			return Value{}, err
		}
		if sep == "" {
			return Value{}, Errorf("empty separator")
		}
		if err := run.Charge(16 * strings.Count(self.Text, sep)); err != nil {
			return Value{}, err
		}
		return NewTexts(run, bySep(self.Text, sep, max))
	}
}

func splitLinesMethod(run *Budget, self Value, a *Args) (Value, error) {
	var p [1]Value
	if err := a.Bind(p[:], 0, "keepends"); err != nil {
		return Value{}, err
	}
	lines, err := SplitText(run, self.Text, p[0].Truth())
	if err != nil {
		return Value{}, err
	}
	return NewTexts(run, lines)
}

// SplitText charges for the lines before it makes them.
func SplitText(run *Budget, s string, keepEnds bool) ([]string, error) {
	ends := 1
	for _, r := range s {
		if IsLineEnd(r) {
			ends++
		}
	}
	if err := run.Charge(16 * ends); err != nil {
		return nil, err
	}
	return SplitLines(s, keepEnds), nil
}

func partitionMethod(index func(s, sep string) int, last bool) methodFunc {
	return func(run *Budget, self Value, a *Args) (Value, error) {
		var p [1]Value
		if err := a.Bind(p[:], 1, "sep"); err != nil {
			return Value{}, err
		}
		sep, err := WantString(p[0], "separator")
		if err != nil {
			return Value{}, err
		}
		if sep == "" {
			return Value{}, Errorf("empty separator")
		}
		parts := [3]string{self.Text, "", ""}
		if i := index(self.Text, sep); i >= 0 {
			parts = [3]string{self.Text[:i], sep, self.Text[i+len(sep):]}
		} else if last {
			parts = [3]string{"", "", self.Text}
		}
		v, err := NewTexts(run, parts[:])
		v.Kind = KindTuple
		return v, err
	}
}

func replaceMethod(run *Budget, self Value, a *Args) (Value, error) {
	var p [3]Value
	if err := a.Bind(p[:], 2, "old", "new", "count"); err != nil {
		return Value{}, err
	}
	before, err := WantString(p[0], "replace() argument 1")
	if err != nil {
		return Value{}, err
	}
	after, err := WantString(p[1], "replace() argument 2")
	if err != nil {
		return Value{}, err
	}
	count, err := WantInt(p[2], "count", -1)
	if err != nil {
		return Value{}, err
	}
	return Replace(run, self.Text, before, after, count)
}

// Replace is str.replace; it knows the size of the result before making it.
func Replace(run *Budget, s, before, after string, count int) (Value, error) {
	n := strings.Count(s, before)
	if count >= 0 {
		n = min(n, count)
	}
	if n == 0 {
		return Str(s), nil
	}
	if grow := len(after) - len(before); grow > 0 && n > run.Memory/grow {
		return Value{}, Errorf("template uses too much memory")
	}
	if err := run.Charge(max(len(s), len(s)+n*(len(after)-len(before)))); err != nil {
		return Value{}, err
	}
	return Str(strings.Replace(s, before, after, n)), nil
}

func joinMethod(run *Budget, self Value, a *Args) (Value, error) {
	var p [1]Value
	if err := a.Bind(p[:], 1, "iterable"); err != nil {
		return Value{}, err
	}
	items, err := run.Iterate(p[0])
	if err != nil {
		return Value{}, err
	}
	for i, v := range items {
		if v.Kind != KindString {
			return Value{}, Errorf("sequence item %d: expected str instance, %s found", i, v.TypeName())
		}
	}
	return JoinTexts(run, items, self.Text)
}

// JoinTexts concatenates texts with a separator.
func JoinTexts(run *Budget, items []Value, sep string) (Value, error) {
	w := Writer{Run: run, Limit: run.MaxOutput}
	for i, v := range items {
		if i > 0 {
			w.WriteText(sep)
		}
		if w.WriteText(v.Text); w.Err != nil {
			return Value{}, w.Err
		}
	}
	return run.NewString(string(w.Buf))
}

// padded puts self in a field: left of the padding is the given share of it.
// centerLeft is the padding CPython puts on the left when it centres.
