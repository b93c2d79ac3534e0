package chattemplate

import (
	"strings"
	"unicode/utf8"
)

func zfillMethod(run *budget, self Value, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 1, "width"); err != nil {
		return Value{}, err
	}
	width, err := wantInt(p[0], "width", 0)
	if err != nil {
		return Value{}, err
	}
	sign, digits := "", self.str
	if digits != "" && (digits[0] == '-' || digits[0] == '+') {
		sign, digits = digits[:1], digits[1:]
	}
	zeros, err := Repeat(run, strValue("0"), Int(int64(width-utf8.RuneCountInString(self.str))))
	if err != nil {
		return Value{}, err
	}
	return run.newString(sign + zeros.str + digits)
}

func Padded(run *budget, self string, width int, fill string, left func(room int) int) (Value, error) {
	room := width - utf8.RuneCountInString(self)
	if room <= 0 {
		return strValue(self), nil
	}
	padding, err := Repeat(run, strValue(fill), Int(int64(room)))
	if err != nil {
		return Value{}, err
	}
	cut := left(room) * len(fill)
	return run.newString(padding.str[:cut] + self + padding.str[cut:])
}

func Justify(run *budget, self Value, a *callArgs, left func(room, width int) int) (Value, error) {
	var p [2]Value
	if err := a.bind(p[:], 1, "width", "fillchar"); err != nil {
		return Value{}, err
	}
	width, err := wantInt(p[0], "width", 0)
	if err != nil {
		return Value{}, err
	}
	fill := " "
	if p[1].kind != kindMissing {
		if fill, err = wantString(p[1], "fill character"); err != nil {
			return Value{}, err
		}
		if utf8.RuneCountInString(fill) != 1 {
			return Value{}, errorf("the fill character must be exactly one character long")
		}
	}
	return Padded(run, self.str, width, fill, func(room int) int { return left(room, width) })
}

func justifyMethod(left func(room int) int) methodFunc {
	return func(run *budget, self Value, a *callArgs) (Value, error) {
		return Justify(run, self, a, func(room, _ int) int { return left(room) })
	}
}

func centerLeft(room, width int) int { return room/2 + room&width&1 }

func centerMethod(run *budget, self Value, a *callArgs) (Value, error) {
	return Justify(run, self, a, centerLeft)
}

func expandTabsMethod(run *budget, self Value, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 0, "tabsize"); err != nil {
		return Value{}, err
	}
	size, err := wantInt(p[0], "tabsize", 8)
	if err != nil {
		return Value{}, err
	}
	if size > 1000 {
		return Value{}, errorf("tab size %d is too large", size)
	}
	w := writer{run: run, limit: run.maxOutput}
	column := 0
	for _, r := range self.str {
		switch {
		case r == '\t' && size <= 0:
		case r == '\t':
			n := size - column%size
			w.write(strings.Repeat(" ", n))
			column += n
		default:
			w.write(string(r))
			column++
			if r == '\n' || r == '\r' {
				column = 0
			}
		}
		if w.err != nil {
			return Value{}, w.err
		}
	}
	return run.newString(string(w.buf))
}
