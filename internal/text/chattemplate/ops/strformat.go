package ops

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/chattemplate/pytext"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// MaxPrecision bounds the digits after the point that a format may ask for.
const MaxPrecision = 400

// fieldSpec is a format specification: of str.format's mini-language, or of a % conversion.
type fieldSpec struct {
	fill      string
	align     byte // < > = ^, 0 for the type's own
	sign      byte // + - or space
	alternate bool
	width     int
	group     byte // , or _
	precision int  // -1 if not given
	verb      byte // 0 if not given
}

func parseFieldSpec(s string) (fieldSpec, error) {
	f := fieldSpec{fill: " ", sign: '-', precision: -1}
	if r, n := utf8.DecodeRuneInString(s); n > 0 && len(s) > n &&
		strings.IndexByte("<>=^", s[n]) >= 0 {
		f.fill, f.align, s = string(r), s[n], s[n+1:]
	} else if s != "" && strings.IndexByte("<>=^", s[0]) >= 0 {
		f.align, s = s[0], s[1:]
	}
	if s != "" && strings.IndexByte("+- ", s[0]) >= 0 {
		f.sign, s = s[0], s[1:]
	}
	if strings.HasPrefix(s, "#") {
		f.alternate, s = true, s[1:]
	}
	if strings.HasPrefix(s, "0") {
		s = s[1:]
		if f.align == 0 {
			f.fill, f.align = "0", '='
		}
	}
	var err error
	if f.width, s, err = leadingInt(s, 0); err != nil {
		return f, err
	}
	if s != "" && (s[0] == ',' || s[0] == '_') {
		f.group, s = s[0], s[1:]
	}
	if strings.HasPrefix(s, ".") {
		if f.precision, s, err = leadingInt(s[1:], -1); err != nil {
			return f, err
		}
		if f.precision < 0 {
			return f, values.Errorf("format specifier missing precision")
		}
	}
	if len(s) > 1 {
		return f, values.Errorf("invalid format specifier")
	}
	if s != "" {
		f.verb = s[0]
	}
	return f, nil
}

func leadingInt(s string, otherwise int) (int, string, error) {
	n := 0
	for n < len(s) && pytext.IsDecimal(s[n]) {
		n++
	}
	if n == 0 {
		return otherwise, s, nil
	}
	v, err := strconv.Atoi(s[:n])
	if err != nil || v > math.MaxInt32 {
		return 0, s, values.Errorf("too many decimal digits in format string")
	}
	return v, s[n:], nil
}

// formatField is Python's format(v, spec).
func formatField(run *values.Budget, v values.Value, f fieldSpec) (string, error) {
	switch {
	case v.IsUndefined() || v.Kind == values.KindNone ||
		!values.IsNumber(v) && v.Kind != values.KindString:
		if f != (fieldSpec{fill: " ", sign: '-', precision: -1}) {
			return "", values.Errorf("unsupported format string passed to %s.__format__",
				v.TypeName())
		}
		s, err := run.ToString(v)
		return s.Text, err
	case v.Kind == values.KindString:
		if f.verb != 0 && f.verb != 's' || f.align == '=' && f.fill != "0" {
			return "", values.Errorf("unknown format code '%c' for object of type 'str'", f.verb)
		}
		return padText(run, v.Text, f, '<')
	case v.Kind == values.KindBool && f.verb == 0:
		s := values.Value{Kind: values.KindBool, Num: v.Num}.String()
		if f.width == 0 && f.precision < 0 {
			return s, nil
		}
		v = values.Int(v.Num)
	}
	return formatNumber(run, v, f)
}

// PadText formats a text: the precision cuts it, the width pads it.
func padText(run *values.Budget, s string, f fieldSpec, align byte) (string, error) {
	if f.precision >= 0 {
		s = s[:pytext.ByteOffset(s, f.precision)]
	}
	if f.align != 0 && f.align != '=' {
		align = f.align
	}
	v, err := Padded(run, s, f.width, f.fill, func(room int) int {
		switch align {
		case '<':
			return 0
		case '^':
			return room / 2
		}
		return room
	})
	return v.Text, err
}

