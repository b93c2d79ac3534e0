// Package eval runs a template's syntax tree.
package eval

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/ast"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// frame holds the variables of one scope while it runs.
type frame struct {
	vars   []values.Value
	parent *frame
}

// state is one rendering.
type state struct {
	values.Budget
	vars    *values.Map
	frame   *frame
	out     []byte
	stack   []values.Value // arguments of the calls under way
	args    []*values.Args // made so far, to be used again: the first calling belong to calls
	calling int
	macros  int // macro calls under way
}

// mark is how far the calls under way have come.
type mark struct{ stack, calling int }

func (st *state) mark() mark { return mark{stack: len(st.stack), calling: st.calling} }

// release ends the calls that began after a mark: their arguments are not used any more.
func (st *state) release(m mark) {
	st.stack = st.stack[:m.stack]
	st.calling = m.calling
}

// newArgs returns arguments for one call, until release.
func (st *state) newArgs(pos []values.Value, keywords []values.Named) *values.Args {
	if st.calling == len(st.args) {
		st.args = append(st.args, new(values.Args))
	}
	a := st.args[st.calling]
	st.calling++
	a.Pos, a.Keywords = pos, keywords
	return a
}

// Render runs the body of a template, whose outermost scope has so many slots, and returns what it
// wrote. The error, if any, is an *Error.
func Render(body []ast.Stmt, slots int, vars *values.Map, run values.Budget) (string, error) {
	st := &state{
		Budget: run,
		vars:   vars,
		frame:  &frame{vars: make([]values.Value, slots)},
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
		return values.Errorf("template output is larger than %d bytes", st.MaxOutput)
	}
	st.out = append(st.out, s...)
	return st.Charge(len(s))
}

// newFrame makes the variables of a scope that runs inside parent.
func (st *state) newFrame(slots int, parent *frame) (*frame, error) {
	return &frame{vars: make([]values.Value, slots), parent: parent}, st.ChargeValues(slots + 1)
}

func (st *state) runBody(body []ast.Stmt) (ast.Control, error) {
	for _, s := range body {
		c, err := st.exec(s)
		if err != nil || c != ast.Next {
			return c, err
		}
	}
	return ast.Next, nil
}

// scoped runs a body in a new scope.
func (st *state) scoped(slots int, body []ast.Stmt) (ast.Control, error) {
	outer := st.frame
	inner, err := st.newFrame(slots, outer)
	if err != nil {
		return ast.Next, err
	}
	st.frame = inner
	c, err := st.runBody(body)
	st.frame = outer
	return c, err
}

// capture runs f and returns what it wrote as a str instead of putting it out.
func (st *state) capture(f func() error) (values.Value, error) {
	outer := st.out
	st.out = nil
	err := f()
	text := string(st.out)
	st.out = outer
	if err != nil {
		return values.Value{}, err
	}
	return st.NewString(text)
}

// exec runs a statement.
func (st *state) exec(s ast.Stmt) (ast.Control, error) {
	switch s := s.(type) {
	case *ast.Data:
		return st.execData(s)
	case *ast.Output:
		return st.execOutput(s)
	case *ast.If:
		return st.execIf(s)
	case *ast.For:
		return st.execFor(s)
	case *ast.LoopControl:
		return s.Control, nil
	case *ast.Set:
		return st.execSet(s)
	case *ast.SetBlock:
		return st.execSetBlock(s)
	case *ast.With:
		return st.execWith(s)
	case *ast.Macro:
		return st.execMacro(s)
	case *ast.CallBlock:
		return st.execCall(s)
	case *ast.FilterBlock:
		return st.execFilter(s)
	case *ast.Generation:
		return st.execScope(s)
	}
	return ast.Next, values.Errorf("unknown statement")
}

func (st *state) execData(s *ast.Data) (ast.Control, error) { return ast.Next, st.write(s.Text) }

func (st *state) execOutput(s *ast.Output) (ast.Control, error) {
	if sum, ok := s.X.(*ast.Add); ok {
		if err := st.printSum(sum); err != nil {
			return ast.Next, values.AtLine(err, s.Line)
		}
		return ast.Next, nil
	}
	v, err := st.eval(s.X)
	if err == nil {
		err = st.print(v)
	}
	if err != nil {
		return ast.Next, values.AtLine(err, s.Line)
	}
	return ast.Next, nil
}

