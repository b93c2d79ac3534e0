package chattemplate

// loopState drives a for loop and is its loop variable.
type loopState struct {
	st       *state
	stmt     *forStmt
	test     *frame // where the loop's test is evaluated; nil if it has none
	items    []Value
	pos      int // of the next item of items
	index0   int
	length   int // of the loop, -1 until it is known
	before   Value
	current  Value
	after    Value // the next item if peeked
	peeked   bool
	changing []Value // what loop.changed was last given
	changed  bool    // loop.changed was called before
}

// fetch takes the next item that passes the test.
func (l *loopState) fetch(st *state) (Value, bool, error) {
	for l.pos < len(l.items) {
		v := l.items[l.pos]
		l.pos++
		if l.test == nil {
			return v, true, nil
		}
		outer := st.frame
		clear(l.test.vars)
		st.frame = l.test
		err := st.assign(&l.stmt.testTarget, v, l.test)
		var pass Value
		if err == nil {
			pass, err = st.eval(l.stmt.test)
		}
		st.frame = outer
		if err != nil {
			return Value{}, false, err
		}
		if pass.truth() {
			return v, true, nil
		}
	}
	return Value{}, false, nil
}

// peek looks at the next item without taking it.
func (l *loopState) peek(st *state) (Value, bool, error) {
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
	var rest []Value
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
	return l.length, st.chargeValues(len(rest))
}

func (st *state) execFor(s *forStmt) (control, error) {
	over, err := st.eval(s.iter)
	if err != nil {
		return controlNext, atLine(err, s.line)
	}
	items, err := st.iterate(over)
	if err != nil {
		return controlNext, atLine(err, s.line)
	}
	outer := st.frame
	l := &loopState{st: st, stmt: s, items: items, index0: -1, length: len(items)}
	if s.test != nil {
		l.length = -1
		if l.test, err = st.newFrame(s.testSlots, outer); err != nil {
			return controlNext, atLine(err, s.line)
		}
	}
	inner, err := st.newFrame(s.slots, outer)
	if err != nil {
		return controlNext, atLine(err, s.line)
	}
	defer func() { st.frame = outer }()
	// As in jinja2, the else body runs unless an iteration reached the end of the body.
	finished := false
	for {
		st.frame = outer
		ok, err := l.advance(st)
		if err != nil {
			return controlNext, atLine(err, s.line)
		}
		if !ok {
			break
		}
		clear(inner.vars)
		if err := st.assign(&s.target, l.current, inner); err != nil {
			return controlNext, atLine(err, s.line)
		}
		if s.loopSlot >= 0 {
			inner.vars[s.loopSlot] = Value{kind: kindLoop, ref: l}
		}
		st.frame = inner
		c, err := st.runBody(s.body)
		if err != nil {
			return controlNext, err
		}
		if c == controlBreak {
			break
		}
		finished = finished || c == controlNext
	}
	st.frame = outer
	if finished || s.otherwise == nil {
		return controlNext, nil
	}
	return st.scoped(s.elseSlots, s.otherwise)
}

// attribute is loop.name.
func (l *loopState) attribute(name string) (Value, error) {
	switch name {
	case "index":
		return Int(int64(l.index0 + 1)), nil
	case "index0":
		return Int(int64(l.index0)), nil
	case "first":
		return Bool(l.index0 == 0), nil
	case "last":
		_, more, err := l.peek(l.st)
		return Bool(!more), err
	case "length", "revindex", "revindex0":
		n, err := l.len(l.st)
		if name == "revindex" {
			n -= l.index0
		} else if name == "revindex0" {
			n -= l.index0 + 1
		}
		return Int(int64(n)), err
	case "previtem":
		if l.index0 == 0 {
			return Value{kind: kindUndefined, num: undefMessage, str: "there is no previous item"}, nil
		}
		return l.before, nil
	case "nextitem":
		v, more, err := l.peek(l.st)
		if !more {
			return Value{kind: kindUndefined, num: undefMessage, str: "there is no next item"}, err
		}
		return v, err
	case "depth":
		return Int(1), nil
	case "depth0":
		return Int(0), nil
	case "cycle":
		return funcValue(name, func(_ *budget, a *callArgs) (Value, error) {
			if err := a.noKeywords(); err != nil {
				return Value{}, err
			}
			if len(a.pos) == 0 {
				return Value{}, errorf("no items for cycling given")
			}
			return a.pos[l.index0%len(a.pos)], nil
		}), nil
	case "changed":
		return funcValue(name, l.changedCall), nil
	}
	return Value{}, errNoAttribute
}

func (l *loopState) changedCall(run *budget, a *callArgs) (Value, error) {
	if err := a.noKeywords(); err != nil {
		return Value{}, err
	}
	if l.changed && len(a.pos) == len(l.changing) {
		same := true
		for i := range a.pos {
			eq, err := run.equal(a.pos[i], l.changing[i])
			if err != nil {
				return Value{}, err
			}
			same = same && eq
		}
		if same {
			return Bool(false), nil
		}
	}
	l.changed = true
	l.changing = append([]Value(nil), a.pos...)
	return Bool(true), run.chargeValues(len(a.pos))
}