func formatNumber(run *values.Budget, v values.Value, f fieldSpec) (string, error) {
	negative, prefix, digits := false, "", ""
	verb := f.verb
	if v.Kind == values.KindFloat || strings.IndexByte("eEfFgG%", verb) >= 0 && verb != 0 {
		x, err := values.FloatOf(v)
		if err != nil {
			return "", err
		}
		negative = math.Signbit(x) && !math.IsNaN(x)
		if digits, err = floatDigits(math.Abs(x), f); err != nil {
			return "", err
		}
	} else {
		n := values.BigOf(v)
		negative = n.Sign() < 0
		n = new(big.Int).Abs(n)
		if f.precision >= 0 {
			return "", values.Errorf("precision not allowed in integer format specifier")
		}
		switch verb {
		case 0, 'd', 'n':
			digits = n.String()
		case 'x':
			prefix, digits = "0x", n.Text(16)
		case 'X':
			prefix, digits = "0X", strings.ToUpper(n.Text(16))
		case 'o':
			prefix, digits = "0o", n.Text(8)
		case 'b':
			prefix, digits = "0b", n.Text(2)
		case 'c':
			if !n.IsInt64() || n.Int64() > utf8.MaxRune || negative {
				return "", values.Errorf("%%c arg not in range(0x110000)")
			}
			return padText(run, string(rune(n.Int64())), f, '<')
		default:
			return "", values.Errorf("unknown format code '%c' for object of type 'int'", verb)
		}
		if !f.alternate {
			prefix = ""
		}
	}
	if f.group != 0 {
		digits = grouped(digits, f.group)
	}
	return padNumber(run, negative, prefix, digits, f)
}

// PadNumber puts the sign, prefix and padding around a number's digits.
func padNumber(run *values.Budget, negative bool, prefix, digits string,
	f fieldSpec) (string, error) {
	sign := ""
	switch {
	case negative:
		sign = "-"
	case f.sign == '+' || f.sign == ' ':
		sign = string(f.sign)
	}
	if f.align != '=' {
		f.precision = -1
		return padText(run, sign+prefix+digits, f, '>')
	}
	v, err := Padded(run, digits, f.width-len(sign)-len(prefix), f.fill,
		func(room int) int { return room })
	return sign + prefix + v.Text, err
}

// floatDigits writes a float that is not negative.
func floatDigits(x float64, f fieldSpec) (string, error) {
	if f.precision > MaxPrecision {
		return "", values.Errorf("precision %d is too large", f.precision)
	}
	if math.IsInf(x, 0) || math.IsNaN(x) {
		s := values.FormatFloat(x)
		if f.verb == 'E' || f.verb == 'F' || f.verb == 'G' {
			s = strings.ToUpper(s)
		}
		return s, nil
	}
	precision := f.precision
	if precision < 0 && f.verb != 0 {
		precision = 6
	}
	switch f.verb {
	case 0:
		if precision < 0 {
			return values.FormatFloat(x), nil
		}
		// As g, but with at least one digit after the point.
		s := general(x, max(1, precision), 'e', f.alternate)
		if !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
		return s, nil
	case 'e', 'E', 'f', 'F':
		verb := f.verb
		if verb == 'F' {
			verb = 'f'
		}
		return strconv.FormatFloat(x, verb, precision, 64), nil
	case 'g', 'n':
		return general(x, max(1, precision), 'e', f.alternate), nil
	case 'G':
		return general(x, max(1, precision), 'E', f.alternate), nil
	case '%':
		return strconv.FormatFloat(x*100, 'f', precision, 64) + "%", nil
	}
	return "", values.Errorf("unknown format code '%c' for object of type 'float'", f.verb)
}

