package eval

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/ast"
	"github.com/eagleray/eagleray/internal/text/chattemplate/ops"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// maxMacroDepth bounds macro calls under way; Python's own limit is near 300.
const maxMacroDepth = 200

type macro struct {
	def   *ast.MacroDef
	frame *frame
}

// macroValue is a macro as a value; its name is kept where printing finds it.
func macroValue(def *ast.MacroDef, f *frame) values.Value {
	return values.Value{Kind: values.KindMacro, Text: def.Name, Ref: &macro{def, f}}
}

// evalArgs evaluates the arguments of a call, which are valid until the caller releases them after
// it.
func (st *state) evalArgs(a *ast.Arguments) (*values.Args, error) {
	depth := len(st.stack)
	for _, x := range a.Positional {
		v, err := st.eval(x)
		if err != nil {
			return nil, err
		}
		st.stack = append(st.stack, v)
	}
	var kw []values.Named
	for _, k := range a.Keywords {
		v, err := st.eval(k.X)
		if err != nil {
			return nil, err
		}
		kw = append(kw, values.Named{Name: k.Name, Value: v})
	}
	if a.Star != nil {
		v, err := st.eval(a.Star)
		if err != nil {
			return nil, err
		}
		items, err := st.Iterate(v)
		if err == nil {
			err = st.ChargeValues(len(items))
		}
		if err != nil {
			return nil, err
		}
		st.stack = append(st.stack, items...)
	}
	if a.DoubleStar != nil {
		v, err := st.eval(a.DoubleStar)
		if err != nil {
			return nil, err
		}
		if v.Kind != values.KindMap {
			return nil, values.Errorf("argument after ** must be a mapping, not %s",
				v.TypeName())
		}
		if err := st.ChargeValues(v.Mapping().Len()); err != nil {
			return nil, err
		}
		given := map[string]bool{}
		for _, k := range kw {
			given[k.Name] = true
		}
		for _, e := range v.Mapping().Entries {
			if e.Key.Kind != values.KindString {
				return nil, values.Errorf("keywords must be strings")
			}
			if given[e.Key.Text] {
				return nil, values.Errorf("multiple values for keyword argument '%s'",
					e.Key.Text)
			}
			kw = append(kw, values.Named{Name: e.Key.Text, Value: e.Value})
		}
	}
	return st.newArgs(st.stack[depth:len(st.stack):len(st.stack)], kw), nil
}

// callWith evaluates a call with the body of a call block, if any, as the keyword argument caller.
func (st *state) callWith(x *ast.Call, caller *values.Value) (values.Value, error) {
	before := st.mark()
	v, err := st.invoke(x, caller)
	st.release(before)
	if err != nil {
		return values.Value{}, values.AtLine(err, x.Line)
	}
	return v, st.Tick()
}

func (st *state) invoke(x *ast.Call, caller *values.Value) (values.Value, error) {
	// A method is called straight away, without a value for it.
	if attr, ok := x.Fn.(*ast.Attr); ok {
		v, err := st.eval(attr.X)
		if err != nil {
			return values.Value{}, err
		}
		if m := ops.MethodOf(v, attr.Name); m != nil {
			args, err := st.callArgs(x, caller)
			if err != nil {
				return values.Value{}, err
			}
			if err := st.Work(v.Weight()); err != nil {
				return values.Value{}, err
			}
			return m(&st.Budget, v, args)
		}
		fn, err := ops.Attribute(&st.Budget, v, attr.Name)
		if err != nil {
			return values.Value{}, err
		}
		return st.invokeValue(x, fn, caller)
	}
	fn, err := st.eval(x.Fn)
	if err != nil {
		return values.Value{}, err
	}
	return st.invokeValue(x, fn, caller)
}

func (st *state) invokeValue(x *ast.Call, fn values.Value,
	caller *values.Value) (values.Value, error) {
	args, err := st.callArgs(x, caller)
	if err != nil {
		return values.Value{}, err
	}
	return st.call(fn, args)
}

