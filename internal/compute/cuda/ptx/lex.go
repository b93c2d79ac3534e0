package ptx

import (
	"fmt"
	"strings"
)

// kind is what sort of token a token is.
type kind byte

const (
	endToken    kind = iota
	wordToken        // a name, an opcode with its modifiers, a directive, a number
	stringToken      // between quotes
	punctToken       // one character
	bodyToken        // between the braces of an entry, which are not part of it
)

// token is a piece of PTX text with the line it stands in, from 1.
type token struct {
	kind kind
	text string
	line int
}

// lexer cuts PTX text into tokens; comments are left out.
type lexer struct {
	src  string
	at   int
	line int
	// whole has the bodies of entries be tokens; entry says that one of them is near.
	whole, entry bool
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' ||
		c == '_' || c == '$' || c == '%' || c == '.'
}

// next is the token that follows, an endToken after the last.
func (l *lexer) next() (token, error) {
	if err := l.skipSpace(); err != nil {
		return token{}, err
	}
	if l.at >= len(l.src) {
		return token{kind: endToken, line: l.line}, nil
	}
	start, line := l.at, l.line
	c := l.src[l.at]
	switch {
	case isWord(c):
		l.word()
		t := token{wordToken, l.src[start:l.at], line}
		l.entry = l.entry || l.whole && t.text == ".entry"
		return t, nil
	case c == '"':
		end := strings.IndexAny(l.src[start+1:], "\"\n")
		if end < 0 || l.src[start+1+end] == '\n' {
			return token{}, fmt.Errorf("line %d: string without an end", line)
		}
		l.at = start + end + 2
		return token{stringToken, l.src[start+1 : l.at-1], line}, nil
	}
	l.at++
	if l.entry && c == '{' {
		l.entry = false
		if body, ok := l.body(); ok {
			return token{bodyToken, body, line}, nil
		}
	}
	if c == ';' {
		l.entry = false
	}
	return token{punctToken, l.src[start:l.at], line}, nil
}

// body moves past the text up to the brace that ends a body, and that brace; it stays where it is
// if there is none.
func (l *lexer) body() (string, bool) {
	for i, depth := l.at, 1; ; i++ {
		n := strings.IndexAny(l.src[i:], "{}\"/")
		if n < 0 {
			return "", false
		}
		i += n
		end := "" // of what has braces that do not count: a string or a comment
		switch rest := l.src[i:]; {
		case rest[0] == '{':
			depth++
		case rest[0] == '}':
			if depth--; depth == 0 {
				text := l.src[l.at:i]
				l.line += strings.Count(text, "\n")
				l.at = i + 1
				return text, true
			}
		case rest[0] == '"':
			end = "\""
		case strings.HasPrefix(rest, "//"):
			end = "\n"
		case strings.HasPrefix(rest, "/*"):
			end = "*/"
		}
		if end == "" {
			continue
		}
		if n = strings.Index(l.src[i+1:], end); n < 0 {
			return "", false
		}
		i += n + len(end)
	}
}

// word moves past a word; "::" is part of one (shared::cta), a single colon ends a label.
func (l *lexer) word() {
	for l.at < len(l.src) {
		switch {
		case isWord(l.src[l.at]):
			l.at++
		case strings.HasPrefix(l.src[l.at:], "::"):
			l.at += 2
		default:
			return
		}
	}
}

func (l *lexer) skipSpace() error {
	for l.at < len(l.src) {
		rest := l.src[l.at:]
		switch {
		case rest[0] == '\n':
			l.line++
			l.at++
		case rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r' || rest[0] == 0:
			l.at++
		case strings.HasPrefix(rest, "//"):
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest)
			}
			l.at += end
		case strings.HasPrefix(rest, "/*"):
			end := strings.Index(rest, "*/")
			if end < 0 {
				return fmt.Errorf("line %d: comment without an end", l.line)
			}
			l.line += strings.Count(rest[:end], "\n")
			l.at += end + 2
		default:
			return nil
		}
	}
	return nil
}

// lex is all tokens of a text that begins in a line, the last an endToken; whole has the bodies of
// entries be tokens.
func lex(src string, line int, whole bool) ([]token, error) {
	l := &lexer{src: src, line: line, whole: whole}
	var all []token
	for {
		t, err := l.next()
		if err != nil {
			return nil, err
		}
		all = append(all, t)
		if t.kind == endToken {
			return all, nil
		}
	}
}
