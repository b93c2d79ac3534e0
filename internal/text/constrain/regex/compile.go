package regex

// compiler turns a pattern as read into an expression.
type compiler struct {
	b    *Builder
	json bool
	one  Ex // any character
	text Ex // any text
	err  error
}

func (c *compiler) refuse(t *term, what string) Ex {
	if c.err == nil {
		c.err = &SyntaxError{Offset: t.at, Unsupported: true, Reason: what + " is not supported"}
	}
	return Empty
}

// span says where in a text a term matches: from its beginning on (anchored) or from anywhere on,
// and to its end or to anywhere (open).
type span struct{ anchored, open bool }

// texts are the texts in which t matches. Continuations are tried first: they cost as much as the
// pattern is long, whatever counts are in it. Where an assertion asks for what is before it, or is
// repeated, that part of the pattern becomes an automaton.
func (c *compiler) texts(t *term, in span) Ex {
	if c.err != nil {
		return Empty
	}
	if !t.has(tWord) && !t.has(tBehind) {
		x := c.continued(t, in)
		if c.err == nil {
			return x
		}
		c.err = nil
	}
	return c.divided(t, in)
}

// continued makes the texts in which t matches of terms and what follows them.
func (c *compiler) continued(t *term, in span) Ex {
	rest := Eps
	if in.open {
		rest = c.text
	}
	switch {
	case in.anchored:
		return c.before(t, rest, true)
	case !t.has(tBegin):
		return c.b.Cat(c.text, c.before(t, rest, false))
	}
	return c.b.Or(c.before(t, rest, true), c.b.Cat(c.b.Plus(c.one), c.before(t, rest, false)))
}

// divided takes from t the alternatives, and the assertions at the beginning of the text, that can
// be asked for apart: each costs states of its own then, and they do not multiply.
func (c *compiler) divided(t *term, in span) Ex {
	for t.kind == tCat && len(t.subs) == 1 {
		t = t.subs[0]
	}
	if !c.b.spend() {
		return Empty
	}
	if t.kind == tAlt {
		xs := make([]Ex, len(t.subs))
		for i, s := range t.subs {
			xs[i] = c.texts(s, in)
		}
		return c.b.Or(xs...)
	}
	if t.kind != tCat || len(t.subs) == 0 {
		return c.automaton(t, in)
	}
	switch first := t.subs[0]; {
	case first.kind == tBegin:
		return c.texts(group(tCat, t.subs[1:]...), span{true, in.open})
	case first.kind == tLook && in.anchored:
		x := c.texts(first.subs[0], span{true, true})
		if first.negated {
			x = c.b.Not(x)
		}
		return c.b.And(c.texts(group(tCat, t.subs[1:]...), in), x)
	}
	return c.automaton(t, in)
}

// plain is the expression of a term without assertions, but for ^ where it never holds.
func (c *compiler) plain(t *term) Ex {
	switch t.kind {
	case tClass:
		if c.json {
			return c.b.JSONRunes(t.ranges...)
		}
		return c.b.Runes(t.ranges...)
	case tRep:
		return c.b.Rep(c.plain(t.subs[0]), t.min, t.max)
	case tBegin: // after something
		return Empty
	}
	xs := make([]Ex, len(t.subs))
	for i, s := range t.subs {
		xs[i] = c.plain(s)
	}
	if t.kind == tAlt {
		return c.b.Or(xs...)
	}
	return c.b.Cat(xs...)
}

// before is t followed by rest, which is everything up to the end of the text. first says that
// nothing is before t.
func (c *compiler) before(t *term, rest Ex, first bool) Ex {
	if t.holds == 0 {
		return c.b.Cat(c.plain(t), rest)
	}
	if c.err != nil || !c.b.spend() { // copies of copies
		return Empty
	}
	switch t.kind {
	case tBegin:
		if first {
			return rest
		}
		return Empty
	case tEnd:
		if c.b.Nullable(rest) {
			return Eps
		}
		return Empty
	case tLook:
		x := c.before(t.subs[0], c.text, first)
		if t.negated {
			x = c.b.Not(x)
		}
		return c.b.And(rest, x)
	case tAlt:
		xs := make([]Ex, len(t.subs))
		for i, s := range t.subs {
			xs[i] = c.before(s, rest, first)
		}
		return c.b.Or(xs...)
	case tRep:
		return c.repeat(t, rest, first)
	}
	return c.sequence(t.subs, rest, first)
}

func (c *compiler) sequence(ts []*term, rest Ex, first bool) Ex {
	// What follows the last ^ does not care about what is before it.
	from := 0
	if first {
		for i, t := range ts {
			if t.has(tBegin) {
				from = i
			}
		}
	}
	for i := len(ts) - 1; i > from; i-- {
		rest = c.before(ts[i], rest, false)
	}
	if len(ts) == 0 {
		return rest
	}
	return c.leading(ts[:from+1], rest, first)
}

// leading is a sequence whose last term may have a ^, at the beginning of the text or not.
func (c *compiler) leading(ts []*term, rest Ex, first bool) Ex {
	t := ts[0]
	if len(ts) == 1 {
		return c.before(t, rest, first)
	}
	switch {
	case t.kind >= tBegin:
		return c.before(t, c.leading(ts[1:], rest, first), first)
	case t.holds != 0:
		return c.refuse(ts[len(ts)-1], "^ after a group with an assertion")
	}
	x := c.plain(t)
	if !first || !c.b.Nullable(x) {
		return c.b.Cat(x, c.leading(ts[1:], rest, false))
	}
	return c.b.Or(c.leading(ts[1:], rest, true),
		c.b.Cat(c.b.Minus(x, Eps), c.leading(ts[1:], rest, false)))
}

// maxCopies bounds how often a repeated group with an assertion is written out.
const maxCopies = 16

func (c *compiler) repeat(t *term, rest Ex, first bool) Ex {
	body := t.subs[0]
	if first && t.max != 1 && body.has(tBegin) && body.passes() {
		return c.refuse(t, "^ that is repeated at the beginning")
	}
	if t.max >= 0 && t.max <= maxCopies {
		x := rest
		for i := t.max; i > 0; i-- {
			y := c.before(body, x, first && i == 1)
			if i > t.min {
				y = c.b.Or(y, rest)
			}
			x = y
		}
		return x
	}
	if body.holds == 1<<tBegin {
		more := c.b.Cat(c.b.Rep(c.plain(body), max(t.min-1, 0), max(t.max-1, Inf)), rest)
		x := c.before(body, more, first)
		if t.min == 0 {
			x = c.b.Or(x, rest)
		}
		return x
	}
	for body.kind == tCat && len(body.subs) == 1 {
		body = body.subs[0]
	}
	// ((?!B)x)* up to the end of the text: no rest of it, of one x or more, begins with B.
	if rest == Eps && body.kind == tCat && len(body.subs) == 2 {
		look, one := body.subs[0], body.subs[1]
		for one.kind == tCat && len(one.subs) == 1 {
			one = one.subs[0]
		}
		if look.kind == tLook && one.kind == tClass && !look.has(tBegin) {
			x, bad := c.plain(one), c.before(look.subs[0], c.text, false)
			if !look.negated {
				bad = c.b.Not(bad)
			}
			return c.b.Minus(c.b.Rep(x, t.min, t.max),
				c.b.Cat(c.b.Star(x), c.b.And(c.b.Plus(x), bad)))
		}
	}
	return c.refuse(t, "an assertion in a repetition")
}
