package chattemplate

// maxMacroDepth bounds macro calls under way; Python's own limit is near 300.
const maxMacroDepth = 200

type macro struct {
	def   *macroDef
	frame *frame
}

// macroValue is a macro as a value; its name is kept where printing finds it.
func macroValue(def *macroDef, f *frame) Value {
	return Value{kind: kindMacro, str: def.name, ref: &macro{def, f}}
}

// evalArgs evaluates arguments onto the stack, from which the caller removes them after the call.
func (st *state) evalArgs(a *arguments) (callArgs, error) {
	depth := len(st.stack)
	for _, x := range a.positional {
		v, err := st.eval(x)
		if err != nil {
			return callArgs{}, err
		}
		st.stack = append(st.stack, v)
	}
	var kw []namedValue
	for _, k := range a.keywords {
		v, err := st.eval(k.x)
		if err != nil {
			return callArgs{}, err
		}
		kw = append(kw, namedValue{k.name, v})
	}
	if a.star != nil {
		v, err := st.eval(a.star)
		if err != nil {
			return callArgs{}, err
		}
		items, err := st.iterate(v)
		if err == nil {
			err = st.chargeValues(len(items))
		}
		if err != nil {
			return callArgs{}, err
		}
		st.stack = append(st.stack, items...)
	}
	if a.doubleStar != nil {
		v, err := st.eval(a.doubleStar)
		if err != nil {
			return callArgs{}, err
		}
		if v.kind != kindMap {
			return callArgs{}, errorf("argument after ** must be a mapping, not %s", v.typeName())
		}
		if err := st.chargeValues(v.mapping().Len()); err != nil {
			return callArgs{}, err
		}
		given := map[string]bool{}
		for _, k := range kw {
			given[k.name] = true
		}
		for _, e := range v.mapping().entries {
			if e.key.kind != kindString {
				return callArgs{}, errorf("keywords must be strings")
			}
			if given[e.key.str] {
				return callArgs{}, errorf("multiple values for keyword argument '%s'", e.key.str)
			}
			kw = append(kw, namedValue{e.key.str, e.value})
		}
	}
	return callArgs{pos: st.stack[depth:len(st.stack):len(st.stack)], kw: kw}, nil
}

// callWith evaluates a call with the body of a call block, if any, as the keyword argument caller.
func (st *state) callWith(x *callExpr, caller *Value) (Value, error) {
	depth := len(st.stack)
	v, err := st.invoke(x, caller)
	st.stack = st.stack[:depth]
	if err != nil {
		return Value{}, atLine(err, x.line)
	}
	return v, st.tick()
}

func (st *state) invoke(x *callExpr, caller *Value) (Value, error) {
	// A method is called straight away, without a value for it.
	if attr, ok := x.fn.(*attrExpr); ok {
		v, err := st.eval(attr.x)
		if err != nil {
			return Value{}, err
		}
		if m := methodOf(v, attr.name); m != nil {
			args, err := st.callArgs(x, caller)
			if err != nil {
				return Value{}, err
			}
			if err := st.work(v.weight()); err != nil {
				return Value{}, err
			}
			return m(&st.budget, v, &args)
		}
		fn, err := Attribute(&st.budget, v, attr.name)
		if err != nil {
			return Value{}, err
		}
		return st.invokeValue(x, fn, caller)
	}
	fn, err := st.eval(x.fn)
	if err != nil {
		return Value{}, err
	}
	return st.invokeValue(x, fn, caller)
}

func (st *state) invokeValue(x *callExpr, fn Value, caller *Value) (Value, error) {
	args, err := st.callArgs(x, caller)
	if err != nil {
		return Value{}, err
	}
	return st.call(fn, &args)
}

func (st *state) callArgs(x *callExpr, caller *Value) (callArgs, error) {
	args, err := st.evalArgs(&x.args)
	if err == nil && caller != nil {
		args.kw = append(args.kw, namedValue{"caller", *caller})
	}
	return args, err
}

// call calls a value.
func (st *state) call(fn Value, a *callArgs) (Value, error) {
	switch fn.kind {
	case kindFunc:
		return fn.ref.(*function).call(&st.budget, a)
	case kindMacro:
		return st.callMacro(fn.ref.(*macro), a)
	case kindJoiner:
		return fn.ref.(*joiner).call(a)
	case kindUndefined, kindMissing:
		return Value{}, fn.undefinedError()
	case kindLoop:
		return Value{}, errorf("the loop must have the 'recursive' marker to be called recursively")
	}
	return Value{}, errorf("'%s' object is not callable", fn.typeName())
}

func (st *state) callMacro(m *macro, a *callArgs) (Value, error) {
	def := m.def
	if st.macros >= maxMacroDepth {
		return Value{}, errorf("macro '%s' is called too deeply", def.name)
	}
	inner, err := st.newFrame(def.slots, m.frame)
	if err != nil {
		return Value{}, err
	}
	if err := st.bindMacro(def, inner, a); err != nil {
		return Value{}, err
	}
	outer := st.frame
	st.frame = inner
	st.macros++
	v, err := st.capture(func() error {
		for i := range def.params {
			q := &def.params[i]
			if inner.vars[q.slot].kind != kindMissing {
				continue
			}
			v := Value{kind: kindUndefined, num: undefMessage, str: "parameter '" + q.name + "' was not provided"}
			if q.fallback != nil {
				var err error
				if v, err = st.eval(q.fallback); err != nil {
					return err
				}
			}
			inner.vars[q.slot] = v
		}
		_, err := st.runBody(def.body)
		return err
	})
	st.macros--
	st.frame = outer
	return v, err
}

// bindMacro fills the parameters given and the special variables of a macro call.
func (st *state) bindMacro(def *macroDef, inner *frame, a *callArgs) error {
	if err := st.chargeValues(len(a.pos) + 2*len(a.kw)); err != nil {
		return err
	}
	n := min(len(a.pos), len(def.params))
	for i, v := range a.pos[:n] {
		inner.vars[def.params[i].slot] = v
	}
	for _, q := range def.params[n:] {
		if v, ok := a.take(q.name); ok {
			inner.vars[q.slot] = v
		}
	}
	if def.caller >= 0 {
		v, ok := a.take("caller")
		if !ok {
			v = Value{kind: kindUndefined, num: undefMessage, str: "No caller defined"}
		}
		inner.vars[def.caller] = v
	}
	if def.kwargs >= 0 {
		m := NewMap()
		for _, kw := range a.kw {
			m.Set(kw.name, kw.value)
		}
		inner.vars[def.kwargs] = m.Value()
	} else if len(a.kw) > 0 {
		return errorf("macro '%s' takes no keyword argument '%s'", def.name, a.kw[0].name)
	}
	if def.varargs >= 0 {
		inner.vars[def.varargs] = tupleValue(append([]Value(nil), a.pos[n:]...))
	} else if len(a.pos) > n {
		return errorf("macro '%s' takes not more than %d argument(s)", def.name, len(def.params))
	}
	return nil
}