// print writes str(v).
func (st *state) print(v values.Value) error {
	if v.Kind == values.KindString {
		return st.write(v.Text)
	}
	w := values.Writer{Run: &st.Budget, Buf: st.out, Limit: st.MaxOutput}
	w.WriteValue(v)
	st.out = w.Buf
	return w.Err
}

func (st *state) execIf(s *ast.If) (ast.Control, error) {
	for i := range s.Branches {
		b := &s.Branches[i]
		v, err := st.eval(b.Cond)
		if err != nil {
			return ast.Next, values.AtLine(err, b.Line)
		}
		if v.Truth() {
			return st.runBody(b.Body)
		}
	}
	return st.runBody(s.Otherwise)
}

func (st *state) execSet(s *ast.Set) (ast.Control, error) {
	v, err := st.eval(s.X)
	if err == nil {
		err = st.assign(&s.Target, v, st.frame)
	}
	if err != nil {
		return ast.Next, values.AtLine(err, s.Line)
	}
	return ast.Next, nil
}

// assign binds target in frame f.
func (st *state) assign(t *ast.Target, v values.Value, f *frame) error {
	if t.Tuple != nil {
		items, err := st.Iterate(v)
		if err != nil {
			return err
		}
		if len(items) < len(t.Tuple) {
			return values.Errorf("not enough values to unpack (expected %d, got %d)", len(t.Tuple),
				len(items))
		}
		if len(items) > len(t.Tuple) {
			return values.Errorf("too many values to unpack (expected %d)", len(t.Tuple))
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
	if space.Kind != values.KindNamespace {
		return values.Errorf("cannot assign attribute on non-namespace object")
	}
	if err := st.ChargeValues(1); err != nil {
		return err
	}
	return space.Mapping().Put(values.Str(t.Attr), v)
}

func (st *state) execSetBlock(s *ast.SetBlock) (ast.Control, error) {
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
	return ast.Next, values.AtLine(err, s.Line)
}

// filterBlock evaluates the chain of filters outer with v as the input of its innermost filter.
func (st *state) filterBlock(inner *ast.Filter, outer ast.Expr,
	v values.Value) (values.Value, error) {
	depth := len(st.stack)
	st.stack = append(st.stack, v)
	in, err := st.filterChain(inner, outer)
	st.stack = st.stack[:depth]
	return in, err
}

func (st *state) filterChain(inner *ast.Filter, x ast.Expr) (values.Value, error) {
	f := x.(*ast.Filter)
	if f == inner {
		return st.applyFilter(f, st.stack[len(st.stack)-1])
	}
	v, err := st.filterChain(inner, f.X)
	if err != nil {
		return values.Value{}, err
	}
	return st.applyFilter(f, v)
}

func (st *state) execFilter(s *ast.FilterBlock) (ast.Control, error) {
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
	return ast.Next, values.AtLine(err, s.Line)
}

func (st *state) execWith(s *ast.With) (ast.Control, error) {
	inner, err := st.newFrame(s.Slots, st.frame)
	if err != nil {
		return ast.Next, values.AtLine(err, s.Line)
	}
	for i := range s.Targets {
		v, err := st.eval(s.Values[i])
		if err == nil {
			err = st.assign(&s.Targets[i], v, inner)
		}
		if err != nil {
			return ast.Next, values.AtLine(err, s.Line)
		}
	}
	outer := st.frame
	st.frame = inner
	c, err := st.runBody(s.Body)
	st.frame = outer
	return c, err
}

func (st *state) execScope(s *ast.Generation) (ast.Control, error) {
	return st.scoped(s.Slots, s.Body)
}

func (st *state) execMacro(s *ast.Macro) (ast.Control, error) {
	if err := st.ChargeValues(2); err != nil {
		return ast.Next, values.AtLine(err, s.Def.Line)
	}
	st.frame.vars[s.Slot] = macroValue(s.Def, st.frame)
	return ast.Next, nil
}

func (st *state) execCall(s *ast.CallBlock) (ast.Control, error) {
	caller := macroValue(s.Def, st.frame)
	v, err := st.callWith(s.Call, &caller)
	if err == nil {
		err = st.print(v)
	}
	return ast.Next, values.AtLine(err, s.Line)
}