func (st *state) callArgs(x *ast.Call, caller *values.Value) (*values.Args, error) {
	args, err := st.evalArgs(&x.Args)
	if err == nil && caller != nil {
		args.Keywords = append(args.Keywords, values.Named{Name: "caller", Value: *caller})
	}
	return args, err
}

// call calls a value.
func (st *state) call(fn values.Value, a *values.Args) (values.Value, error) {
	switch fn.Kind {
	case values.KindFunc:
		return fn.Ref.(*values.Function).Call(&st.Budget, a)
	case values.KindMacro:
		return st.callMacro(fn.Ref.(*macro), a)
	case values.KindJoiner:
		return fn.Ref.(*ops.Joiner).Call(a)
	case values.KindUndefined, values.KindMissing:
		return values.Value{}, fn.UndefinedError()
	case values.KindLoop:
		return values.Value{}, values.Errorf("the loop must have the 'recursive' marker to be " +
			"called recursively")
	}
	return values.Value{}, values.Errorf("'%s' object is not callable", fn.TypeName())
}

func (st *state) callMacro(m *macro, a *values.Args) (values.Value, error) {
	def := m.def
	if st.macros >= maxMacroDepth {
		return values.Value{}, values.Errorf("macro '%s' is called too deeply", def.Name)
	}
	inner, err := st.newFrame(def.Slots, m.frame)
	if err != nil {
		return values.Value{}, err
	}
	if err := st.bindMacro(def, inner, a); err != nil {
		return values.Value{}, err
	}
	outer := st.frame
	st.frame = inner
	st.macros++
	v, err := st.capture(func() error {
		for i := range def.Params {
			q := &def.Params[i]
			if inner.vars[q.Slot].Kind != values.KindMissing {
				continue
			}
			v := values.Value{Kind: values.KindUndefined, Num: values.UndefMessage,
				Text: "parameter '" + q.Name + "' was not provided"}
			if q.Fallback != nil {
				var err error
				if v, err = st.eval(q.Fallback); err != nil {
					return err
				}
			}
			inner.vars[q.Slot] = v
		}
		_, err := st.runBody(def.Body)
		return err
	})
	st.macros--
	st.frame = outer
	return v, err
}

// bindMacro fills the parameters given and the special variables of a macro call.
func (st *state) bindMacro(def *ast.MacroDef, inner *frame, a *values.Args) error {
	if err := st.ChargeValues(len(a.Pos) + 2*len(a.Keywords)); err != nil {
		return err
	}
	n := min(len(a.Pos), len(def.Params))
	for i, v := range a.Pos[:n] {
		inner.vars[def.Params[i].Slot] = v
	}
	for _, q := range def.Params[n:] {
		if v, ok := a.Pop(q.Name); ok {
			inner.vars[q.Slot] = v
		}
	}
	if def.Caller >= 0 {
		v, ok := a.Pop("caller")
		if !ok {
			v = values.Value{Kind: values.KindUndefined, Num: values.UndefMessage,
				Text: "No caller defined"}
		}
		inner.vars[def.Caller] = v
	}
	if def.Kwargs >= 0 {
		m := values.NewMap()
		for _, kw := range a.Keywords {
			m.Set(kw.Name, kw.Value)
		}
		inner.vars[def.Kwargs] = m.Value()
	} else if len(a.Keywords) > 0 {
		return values.Errorf("macro '%s' takes no keyword argument '%s'", def.Name,
			a.Keywords[0].Name)
	}
	if def.Varargs >= 0 {
		inner.vars[def.Varargs] = values.NewTuple(append([]values.Value(nil), a.Pos[n:]...))
	} else if len(a.Pos) > n {
		return values.Errorf("macro '%s' takes not more than %d argument(s)", def.Name,
			len(def.Params))
	}
	return nil
}
