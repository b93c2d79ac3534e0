package ops

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// PercentFormat is Python's format % given.
func PercentFormat(run *values.Budget, format, given values.Value) (values.Value, error) {
	p := &percentFormatter{run: run, w: values.Writer{Run: run, Limit: run.MaxOutput},
		values: given, args: []values.Value{given}}
	if given.Kind == values.KindTuple {
		p.args = given.Items()
	}
	s := format.Text
	for s != "" && p.w.Err == nil {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			p.w.WriteText(s)
			break
		}
		p.w.WriteText(s[:i])
		var err error
		if s, err = p.conversion(s[i+1:]); err != nil {
			return values.Value{}, err
		}
	}
	if p.w.Err != nil {
		return values.Value{}, p.w.Err
	}
	if p.next < len(p.args) && !p.byName && !subscriptable(given) {
		return values.Value{}, values.Errorf("not all arguments converted during string formatting")
	}
	return run.NewString(string(p.w.Buf))
}

// subscriptable tells whether Python takes the right side of % for a mapping, which need not be
// used up.
func subscriptable(v values.Value) bool {
	return v.Kind == values.KindMap || v.Kind == values.KindList || v.Kind == values.KindRange ||
		v.IsUndefined()
}

type percentFormatter struct {
	run    *values.Budget
	w      values.Writer
	values values.Value
	args   []values.Value
	next   int
	byName bool // a conversion named its value
}

func (p *percentFormatter) arg() (values.Value, error) {
	if p.next >= len(p.args) {
		return values.Value{}, values.Errorf("not enough arguments for format string")
	}
	p.next++
	return p.args[p.next-1], nil
}

// conversion handles one conversion; s begins after the percent sign. It returns what follows it.
func (p *percentFormatter) conversion(s string) (string, error) {
	f := fieldSpec{fill: " ", sign: '-', precision: -1}
	var named values.Value
	if strings.HasPrefix(s, "(") {
		end := strings.IndexByte(s, ')')
		if end < 0 {
			return "", values.Errorf("incomplete format key")
		}
		if p.values.Kind != values.KindMap {
			return "", values.Errorf("format requires a mapping")
		}
		v, ok := p.values.Mapping().Get(s[1:end])
		if !ok {
			return "", values.Errorf("format: no key '%s'", s[1:end])
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
		return "", values.Errorf("incomplete format")
	}
	verb, size := utf8.DecodeRuneInString(s)
	s = s[size:]
	if verb == '%' {
		p.w.WriteText("%")
		return s, nil
	}
	if named.Kind == values.KindMissing {
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
	p.w.WriteText(text)
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
	n, err := values.WantInt(v, "* width or precision", 0)
	return n, s[1:], err
}

func (p *percentFormatter) convert(v values.Value, verb rune, f fieldSpec) (string, error) {
	switch verb {
	case 's', 'r', 'a':
		if f.align == '=' {
			f.fill, f.align = " ", '>'
		}
		if verb == 's' {
			text, err := p.run.ToString(v)
			if err != nil {
				return "", err
			}
			return padText(p.run, text.Text, f, '>')
		}
		text, err := p.run.ReprOf(v)
		if err != nil {
			return "", err
		}
		return padText(p.run, text, f, '>')
	case 'c':
		if v.Kind == values.KindString && utf8.RuneCountInString(v.Text) == 1 {
			return padText(p.run, v.Text, f, '>')
		}
		if !values.IsInteger(v) {
			return "", values.Errorf("%%c requires int or char")
		}
		f.verb, f.precision = 'c', -1
		return formatNumber(p.run, v, f)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if !values.IsNumber(v) {
			return "", values.Errorf("must be real number, not %s", v.TypeName())
		}
		f.verb = byte(verb)
		return formatNumber(p.run, v, f)
	case 'd', 'i', 'u', 'x', 'X', 'o':
		return p.integer(v, verb, f)
	}
	return "", values.Errorf("unsupported format character '%c'", verb)
}

func (p *percentFormatter) integer(v values.Value, verb rune, f fieldSpec) (string, error) {
	decimal := verb == 'd' || verb == 'i' || verb == 'u'
	if v.Kind == values.KindFloat && decimal {
		x := v.AsFloat()
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return "", values.Errorf("cannot convert float %s to integer", values.FormatFloat(x))
		}
		n, _ := big.NewFloat(math.Trunc(x)).Int(nil)
		v = values.Big(n)
	}
	if !values.IsInteger(v) {
		return "", values.Errorf("%%%c format: an integer is required, not %s", verb, v.TypeName())
	}
	n := values.BigOf(v)
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
		if f.precision > MaxPrecision {
			return "", values.Errorf("precision %d is too large", f.precision)
		}
		text = strings.Repeat("0", missing) + text
	}
	return padNumber(p.run, n.Sign() < 0, prefix, text, f)
}
