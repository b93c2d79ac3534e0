package rules

import (
	"strings"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// maxDepth bounds the nesting of groups, and so the recursion.
const maxDepth = 1000

// Cursor is how far the text of a grammar has been read.
type Cursor struct {
	Src string
	At  int
	// Depth is how many groups and counts are open.
	Depth int
	// Err is the first error, after which nothing is left to read.
	Err error
}

// Error ends the reading with an error at the cursor.
func (c *Cursor) Error(code, format string, args ...any) {
	if c.Err == nil {
		c.Err = Source(c.Src).Fail(code, c.At, format, args...)
	}
	c.At = len(c.Src)
}

// Fail is Error for what is no grammar.
func (c *Cursor) Fail(format string, args ...any) { c.Error(cfg.GrammarSyntax, format, args...) }

// Refuse is Error for what is not supported.
func (c *Cursor) Refuse(what string) {
	c.Error(cfg.GrammarUnsupported, "%s is not supported", what)
}

// Peek tells whether a text follows.
func (c *Cursor) Peek(s string) bool { return strings.HasPrefix(c.Src[c.At:], s) }

// Take goes over a text, if it follows.
func (c *Cursor) Take(s string) bool {
	if c.Peek(s) {
		c.At += len(s)
		return true
	}
	return false
}

// Line goes to the end of the line.
func (c *Cursor) Line() {
	if i := strings.IndexByte(c.Src[c.At:], '\n'); i >= 0 {
		c.At += i
	} else {
		c.At = len(c.Src)
	}
}

// Nest opens one more of what may be nested.
func (c *Cursor) Nest(what string) {
	if c.Depth++; c.Depth > maxDepth {
		c.Fail("more than %d nested %s", maxDepth, what)
	}
}

// Number reads digits, if there are some.
func (c *Cursor) Number() (n int, ok bool) {
	for c.At < len(c.Src) && c.Src[c.At] >= '0' && c.Src[c.At] <= '9' {
		n, ok = min(n*10+int(c.Src[c.At]-'0'), 1<<31-1), true
		c.At++
	}
	return n, ok
}

// Count reads m}, m,}, ,n} or m,n} after a brace; blank goes over what may be between.
func (c *Cursor) Count(blank func()) (least, most int) {
	blank()
	least, some := c.Number()
	most, bounded := least, false
	if blank(); c.Take(",") {
		blank()
		if most, bounded = c.Number(); !bounded {
			most = regex.Inf
		}
	}
	if blank(); !some && !bounded || !c.Take("}") {
		c.Fail("a count, {m}, {m,}, {,n} or {m,n}, is expected")
	}
	return least, most
}

// Repeat is an expression a number of times.
func (c *Cursor) Repeat(x *Expr, least, most int) *Expr {
	if most >= 0 && most < least {
		c.Fail("a count of at least %d and at most %d", least, most)
	}
	c.Nest("counts")
	return &Expr{Kind: Rep, At: x.At, Subs: []*Expr{x}, Min: least, Max: most}
}

// Of is an expression of several, or the one that there is.
func Of(kind Kind, at int, subs []*Expr) *Expr {
	if len(subs) == 1 {
		return subs[0]
	}
	return &Expr{Kind: kind, At: at, Subs: subs}
}
