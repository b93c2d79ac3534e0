package chattemplate

import "time"

// frame holds the variables of one scope while it runs.
type frame struct {
	vars   []Value
	parent *frame
}

// state is one rendering.
type state struct {
	vars      *Map
	now       func() time.Time
	frame     *frame
	out       []byte
	stack     []Value // arguments of the calls under way
	maxOutput int
	steps     int
	memory    int
	macros    int // macro calls under way
}

// tick counts one step.
func (st *state) tick() error {
	st.steps--
	if st.steps < 0 {
		return errorf("template takes too many steps")
	}
	return nil
}

// work counts the steps of handling n bytes of text.
func (st *state) work(n int) error {
	st.steps -= n / bytesPerStep
	return st.tick()
}

// charge counts n bytes of memory the template asks for, before they are allocated.
func (st *state) charge(n int) error {
	st.memory -= n
	if n < 0 || st.memory < 0 {
		return errorf("template uses too much memory")
	}
	return st.work(n)
}

// chargeValues counts a new list of n elements.
func (st *state) chargeValues(n int) error {
	if n > st.memory {
		return errorf("template uses too much memory")
	}
	return st.charge(n * valueSize)
}

// newString charges for a text that is no larger than a small multiple of what it was made from.
func (st *state) newString(s string) (Value, error) {
	if err := st.charge(len(s)); err != nil {
		return Value{}, err
	}
	return strValue(s), nil
}

func (st *state) newList(items []Value) (Value, error) {
	if err := st.chargeValues(len(items)); err != nil {
		return Value{}, err
	}
	return listValue(items), nil
}

// write appends to the output.
func (st *state) write(s string) error {
	if len(st.out)+len(s) > st.maxOutput {
		return errorf("template output is larger than %d bytes", st.maxOutput)
	}
	st.out = append(st.out, s...)
	return st.charge(len(s))
}

// newFrame makes the variables of a scope that runs inside parent.
func (st *state) newFrame(slots int, parent *frame) (*frame, error) {
	return &frame{vars: make([]Value, slots), parent: parent}, st.chargeValues(slots + 1)
}

func (st *state) run(body []stmt) (control, error) {
	for _, s := range body {
		c, err := s.exec(st)
		if err != nil || c != controlNext {
			return c, err
		}
	}
	return controlNext, nil
}

// scoped runs a body in a new scope.
func (st *state) scoped(slots int, body []stmt) (control, error) {
	outer := st.frame
	inner, err := st.newFrame(slots, outer)
	if err != nil {
		return controlNext, err
	}
	st.frame = inner
	c, err := st.run(body)
	st.frame = outer
	return c, err
}

// capture runs f and returns what it wrote as a str instead of putting it out.
func (st *state) capture(f func() error) (Value, error) {
	outer := st.out
	st.out = nil
	err := f()
	text := string(st.out)
	st.out = outer
	if err != nil {
		return Value{}, err
	}
	return st.newString(text)
}

func (s *dataStmt) exec(st *state) (control, error) { return controlNext, st.write(s.text) }

func (s *outputStmt) exec(st *state) (control, error) {
	if sum, ok := s.x.(*addExpr); ok {
		if err := sum.print(st); err != nil {
			return controlNext, atLine(err, s.line)
		}
		return controlNext, nil
	}
	v, err := s.x.eval(st)
	if err == nil {
		err = st.print(v)
	}
	if err != nil {
		return controlNext, atLine(err, s.line)
	}
	return controlNext, nil
}

// print writes str(v).
func (st *state) print(v Value) error {
	if v.kind == kindString {
		return st.write(v.str)
	}
	w := writer{st: st, buf: st.out, limit: st.maxOutput}
	w.str(v)
	st.out = w.buf
	return w.err
}

func (s *ifStmt) exec(st *state) (control, error) {
	for i := range s.branches {
		b := &s.branches[i]
		v, err := b.cond.eval(st)
		if err != nil {
			return controlNext, atLine(err, b.line)
		}
		if v.truth() {
			return st.run(b.body)
		}
	}
	return st.run(s.otherwise)
}

