package chattemplate

// frame holds the variables of one scope while it runs.
type frame struct {
	vars   []Value
	parent *frame
}

// state is one rendering.
type state struct {
	Budget
	vars   *Map
	frame  *frame
	out    []byte
	stack  []Value // arguments of the calls under way
	macros int     // macro calls under way
}

// renderTemplate runs the body of a template, whose outermost scope has so many slots, and returns what it wrote.
// The error, if any, is an *Error.
func renderTemplate(body []stmt, slots int, vars *Map, run Budget) (string, error) {
	st := &state{
		Budget: run,
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
	if len(st.out)+len(s) > st.MaxOutput {
		return Errorf("template output is larger than %d bytes", st.MaxOutput)
	}
	st.out = append(st.out, s...)
	return st.Charge(len(s))
}

// newFrame makes the variables of a scope that runs inside parent.
func (st *state) newFrame(slots int, parent *frame) (*frame, error) {
	return &frame{vars: make([]Value, slots), parent: parent}, st.ChargeValues(slots + 1)
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
	return st.NewString(text)
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
		return s.Control, nil
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
	return controlNext, Errorf("unknown statement")
}

func (st *state) execData(s *dataStmt) (control, error) { return controlNext, st.write(s.Text) }

func (st *state) execOutput(s *outputStmt) (control, error) {
	if sum, ok := s.X.(*addExpr); ok {
		if err := st.printSum(sum); err != nil {
			return controlNext, AtLine(err, s.Line)
		}
		return controlNext, nil
	}
	v, err := st.eval(s.X)
	if err == nil {
		err = st.print(v)
	}
	if err != nil {
		return controlNext, AtLine(err, s.Line)
	}
	return controlNext, nil
}

// print writes str(v).
func (st *state) print(v Value) error {
	if v.Kind == KindString {
		return st.write(v.Text)
	}
	w := Writer{Run: &st.Budget, Buf: st.out, Limit: st.MaxOutput}
	w.WriteValue(v)
	st.out = w.Buf
	return w.Err
}

func (st *state) execIf(s *ifStmt) (control, error) {
	for i := range s.Branches {
		b := &s.Branches[i]
		v, err := st.eval(b.Cond)
		if err != nil {
			return controlNext, AtLine(err, b.Line)
		}
		if v.Truth() {
			return st.runBody(b.Body)
		}
	}
	return st.runBody(s.Otherwise)
}

func (st *state) execSet(s *setStmt) (control, error) {
	v, err := st.eval(s.X)
	if err == nil {
		err = st.assign(&s.Target, v, st.frame)
	}
	if err != nil {
		return controlNext, AtLine(err, s.Line)
	}
	return controlNext, nil
}

// assign binds target in frame f.
func (st *state) assign(t *target, v Value, f *frame) error {
	if t.Tuple != nil {
		items, err := st.Iterate(v)
		if err != nil {
			return err
		}
		if len(items) < len(t.Tuple) {
			return Errorf("not enough values to unpack (expected %d, got %d)", len(t.Tuple), len(items))
		}
		if len(items) > len(t.Tuple) {
			return Errorf("too many values to unpack (expected %d)", len(t.Tuple))
		}
		for i := range t.Tuple {
			if err := st.assign(&t.Tuple[i], items[i], f); err != nil {
				return err
			}
		}
		return st.Tick()
	}
	if t.Space == nil {
		f.vars[t.Slot] = v
		return st.Tick()
	}
	space, err := st.eval(t.Space)
	if err != nil {
		return err
	}
	if space.Kind != KindNamespace {
		return Errorf("cannot assign attribute on non-namespace object")
	}
	if err := st.ChargeValues(1); err != nil {
		return err
	}
	return space.Mapping().Put(Str(t.Attr), v)
}

func (st *state) execSetBlock(s *setBlockStmt) (control, error) {
	v, err := st.capture(func() error {
		_, err := st.scoped(s.Slots, s.Body)
		return err
	})
	if err == nil && s.Outer != nil {
		v, err = st.filterBlock(s.Filter, s.Outer, v)
	}
	if err == nil {
		err = st.assign(&s.Target, v, st.frame)
	}
	return controlNext, AtLine(err, s.Line)
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
	v, err := st.filterChain(inner, f.X)
	if err != nil {
		return Value{}, err
	}
	return st.applyFilter(f, v)
}

func (st *state) execFilter(s *filterStmt) (control, error) {
	v, err := st.capture(func() error {
		_, err := st.scoped(s.Slots, s.Body)
		return err
	})
	if err == nil {
		v, err = st.filterBlock(s.Filter, s.Outer, v)
	}
	if err == nil {
		err = st.print(v)
	}
	return controlNext, AtLine(err, s.Line)
}

func (st *state) execWith(s *withStmt) (control, error) {
	inner, err := st.newFrame(s.Slots, st.frame)
	if err != nil {
		return controlNext, AtLine(err, s.Line)
	}
	for i := range s.Targets {
		v, err := st.eval(s.Values[i])
		if err == nil {
			err = st.assign(&s.Targets[i], v, inner)
		}
		if err != nil {
			return controlNext, AtLine(err, s.Line)
		}
	}
	outer := st.frame
	st.frame = inner
	c, err := st.runBody(s.Body)
	st.frame = outer
	return c, err
}

func (st *state) execScope(s *scopeStmt) (control, error) { return st.scoped(s.Slots, s.Body) }

func (st *state) execMacro(s *macroStmt) (control, error) {
	if err := st.ChargeValues(2); err != nil {
		return controlNext, AtLine(err, s.Def.Line)
	}
	st.frame.vars[s.Slot] = macroValue(s.Def, st.frame)
	return controlNext, nil
}

func (st *state) execCall(s *callStmt) (control, error) {
	caller := macroValue(s.Def, st.frame)
	v, err := st.callWith(s.Call, &caller)
	if err == nil {
		err = st.print(v)
	}
	return controlNext, AtLine(err, s.Line)
}
