package ops

import (
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

func zfillMethod(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 1, "width"); err != nil {
		return values.Value{}, err
	}
	width, err := values.WantInt(p[0], "width", 0)
	if err != nil {
		return values.Value{}, err
	}
	sign, digits := "", self.Text
	if digits != "" && (digits[0] == '-' || digits[0] == '+') {
		sign, digits = digits[:1], digits[1:]
	}
	zeros, err := Repeat(run, values.Str("0"),
		values.Int(int64(width-utf8.RuneCountInString(self.Text))))
	if err != nil {
		return values.Value{}, err
	}
	return run.NewString(sign + zeros.Text + digits)
}

// Padded fills a text up to width characters; left tells how many of the room go before it.
func Padded(run *values.Budget, self string, width int, fill string,
	left func(room int) int) (values.Value, error) {
	room := width - utf8.RuneCountInString(self)
	if room <= 0 {
		return values.Str(self), nil
	}
	padding, err := Repeat(run, values.Str(fill), values.Int(int64(room)))
	if err != nil {
		return values.Value{}, err
	}
	cut := left(room) * len(fill)
	return run.NewString(padding.Text[:cut] + self + padding.Text[cut:])
}

func justify(run *values.Budget, self values.Value, a *values.Args,
	left func(room, width int) int) (values.Value, error) {
	var p [2]values.Value
	if err := a.Bind(p[:], 1, "width", "fillchar"); err != nil {
		return values.Value{}, err
	}
	width, err := values.WantInt(p[0], "width", 0)
	if err != nil {
		return values.Value{}, err
	}
	fill := " "
	if p[1].Kind != values.KindMissing {
		if fill, err = values.WantString(p[1], "fill character"); err != nil {
			return values.Value{}, err
		}
		if utf8.RuneCountInString(fill) != 1 {
			return values.Value{},
				values.Errorf("the fill character must be exactly one character long")
		}
	}
	return Padded(run, self.Text, width, fill, func(room int) int { return left(room, width) })
}

func justifyMethod(left func(room int) int) values.Method {
	return func(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		return justify(run, self, a, func(room, _ int) int { return left(room) })
	}
}

// CenterLeft is the part of the room that str.center leaves on the left.
func CenterLeft(room, width int) int { return room/2 + room&width&1 }

func centerMethod(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
	return justify(run, self, a, CenterLeft)
}

func expandTabsMethod(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 0, "tabsize"); err != nil {
		return values.Value{}, err
	}
	size, err := values.WantInt(p[0], "tabsize", 8)
	if err != nil {
		return values.Value{}, err
	}
	if size > 1000 {
		return values.Value{}, values.Errorf("tab size %d is too large", size)
	}
	w := values.Writer{Run: run, Limit: run.MaxOutput}
	column := 0
	for _, r := range self.Text {
		switch {
		case r == '\t' && size <= 0:
		case r == '\t':
			n := size - column%size
			w.WriteText(strings.Repeat(" ", n))
			column += n
		default:
			w.WriteText(string(r))
			column++
			if r == '\n' || r == '\r' {
				column = 0
			}
		}
		if w.Err != nil {
			return values.Value{}, w.Err
		}
	}
	return run.NewString(string(w.Buf))
}
