package ops

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/chattemplate/pytext"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// stringMethods are the methods of str. Python's methods that take positional-only arguments accept
// them by keyword here too.
var stringMethods map[string]values.Method

func init() {
	stringMethods = map[string]values.Method{
		"upper":      textMethod(pytext.Upper),
		"lower":      textMethod(pytext.Lower),
		"casefold":   textMethod(pytext.Fold),
		"title":      textMethod(pytext.TitleWords),
		"capitalize": textMethod(pytext.Capitalize),
		"swapcase":   textMethod(swapCase),

		"isdigit":   runesMethod(pytext.IsDigit),
		"isdecimal": runesMethod(unicode.IsDigit),
		"isalpha":   runesMethod(unicode.IsLetter),
		"isalnum": runesMethod(func(r rune) bool {
			return unicode.IsLetter(r) ||
				unicode.IsNumber(r)
		}),
		"isspace": runesMethod(pytext.IsSpace),
		"isupper": testMethod(func(s string) bool { return pytext.AllCased(s, unicode.IsUpper) }),
		"islower": testMethod(func(s string) bool { return pytext.AllCased(s, unicode.IsLower) }),
		"istitle": testMethod(func(s string) bool {
			return pytext.AllCased(s, func(rune) bool { return true }) && pytext.TitleWords(s) == s
		}),
		"isascii": testMethod(pytext.IsASCII),

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

		"split": splitMethod(pytext.SplitSpace, func(s, sep string,
			max int) []string {
			return strings.SplitN(s, sep, splitCount(max))
		}),
		"rsplit":     splitMethod(pytext.RsplitSpace, pytext.Rsplit),
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

func textMethod(f func(string) string) values.Method {
	return func(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		if err := a.Bind(nil, 0); err != nil {
			return values.Value{}, err
		}
		return run.NewString(f(self.Text))
	}
}

func testMethod(f func(string) bool) values.Method {
	return func(_ *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		return values.Bool(f(self.Text)), a.Bind(nil, 0)
	}
}

func runesMethod(pass func(rune) bool) values.Method {
	return testMethod(func(s string) bool { return pytext.AllRunes(s, pass) })
}

func swapCase(s string) string {
	var out strings.Builder
	for _, r := range s {
		if unicode.IsUpper(r) {
			out.WriteString(pytext.Lower(string(r)))
		} else {
			out.WriteString(pytext.Upper(string(r)))
		}
	}
	return out.String()
}

func stripMethod(trim func(string, func(rune) bool) string) values.Method {
	return func(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		var p [1]values.Value
		if err := a.Bind(p[:], 0, "chars"); err != nil {
			return values.Value{}, err
		}
		return Stripped(run, self, p[0], trim)
	}
}

// Stripped trims the characters of chars, or white space if it is not given or None.
func Stripped(run *values.Budget, self, chars values.Value,
	trim func(string, func(rune) bool) string) (values.Value, error) {
	if chars.Kind == values.KindMissing || chars.Kind == values.KindNone {
		return values.Str(trim(self.Text, pytext.IsSpace)), nil
	}
	set, err := values.WantString(chars, "strip argument")
	if err != nil {
		return values.Value{}, err
	}
	if len(set) > 256 {
		return values.Value{}, values.Errorf("strip argument is too long")
	}
	if err := run.Work(len(self.Text) * (1 + len(set)/8)); err != nil {
		return values.Value{}, err
	}
	return values.Str(trim(self.Text,
		func(r rune) bool { return strings.ContainsRune(set, r) })), nil
}

// window cuts s to the characters from start to end as Python's optional arguments of that name do.
// from is the character where the cut begins; ok is false if the range lies outside s.
func window(s string, start, end values.Value) (cut string, from int, ok bool, err error) {
	if start.Kind == values.KindNone {
		start = values.Value{}
	}
	if end.Kind == values.KindNone {
		end = values.Value{}
	}
	if start.Kind == values.KindMissing && end.Kind == values.KindMissing {
		return s, 0, true, nil
	}
	n := utf8.RuneCountInString(s)
	from, err = values.WantInt(start, "start", 0)
	if err != nil {
		return "", 0, false, err
	}
	to, err := values.WantInt(end, "end", n)
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
	at := pytext.ByteOffset(s, from)
	return s[at : at+pytext.ByteOffset(s[at:], to-from)], from, true, nil
}

func affixMethod(has func(s, affix string) bool) values.Method {
	return func(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		var p [3]values.Value
		if err := a.Bind(p[:], 1, "prefix", "start", "end"); err != nil {
			return values.Value{}, err
		}
		text, _, ok, err := window(self.Text, p[1], p[2])
		if err != nil {
			return values.Value{}, err
		}
		affixes := []values.Value{p[0]}
		if p[0].Kind == values.KindTuple {
			affixes = p[0].Items()
		}
		for _, v := range affixes {
			affix, err := values.WantString(v, "first argument")
			if err != nil {
				return values.Value{}, err
			}
			if err := run.Work(len(affix)); err != nil {
				return values.Value{}, err
			}
			if ok && has(text, affix) {
				return values.Bool(true), nil
			}
		}
		return values.Bool(false), nil
	}
}

func cutMethod(cut func(s, affix string) string) values.Method {
	return func(_ *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		var p [1]values.Value
		if err := a.Bind(p[:], 1, "affix"); err != nil {
			return values.Value{}, err
		}
		affix, err := values.WantString(p[0], "argument")
		return values.Str(cut(self.Text, affix)), err
	}
}

// searched reads what is searched for, and where: see window.
func searched(self values.Value, a *values.Args) (sub, text string, from int, ok bool, err error) {
	var p [3]values.Value
	if err = a.Bind(p[:], 1, "sub", "start", "end"); err != nil {
		return
	}
	if sub, err = values.WantString(p[0], "argument"); err != nil {
		return
	}
	text, from, ok, err = window(self.Text, p[1], p[2])
	return
}

func findMethod(index func(s, sub string) int, must bool) values.Method {
	return func(_ *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		sub, text, from, ok, err := searched(self, a)
		if err != nil {
			return values.Value{}, err
		}
		if i := index(text, sub); ok && i >= 0 {
			return values.Int(int64(from + utf8.RuneCountInString(text[:i]))), nil
		}
		if must {
			return values.Value{}, values.Errorf("substring not found")
		}
		return values.Int(-1), nil
	}
}

func countMethod(_ *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
	sub, text, _, ok, err := searched(self, a)
	if err != nil || !ok {
		return values.Int(0), err
	}
	return values.Int(int64(strings.Count(text, sub))), nil
}

// NewTexts makes a list of texts that share the memory of another.
func newTexts(run *values.Budget, parts []string) (values.Value, error) {
	if err := run.ChargeValues(len(parts)); err != nil {
		return values.Value{}, err
	}
	items := make([]values.Value, len(parts))
	for i, s := range parts {
		items[i] = values.Str(s)
	}
	return values.NewList(items), nil
}

func splitMethod(bySpace func(string, int) []string,
	bySep func(string, string, int) []string) values.Method {
	return func(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		var p [2]values.Value
		if err := a.Bind(p[:], 0, "sep", "maxsplit"); err != nil {
			return values.Value{}, err
		}
		max, err := values.WantInt(p[1], "maxsplit", -1)
		if err != nil {
			return values.Value{}, err
		}
		if p[0].Kind == values.KindMissing || p[0].Kind == values.KindNone {
			if err := run.Charge(8 * len(self.Text)); err != nil {
				return values.Value{}, err
			}
			return newTexts(run, bySpace(self.Text, max))
		}
		sep, err := values.WantString(p[0], "separator")
		if err != nil {
			return values.Value{}, err
		}
		if sep == "" {
			return values.Value{}, values.Errorf("empty separator")
		}
		if err := run.Charge(16 * strings.Count(self.Text, sep)); err != nil {
			return values.Value{}, err
		}
		return newTexts(run, bySep(self.Text, sep, max))
	}
}

func splitLinesMethod(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 0, "keepends"); err != nil {
		return values.Value{}, err
	}
	lines, err := SplitText(run, self.Text, p[0].Truth())
	if err != nil {
		return values.Value{}, err
	}
	return newTexts(run, lines)
}

// SplitText charges for the lines before it makes them.
func SplitText(run *values.Budget, s string, keepEnds bool) ([]string, error) {
	ends := 1
	for _, r := range s {
		if pytext.IsLineEnd(r) {
			ends++
		}
	}
	if err := run.Charge(16 * ends); err != nil {
		return nil, err
	}
	return pytext.SplitLines(s, keepEnds), nil
}

func partitionMethod(index func(s, sep string) int, last bool) values.Method {
	return func(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		var p [1]values.Value
		if err := a.Bind(p[:], 1, "sep"); err != nil {
			return values.Value{}, err
		}
		sep, err := values.WantString(p[0], "separator")
		if err != nil {
			return values.Value{}, err
		}
		if sep == "" {
			return values.Value{}, values.Errorf("empty separator")
		}
		parts := [3]string{self.Text, "", ""}
		if i := index(self.Text, sep); i >= 0 {
			parts = [3]string{self.Text[:i], sep, self.Text[i+len(sep):]}
		} else if last {
			parts = [3]string{"", "", self.Text}
		}
		v, err := newTexts(run, parts[:])
		v.Kind = values.KindTuple
		return v, err
	}
}

func replaceMethod(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
	var p [3]values.Value
	if err := a.Bind(p[:], 2, "old", "new", "count"); err != nil {
		return values.Value{}, err
	}
	before, err := values.WantString(p[0], "replace() argument 1")
	if err != nil {
		return values.Value{}, err
	}
	after, err := values.WantString(p[1], "replace() argument 2")
	if err != nil {
		return values.Value{}, err
	}
	count, err := values.WantInt(p[2], "count", -1)
	if err != nil {
		return values.Value{}, err
	}
	return Replace(run, self.Text, before, after, count)
}

// Replace is str.replace; it knows the size of the result before making it.
func Replace(run *values.Budget, s, before, after string, count int) (values.Value, error) {
	n := strings.Count(s, before)
	if count >= 0 {
		n = min(n, count)
	}
	if n == 0 {
		return values.Str(s), nil
	}
	if grow := len(after) - len(before); grow > 0 && n > run.Memory/grow {
		return values.Value{}, values.Errorf("template uses too much memory")
	}
	if err := run.Charge(max(len(s), len(s)+n*(len(after)-len(before)))); err != nil {
		return values.Value{}, err
	}
	return values.Str(strings.Replace(s, before, after, n)), nil
}

func joinMethod(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 1, "iterable"); err != nil {
		return values.Value{}, err
	}
	items, err := run.Iterate(p[0])
	if err != nil {
		return values.Value{}, err
	}
	for i, v := range items {
		if v.Kind != values.KindString {
			return values.Value{},
				values.Errorf("sequence item %d: expected str instance, %s found", i, v.TypeName())
		}
	}
	return JoinTexts(run, items, self.Text)
}

// JoinTexts concatenates texts with a separator.
func JoinTexts(run *values.Budget, items []values.Value, sep string) (values.Value, error) {
	w := values.Writer{Run: run, Limit: run.MaxOutput}
	for i, v := range items {
		if i > 0 {
			w.WriteText(sep)
		}
		if w.WriteText(v.Text); w.Err != nil {
			return values.Value{}, w.Err
		}
	}
	return run.NewString(string(w.Buf))
}

// padded puts self in a field: left of the padding is the given share of it.
// centerLeft is the padding CPython puts on the left when it centres.
