package chattemplate

// frame holds the variables of one scope while it runs.
type frame struct {
	vars   []Value
	parent *frame
}

// state is one rendering.
type state struct {
	budget
	vars   *Map
	frame  *frame
	out    []byte
	stack  []Value // arguments of the calls under way
	macros int     // macro calls under way
}

// renderTemplate runs the body of a template, whose outermost scope has so many slots, and returns what it wrote.
// The error, if any, is an *Error.
func renderTemplate(body []stmt, slots int, vars *Map, run budget) (string, error) {
	st := &state{
		budget: run,
		vars:   vars,
		frame:  &frame{vars: make([]Value, slots)},
		out:    make([]byte, 0, 1024),
	}
	if _, err := st.runBody(body); err != nil {
		return "", err
	}
	return string(st.out), nil
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

func (st *state) runBody(body []stmt) (control, error) {
	for _, s := range body {
		c, err := st.exec(s)
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
	c, err := st.runBody(body)
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

// exec runs a statement.
func (st *state) exec(s stmt) (control, error) {
	switch s := s.(type) {
	case *dataStmt:
		return st.execData(s)
	case *outputStmt:
		return st.execOutput(s)
	case *ifStmt:
		return st.execIf(s)
	case *forStmt:
		return st.execFor(s)
	case *loopControlStmt:
		return s.control, nil
	case *setStmt:
		return st.execSet(s)
	case *setBlockStmt:
		return st.execSetBlock(s)
	case *withStmt:
		return st.execWith(s)
	case *macroStmt:
		return st.execMacro(s)
	case *callStmt:
		return st.execCall(s)
	case *filterStmt:
		return st.execFilter(s)
	case *scopeStmt:
		return st.execScope(s)
	}
	return controlNext, errorf("unknown statement")
}

func (st *state) execData(s *dataStmt) (control, error) { return controlNext, st.write(s.text) }

func (st *state) execOutput(s *outputStmt) (control, error) {
	if sum, ok := s.x.(*addExpr); ok {
		if err := st.printSum(sum); err != nil {
			return controlNext, atLine(err, s.line)
		}
		return controlNext, nil
	}
	v, err := st.eval(s.x)
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
	w := writer{run: &st.budget, buf: st.out, limit: st.maxOutput}
	w.str(v)
	st.out = w.buf
	return w.err
}

func (st *state) execIf(s *ifStmt) (control, error) {
	for i := range s.branches {
		b := &s.branches[i]
		v, err := st.eval(b.cond)
		if err != nil {
			return controlNext, atLine(err, b.line)
		}
		if v.truth() {
			return st.runBody(b.body)
		}
	}
	return st.runBody(s.otherwise)
}

func (st *state) execSet(s *setStmt) (control, error) {
	v, err := st.eval(s.x)
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
	space, err := st.eval(t.space)
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

func (st *state) execSetBlock(s *setBlockStmt) (control, error) {
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
		return st.applyFilter(f, st.stack[len(st.stack)-1])
	}
	v, err := st.filterChain(inner, f.x)
	if err != nil {
		return Value{}, err
	}
	return st.applyFilter(f, v)
}

func (st *state) execFilter(s *filterStmt) (control, error) {
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

func (st *state) execWith(s *withStmt) (control, error) {
	inner, err := st.newFrame(s.slots, st.frame)
	if err != nil {
		return controlNext, atLine(err, s.line)
	}
	for i := range s.targets {
		v, err := st.eval(s.values[i])
		if err == nil {
			err = st.assign(&s.targets[i], v, inner)
		}
		if err != nil {
			return controlNext, atLine(err, s.line)
		}
	}
	outer := st.frame
	st.frame = inner
	c, err := st.runBody(s.body)
	st.frame = outer
	return c, err
}

func (st *state) execScope(s *scopeStmt) (control, error) { return st.scoped(s.slots, s.body) }

func (st *state) execMacro(s *macroStmt) (control, error) {
	if err := st.chargeValues(2); err != nil {
		return controlNext, atLine(err, s.def.line)
	}
	st.frame.vars[s.slot] = macroValue(s.def, st.frame)
	return controlNext, nil
}

func (st *state) execCall(s *callStmt) (control, error) {
	caller := macroValue(s.def, st.frame)
	v, err := st.callWith(s.call, &caller)
	if err == nil {
		err = st.print(v)
	}
	return controlNext, atLine(err, s.line)
}