func (s *loopControlStmt) exec(*state) (control, error) { return s.control, nil }

func (s *setStmt) exec(st *state) (control, error) {
	v, err := s.x.eval(st)
	if err == nil {
		err = st.assign(&s.target, v, st.frame)
	}
	if err != nil {
		return controlNext, atLine(err, s.line)
	}
	return controlNext, nil
}

// assign binds target in frame f.
func (st *state) assign(t *target, v Value, f *frame) error {
	if t.tuple != nil {
		items, err := st.iterate(v)
		if err != nil {
			return err
		}
		if len(items) < len(t.tuple) {
			return errorf("not enough values to unpack (expected %d, got %d)", len(t.tuple), len(items))
		}
		if len(items) > len(t.tuple) {
			return errorf("too many values to unpack (expected %d)", len(t.tuple))
		}
		for i := range t.tuple {
			if err := st.assign(&t.tuple[i], items[i], f); err != nil {
				return err
			}
		}
		return st.tick()
	}
	if t.space == nil {
		f.vars[t.slot] = v
		return st.tick()
	}
	space, err := t.space.eval(st)
	if err != nil {
		return err
	}
	if space.kind != kindNamespace {
		return errorf("cannot assign attribute on non-namespace object")
	}
	if err := st.chargeValues(1); err != nil {
		return err
	}
	return space.mapping().set(strValue(t.attr), v)
}

func (s *setBlockStmt) exec(st *state) (control, error) {
	v, err := st.capture(func() error {
		_, err := st.scoped(s.slots, s.body)
		return err
	})
	if err == nil && s.outer != nil {
		v, err = st.filterBlock(s.filter, s.outer, v)
	}
	if err == nil {
		err = st.assign(&s.target, v, st.frame)
	}
	return controlNext, atLine(err, s.line)
}

// filterBlock evaluates the chain of filters outer with v as the input of its innermost filter.
func (st *state) filterBlock(inner *filterExpr, outer expr, v Value) (Value, error) {
	depth := len(st.stack)
	st.stack = append(st.stack, v)
	in, err := st.filterChain(inner, outer)
	st.stack = st.stack[:depth]
	return in, err
}

func (st *state) filterChain(inner *filterExpr, x expr) (Value, error) {
	f := x.(*filterExpr)
	if f == inner {
		return f.apply(st, st.stack[len(st.stack)-1])
	}
	v, err := st.filterChain(inner, f.x)
	if err != nil {
		return Value{}, err
	}
	return f.apply(st, v)
}

func (s *filterStmt) exec(st *state) (control, error) {
	v, err := st.capture(func() error {
		_, err := st.scoped(s.slots, s.body)
		return err
	})
	if err == nil {
		v, err = st.filterBlock(s.filter, s.outer, v)
	}
	if err == nil {
		err = st.print(v)
	}
	return controlNext, atLine(err, s.line)
}

func (s *withStmt) exec(st *state) (control, error) {
	inner, err := st.newFrame(s.slots, st.frame)
	if err != nil {
		return controlNext, atLine(err, s.line)
	}
	for i := range s.targets {
		v, err := s.values[i].eval(st)
		if err == nil {
			err = st.assign(&s.targets[i], v, inner)
		}
		if err != nil {
			return controlNext, atLine(err, s.line)
		}
	}
	outer := st.frame
	st.frame = inner
	c, err := st.run(s.body)
	st.frame = outer
	return c, err
}

func (s *scopeStmt) exec(st *state) (control, error) { return st.scoped(s.slots, s.body) }

func (s *macroStmt) exec(st *state) (control, error) {
	if err := st.chargeValues(2); err != nil {
		return controlNext, atLine(err, s.def.line)
	}
	st.frame.vars[s.slot] = Value{kind: kindMacro, ref: &macro{s.def, st.frame}}
	return controlNext, nil
}

func (s *callStmt) exec(st *state) (control, error) {
	caller := Value{kind: kindMacro, ref: &macro{s.def, st.frame}}
	v, err := s.call.evalWith(st, &caller)
	if err == nil {
		err = st.print(v)
	}
	return controlNext, atLine(err, s.line)
}
