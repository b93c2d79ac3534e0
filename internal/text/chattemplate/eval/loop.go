package eval

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/ast"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// loopState drives a for loop and is its loop variable.
type loopState struct {
	st       *state
	stmt     *ast.For
	test     *frame // where the loop's test is evaluated; nil if it has none
	items    []values.Value
	pos      int // of the next item of items
	index0   int
	length   int // of the loop, -1 until it is known
	before   values.Value
	current  values.Value
	after    values.Value // the next item if peeked
	peeked   bool
	changing []values.Value // what loop.changed was last given
	changed  bool           // loop.changed was called before
}

// fetch takes the next item that passes the test.
func (l *loopState) fetch(st *state) (values.Value, bool, error) {
	for l.pos < len(l.items) {
		v := l.items[l.pos]
		l.pos++
		if l.test == nil {
			return v, true, nil
		}
		outer := st.frame
		clear(l.test.vars)
		st.frame = l.test
		err := st.assign(&l.stmt.TestTarget, v, l.test)
		var pass values.Value
		if err == nil {
			pass, err = st.eval(l.stmt.Test)
		}
		st.frame = outer
		if err != nil {
			return values.Value{}, false, err
		}
		if pass.Truth() {
			return v, true, nil
		}
	}
	return values.Value{}, false, nil
}

// peek looks at the next item without taking it.
func (l *loopState) peek(st *state) (values.Value, bool, error) {
	if l.peeked {
		return l.after, true, nil
	}
	v, ok, err := l.fetch(st)
	if ok {
		l.after, l.peeked = v, true
	}
	return v, ok, err
}

// advance takes the next item.
func (l *loopState) advance(st *state) (bool, error) {
	v, ok, err := l.peek(st)
	if !ok {
		return false, err
	}
	l.peeked = false
	l.index0++
	l.before, l.current = l.current, v
	return true, nil
}

// len is loop.length. With a test it has to run the test on all items that are left.
func (l *loopState) len(st *state) (int, error) {
	if l.length >= 0 {
		return l.length, nil
	}
	var rest []values.Value
	for {
		v, ok, err := l.fetch(st)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		rest = append(rest, v)
	}
	l.items, l.pos, l.test = rest, 0, nil
	l.length = l.index0 + 1 + len(rest)
	if l.peeked {
		l.length++
	}
	return l.length, st.ChargeValues(len(rest))
}

func (st *state) execFor(s *ast.For) (ast.Control, error) {
	over, err := st.eval(s.Iter)
	if err != nil {
		return ast.Next, values.AtLine(err, s.Line)
	}
	items, err := st.Iterate(over)
	if err != nil {
		return ast.Next, values.AtLine(err, s.Line)
	}
	outer := st.frame
	l := &loopState{st: st, stmt: s, items: items, index0: -1, length: len(items)}
	if s.Test != nil {
		l.length = -1
		if l.test, err = st.newFrame(s.TestSlots, outer); err != nil {
			return ast.Next, values.AtLine(err, s.Line)
		}
	}
	inner, err := st.newFrame(s.Slots, outer)
	if err != nil {
		return ast.Next, values.AtLine(err, s.Line)
	}
	defer func() { st.frame = outer }()
	// As in jinja2, the else body runs unless an iteration reached the end of the body.
	finished := false
	for {
		st.frame = outer
		ok, err := l.advance(st)
		if err != nil {
			return ast.Next, values.AtLine(err, s.Line)
		}
		if !ok {
			break
		}
		clear(inner.vars)
		if err := st.assign(&s.Target, l.current, inner); err != nil {
			return ast.Next, values.AtLine(err, s.Line)
		}
		if s.LoopSlot >= 0 {
			inner.vars[s.LoopSlot] = values.Value{Kind: values.KindLoop, Ref: l}
		}
		st.frame = inner
		c, err := st.runBody(s.Body)
		if err != nil {
			return ast.Next, err
		}
		if c == ast.Break {
			break
		}
		finished = finished || c == ast.Next
	}
	st.frame = outer
	if finished || s.Otherwise == nil {
		return ast.Next, nil
	}
	return st.scoped(s.ElseSlots, s.Otherwise)
}

// Attribute is loop.name.
func (l *loopState) Attribute(name string) (values.Value, error) {
	switch name {
	case "index":
		return values.Int(int64(l.index0 + 1)), nil
	case "index0":
		return values.Int(int64(l.index0)), nil
	case "first":
		return values.Bool(l.index0 == 0), nil
	case "last":
		_, more, err := l.peek(l.st)
		return values.Bool(!more), err
	case "length", "revindex", "revindex0":
		n, err := l.len(l.st)
		if name == "revindex" {
			n -= l.index0
		} else if name == "revindex0" {
			n -= l.index0 + 1
		}
		return values.Int(int64(n)), err
	case "previtem":
		if l.index0 == 0 {
			return values.Value{Kind: values.KindUndefined, Num: values.UndefMessage,
				Text: "there is no previous item"}, nil
		}
		return l.before, nil
	case "nextitem":
		v, more, err := l.peek(l.st)
		if !more {
			return values.Value{Kind: values.KindUndefined, Num: values.UndefMessage,
				Text: "there is no next item"}, err
		}
		return v, err
	case "depth":
		return values.Int(1), nil
	case "depth0":
		return values.Int(0), nil
	case "cycle":
		return values.NewFunction(name,
			func(_ *values.Budget, a *values.Args) (values.Value, error) {
				if err := a.NoKeywords(); err != nil {
					return values.Value{}, err
				}
				if len(a.Pos) == 0 {
					return values.Value{}, values.Errorf("no items for cycling given")
				}
				return a.Pos[l.index0%len(a.Pos)], nil
			}), nil
	case "changed":
		return values.NewFunction(name, l.changedCall), nil
	}
	return values.Value{}, values.ErrNoAttribute
}

func (l *loopState) changedCall(run *values.Budget, a *values.Args) (values.Value, error) {
	if err := a.NoKeywords(); err != nil {
		return values.Value{}, err
	}
	if l.changed && len(a.Pos) == len(l.changing) {
		same := true
		for i := range a.Pos {
			eq, err := run.Equal(a.Pos[i], l.changing[i])
			if err != nil {
				return values.Value{}, err
			}
			same = same && eq
		}
		if same {
			return values.Bool(false), nil
		}
	}
	l.changed = true
	l.changing = append([]values.Value(nil), a.Pos...)
	return values.Bool(true), run.ChargeValues(len(a.Pos))
}
