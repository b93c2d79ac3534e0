package chattemplate

import (
	"strings"
	"unicode/utf8"
)

func zfillMethod(run *Budget, self Value, a *Args) (Value, error) {
	var p [1]Value
	if err := a.Bind(p[:], 1, "width"); err != nil {
		return Value{}, err
	}
	width, err := WantInt(p[0], "width", 0)
	if err != nil {
		return Value{}, err
	}
	sign, digits := "", self.Text
	if digits != "" && (digits[0] == '-' || digits[0] == '+') {
		sign, digits = digits[:1], digits[1:]
	}
	zeros, err := Repeat(run, Str("0"), Int(int64(width-utf8.RuneCountInString(self.Text))))
	if err != nil {
		return Value{}, err
	}
	return run.NewString(sign + zeros.Text + digits)
}

func Padded(run *Budget, self string, width int, fill string, left func(room int) int) (Value, error) {
	room := width - utf8.RuneCountInString(self)
	if room <= 0 {
		return Str(self), nil
	}
	padding, err := Repeat(run, Str(fill), Int(int64(room)))
	if err != nil {
		return Value{}, err
	}
	cut := left(room) * len(fill)
	return run.NewString(padding.Text[:cut] + self + padding.Text[cut:])
}

func Justify(run *Budget, self Value, a *Args, left func(room, width int) int) (Value, error) {
	var p [2]Value
	if err := a.Bind(p[:], 1, "width", "fillchar"); err != nil {
		return Value{}, err
	}
	width, err := WantInt(p[0], "width", 0)
	if err != nil {
		return Value{}, err
	}
	fill := " "
	if p[1].Kind != KindMissing {
		if fill, err = WantString(p[1], "fill character"); err != nil {
			return Value{}, err
		}
		if utf8.RuneCountInString(fill) != 1 {
			return Value{}, Errorf("the fill character must be exactly one character long")
		}
	}
	return Padded(run, self.Text, width, fill, func(room int) int { return left(room, width) })
}

func justifyMethod(left func(room int) int) methodFunc {
	return func(run *Budget, self Value, a *Args) (Value, error) {
		return Justify(run, self, a, func(room, _ int) int { return left(room) })
	}
}

func centerLeft(room, width int) int { return room/2 + room&width&1 }

func centerMethod(run *Budget, self Value, a *Args) (Value, error) {
	return Justify(run, self, a, centerLeft)
}

func expandTabsMethod(run *Budget, self Value, a *Args) (Value, error) {
	var p [1]Value
	if err := a.Bind(p[:], 0, "tabsize"); err != nil {
		return Value{}, err
	}
	size, err := WantInt(p[0], "tabsize", 8)
	if err != nil {
		return Value{}, err
	}
	if size > 1000 {
		return Value{}, Errorf("tab size %d is too large", size)
	}
	w := Writer{Run: run, Limit: run.MaxOutput}
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
			return Value{}, w.Err
		}
	}
	return run.NewString(string(w.Buf))
}
