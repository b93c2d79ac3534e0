package lexer

import (
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// unescape decodes the escapes of a string literal as Python does; an unknown escape keeps its
// backslash. A lone surrogate, which UTF-8 cannot hold, becomes U+FFFD.
func unescape(s string, line int) (string, error) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, nil
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		i++
		if i == len(s) {
			return "", values.ErrorAt(line, "string ends in a backslash")
		}
		switch c := s[i]; c {
		case '\n':
		case '\\', '\'', '"':
			out = append(out, c)
		case 'a':
			out = append(out, '\a')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'v':
			out = append(out, '\v')
		case 'x', 'u', 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+n >= len(s) {
				return "", values.ErrorAt(line, "truncated \\%c escape in string", c)
			}
			code, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			if err != nil || code > utf8.MaxRune {
				return "", values.ErrorAt(line, "invalid \\%c escape in string", c)
			}
			out = utf8.AppendRune(out, rune(code))
			i += n
		case 'N':
			return "", values.ErrorAt(line, "\\N escapes are not supported")
		case '0', '1', '2', '3', '4', '5', '6', '7':
			code, n := 0, 0
			for n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7' {
				code = code*8 + int(s[i+n]-'0')
				n++
			}
			out = utf8.AppendRune(out, rune(code))
			i += n - 1
		default:
			out = append(out, '\\', c)
		}
	}
	return string(out), nil
}

// ParseInteger reads an integer literal with its underscores removed; it may have a 0x, 0o or 0b
// prefix.
func ParseInteger(text string) (values.Value, bool) {
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return values.Int(n), true
	}
	base := 0
	if strings.Trim(text, "0123456789") == "" {
		base = 10
	}
	if len(text) > values.MaxDigits {
		return values.Value{}, false
	}
	n, ok := new(big.Int).SetString(text, base)
	if !ok {
		return values.Value{}, false
	}
	return values.Big(n), true
}