// general is the g format of C: precision significant digits, without trailing zeros unless keep is
// set.
func general(x float64, precision int, exponent byte, keep bool) string {
	s := strconv.FormatFloat(x, 'e', precision-1, 64)
	mark := strings.IndexByte(s, 'e')
	power, _ := strconv.Atoi(s[mark+1:])
	if power >= -4 && power < precision {
		s = strconv.FormatFloat(x, 'f', precision-1-power, 64)
		if !keep && strings.IndexByte(s, '.') >= 0 {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	mantissa := s[:mark]
	if !keep && strings.IndexByte(mantissa, '.') >= 0 {
		mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
	}
	return mantissa + string(exponent) + s[mark+1:]
}

// grouped puts separators between the thousands of the integer part.
func grouped(digits string, separator byte) string {
	end := 0
	for end < len(digits) && pytext.IsDecimal(digits[end]) {
		end++
	}
	var out []byte
	for i := range end {
		if i > 0 && (end-i)%3 == 0 {
			out = append(out, separator)
		}
		out = append(out, digits[i])
	}
	return string(out) + digits[end:]
}

// formatMethod is str.format.
func formatMethod(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
	w := values.Writer{Run: run, Limit: run.MaxOutput}
	auto := 0
	if err := formatInto(run, &w, self.Text, a, &auto, 0); err != nil {
		return values.Value{}, err
	}
	return run.NewString(string(w.Buf))
}

func formatInto(run *values.Budget, w *values.Writer, s string, a *values.Args, auto *int,
	depth int) error {
	for s != "" && w.Err == nil {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			w.WriteText(s)
			break
		}
		w.WriteText(s[:i])
		c := s[i]
		s = s[i+1:]
		if s != "" && s[0] == c {
			w.WriteText(string(c))
			s = s[1:]
			continue
		}
		if c == '}' {
			return values.Errorf("single '}' encountered in format string")
		}
		end, open := 0, 1
		for ; end < len(s); end++ {
			if s[end] == '{' {
				open++
			} else if s[end] == '}' {
				if open--; open == 0 {
					break
				}
			}
		}
		if open > 0 {
			return values.Errorf("expected '}' before end of string")
		}
		text, err := formatReplacement(run, s[:end], a, auto, depth)
		if err != nil {
			return err
		}
		w.WriteText(text)
		s = s[end+1:]
	}
	return w.Err
}

// FormatReplacement formats one field: name, !conversion, :spec.
func formatReplacement(run *values.Budget, field string, a *values.Args, auto *int,
	depth int) (string, error) {
	if depth > 1 {
		return "", values.Errorf("max string recursion exceeded")
	}
	spec, conversion := "", ""
	bracket := 0
	for i := 0; i < len(field); i++ {
		switch c := field[i]; {
		case c == '[':
			bracket++
		case c == ']':
			bracket--
		case bracket <= 0 && c == ':':
			field, spec = field[:i], field[i+1:]
		case bracket <= 0 && c == '!':
			rest := field[i+1:]
			field = field[:i]
			conversion, spec, _ = strings.Cut(rest, ":")
			if len(conversion) != 1 {
				return "", values.Errorf("expected one conversion character after '!'")
			}
		}
	}
	v, err := formatValue(run, field, a, auto)
	if err != nil {
		return "", err
	}
	switch conversion {
	case "":
	case "s":
		v, err = run.ToString(v)
	case "r", "a":
		var text string
		text, err = run.ReprOf(v)
		v = values.Str(text)
	default:
		err = values.Errorf("unknown conversion specifier %s", conversion)
	}
	if err != nil {
		return "", err
	}
	if strings.IndexByte(spec, '{') >= 0 {
		w := values.Writer{Run: run, Limit: run.MaxOutput}
		if err := formatInto(run, &w, spec, a, auto, depth+1); err != nil {
			return "", err
		}
		spec = string(w.Buf)
	}
	f, err := parseFieldSpec(spec)
	if err != nil {
		return "", err
	}
	return formatField(run, v, f)
}

// FormatValue finds the value a field names: an argument, then attributes and items of it.
func formatValue(run *values.Budget, field string, a *values.Args,
	auto *int) (values.Value, error) {
	end := strings.IndexAny(field, ".[")
	if end < 0 {
		end = len(field)
	}
	name, rest := field[:end], field[end:]
	var v values.Value
	if name == "" {
		name = strconv.Itoa(*auto)
		*auto++
	}
	if i, err := strconv.Atoi(name); err == nil && i >= 0 {
		if i >= len(a.Pos) {
			return values.Value{},
				values.Errorf("replacement index %d out of range for positional args tuple", i)
		}
		v = a.Pos[i]
	} else {
		found := false
		for _, kw := range a.Keywords {
			if kw.Name == name {
				v, found = kw.Value, true
			}
		}
		if !found {
			return values.Value{}, values.Errorf("format: no argument '%s'", name)
		}
	}
	for rest != "" {
		var err error
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			v, err = Attribute(run, v, rest[1:1+end])
			rest = rest[1+end:]
		} else {
			end := strings.IndexByte(rest, ']')
			if rest[0] != '[' || end < 0 {
				return values.Value{}, values.Errorf("missing ']' in format string")
			}
			key := values.Str(rest[1:end])
			if i, err := strconv.Atoi(key.Text); err == nil && i >= 0 {
				key = values.Int(int64(i))
			}
			v, err = Item(run, v, key)
			rest = rest[end+1:]
		}
		if err != nil {
			return values.Value{}, err
		}
	}
	return v, nil
}
