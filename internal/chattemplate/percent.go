package chattemplate

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// PercentFormat is Python's format % given.
func PercentFormat(run *budget, format, given Value) (Value, error) {
	p := &percentFormatter{run: run, w: writer{run: run, limit: run.maxOutput}, values: given, args: []Value{given}}
	if given.kind == kindTuple {
		p.args = given.items()
	}
	s := format.str
	for s != "" && p.w.err == nil {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			p.w.write(s)
			break
		}
		p.w.write(s[:i])
		var err error
		if s, err = p.conversion(s[i+1:]); err != nil {
			return Value{}, err
		}
	}
	if p.w.err != nil {
		return Value{}, p.w.err
	}
	if p.next < len(p.args) && !p.byName && !subscriptable(given) {
		return Value{}, errorf("not all arguments converted during string formatting")
	}
	return run.newString(string(p.w.buf))
}

// subscriptable tells whether Python takes the right side of % for a mapping, which need not be used up.
func subscriptable(v Value) bool {
	return v.kind == kindMap || v.kind == kindList || v.kind == kindRange || v.IsUndefined()
}

type percentFormatter struct {
	run    *budget
	w      writer
	values Value
	args   []Value
	next   int
	byName bool // a conversion named its value
}

func (p *percentFormatter) arg() (Value, error) {
	if p.next >= len(p.args) {
		return Value{}, errorf("not enough arguments for format string")
	}
	p.next++
	return p.args[p.next-1], nil
}

// conversion handles one conversion; s begins after the percent sign. It returns what follows it.
func (p *percentFormatter) conversion(s string) (string, error) {
	f := fieldSpec{fill: " ", sign: '-', precision: -1}
	var named Value
	if strings.HasPrefix(s, "(") {
		end := strings.IndexByte(s, ')')
		if end < 0 {
			return "", errorf("incomplete format key")
		}
		if p.values.kind != kindMap {
			return "", errorf("format requires a mapping")
		}
		v, ok := p.values.mapping().Get(s[1:end])
		if !ok {
			return "", errorf("format: no key '%s'", s[1:end])
		}
		named, p.byName, s = v, true, s[end+1:]
	}
	left, zero := false, false
flags:
	for ; s != ""; s = s[1:] {
		switch s[0] {
		case '-':
			left = true
		case '+':
			f.sign = '+'
		case ' ':
			if f.sign != '+' {
				f.sign = ' '
			}
		case '#':
			f.alternate = true
		case '0':
			zero = true
		default:
			break flags
		}
	}
	var err error
	if f.width, s, err = p.number(s, 0); err != nil {
		return "", err
	}
	if f.width < 0 {
		left, f.width = true, -f.width
	}
	if strings.HasPrefix(s, ".") {
		if f.precision, s, err = p.number(s[1:], 0); err != nil {
			return "", err
		}
		f.precision = max(0, f.precision)
	}
	s = strings.TrimLeft(s, "hlL")
	if s == "" {
		return "", errorf("incomplete format")
	}
	verb, size := utf8.DecodeRuneInString(s)
	s = s[size:]
	if verb == '%' {
		p.w.write("%")
		return s, nil
	}
	if named.kind == kindMissing {
		if named, err = p.arg(); err != nil {
			return "", err
		}
	}
	f.align = '>'
	if left {
		f.align = '<'
	} else if zero {
		f.fill, f.align = "0", '='
	}
	text, err := p.convert(named, verb, f)
	p.w.write(text)
	return s, err
}

// number reads a width or precision: digits, or * for an argument.
func (p *percentFormatter) number(s string, otherwise int) (int, string, error) {
	if !strings.HasPrefix(s, "*") {
		return leadingInt(s, otherwise)
	}
	v, err := p.arg()
	if err != nil {
		return 0, s, err
	}
	n, err := wantInt(v, "* width or precision", 0)
	return n, s[1:], err
}

func (p *percentFormatter) convert(v Value, verb rune, f fieldSpec) (string, error) {
	switch verb {
	case 's', 'r', 'a':
		if f.align == '=' {
			f.fill, f.align = " ", '>'
		}
		if verb == 's' {
			text, err := p.run.toString(v)
			if err != nil {
				return "", err
			}
			return PadText(p.run, text.str, f, '>')
		}
		text, err := p.run.reprOf(v)
		if err != nil {
			return "", err
		}
		return PadText(p.run, text, f, '>')
	case 'c':
		if v.kind == kindString && utf8.RuneCountInString(v.str) == 1 {
			return PadText(p.run, v.str, f, '>')
		}
		if !isInteger(v) {
			return "", errorf("%%c requires int or char")
		}
		f.verb, f.precision = 'c', -1
		return FormatNumber(p.run, v, f)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if !isNumber(v) {
			return "", errorf("must be real number, not %s", v.typeName())
		}
		f.verb = byte(verb)
		return FormatNumber(p.run, v, f)
	case 'd', 'i', 'u', 'x', 'X', 'o':
		return p.integer(v, verb, f)
	}
	return "", errorf("unsupported format character '%c'", verb)
}

func (p *percentFormatter) integer(v Value, verb rune, f fieldSpec) (string, error) {
	decimal := verb == 'd' || verb == 'i' || verb == 'u'
	if v.kind == kindFloat && decimal {
		x := v.float()
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return "", errorf("cannot convert float %s to integer", formatFloat(x))
		}
		n, _ := big.NewFloat(math.Trunc(x)).Int(nil)
		v = bigValue(n)
	}
	if !isInteger(v) {
		return "", errorf("%%%c format: an integer is required, not %s", verb, v.typeName())
	}
	n := bigOf(v)
	digits := new(big.Int).Abs(n)
	prefix, text := "", digits.String()
	switch verb {
	case 'x':
		prefix, text = "0x", digits.Text(16)
	case 'X':
		prefix, text = "0X", strings.ToUpper(digits.Text(16))
	case 'o':
		prefix, text = "0o", digits.Text(8)
	}
	if !f.alternate {
		prefix = ""
	}
	if missing := f.precision - len(text); missing > 0 {
		if f.precision > maxPrecision {
			return "", errorf("precision %d is too large", f.precision)
		}
		text = strings.Repeat("0", missing) + text
	}
	return PadNumber(p.run, n.Sign() < 0, prefix, text, f)
}
