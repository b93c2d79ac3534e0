package eval

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/ast"
	"github.com/eagleray/eagleray/internal/text/chattemplate/builtins"
	"github.com/eagleray/eagleray/internal/text/chattemplate/ops"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// eval evaluates an expression.
func (st *state) eval(x ast.Expr) (values.Value, error) {
	switch x := x.(type) {
	case *ast.Const:
		return x.Value, st.Tick()
	case *ast.Name:
		return st.evalName(x)
	case *ast.Attr:
		return st.evalAttr(x)
	case *ast.Item:
		return st.evalItem(x)
	case *ast.Slice:
		return st.evalSlice(x)
	case *ast.Call:
		return st.callWith(x, nil)
	case *ast.Filter:
		return st.evalFilter(x)
	case *ast.Test:
		return st.evalTest(x)
	case *ast.Not:
		v, err := st.eval(x.X)
		return values.Bool(!v.Truth()), err
	case *ast.Unary:
		return st.evalUnary(x)
	case *ast.And:
		return st.evalAnd(x)
	case *ast.Or:
		return st.evalOr(x)
	case *ast.Cond:
		return st.evalCond(x)
	case *ast.Compare:
		return st.evalCompare(x)
	case *ast.Add:
		return st.evalAdd(x)
	case *ast.Arith:
		return st.evalArith(x)
	case *ast.Concat:
		return st.evalConcat(x)
	case *ast.List:
		items, err := st.evalList(x.List)
		return values.NewList(items), err
	case *ast.Tuple:
		items, err := st.evalList(x.List)
		return values.NewTuple(items), err
	case *ast.Dict:
		return st.evalDict(x)
	}
	return values.Value{}, values.Errorf("unknown expression")
}

func (st *state) evalName(x *ast.Name) (values.Value, error) {
	f, up := st.frame, 0
	for _, ref := range x.Refs {
		for ; up < ref.Up; up++ {
			f = f.parent
		}
		if v := f.vars[ref.Slot]; v.Kind != values.KindMissing {
			return v, st.Tick()
		}
	}
	if x.Given {
		if v, ok := st.vars.Get(x.Name); ok {
			return v, st.Tick()
		}
		if v, ok := builtins.Global(x.Name); ok {
			return v, st.Tick()
		}
	}
	return values.UndefinedVariable(x.Name), st.Tick()
}

func (st *state) evalAttr(x *ast.Attr) (values.Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return values.Value{}, err
	}
	v, err = ops.Attribute(&st.Budget, v, x.Name)
	if err != nil {
		return values.Value{}, values.AtLine(err, x.Line)
	}
	return v, st.Tick()
}

func (st *state) evalItem(x *ast.Item) (values.Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return values.Value{}, err
	}
	key, err := st.eval(x.Key)
	if err != nil {
		return values.Value{}, err
	}
	v, err = ops.Item(&st.Budget, v, key)
	if err != nil {
		return values.Value{}, values.AtLine(err, x.Line)
	}
	return v, st.Tick()
}

func (st *state) evalSlice(x *ast.Slice) (values.Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return values.Value{}, err
	}
	var bounds [3]values.Value
	for i, part := range [3]ast.Expr{x.Low, x.High, x.Step} {
		bounds[i] = values.None()
		if part == nil {
			continue
		}
		if bounds[i], err = st.eval(part); err != nil {
			return values.Value{}, err
		}
	}
	v, err = ops.Slice(&st.Budget, v, bounds)
	return v, values.AtLine(err, x.Line)
}

func (st *state) evalFilter(x *ast.Filter) (values.Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return values.Value{}, err
	}
	return st.applyFilter(x, v)
}

// applyFilter runs a filter on a value already evaluated.
func (st *state) applyFilter(x *ast.Filter, v values.Value) (values.Value, error) {
	if x.Fn == nil {
		return values.Value{}, values.ErrorAt(x.Line, "no filter named '%s'", x.Name)
	}
	before := st.mark()
	args, err := st.evalArgs(&x.Args)
	if err == nil {
		if err = st.Work(v.Weight()); err == nil {
			v, err = x.Fn(&st.Budget, v, args)
		}
	}
	st.release(before)
	if err != nil {
		return values.Value{}, values.AtLine(err, x.Line)
	}
	return v, nil
}

func (st *state) evalTest(x *ast.Test) (values.Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return values.Value{}, err
	}
	if x.Fn == nil {
		return values.Value{}, values.ErrorAt(x.Line, "no test named '%s'", x.Name)
	}
	before := st.mark()
	args, err := st.evalArgs(&x.Args)
	var ok bool
	if err == nil {
		ok, err = x.Fn(&st.Budget, v, args)
	}
	st.release(before)
	if err != nil {
		return values.Value{}, values.AtLine(err, x.Line)
	}
	return values.Bool(ok), st.Tick()
}

func (st *state) evalUnary(x *ast.Unary) (values.Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return values.Value{}, err
	}
	return ops.Unary(&st.Budget, x.Negative, v)
}

func (st *state) evalAnd(x *ast.And) (values.Value, error) {
	var v values.Value
	for _, part := range x.List {
		var err error
		if v, err = st.eval(part); err != nil || !v.Truth() {
			return v, err
		}
	}
	return v, nil
}

func (st *state) evalOr(x *ast.Or) (values.Value, error) {
	var v values.Value
	for _, part := range x.List {
		var err error
		if v, err = st.eval(part); err != nil || v.Truth() {
			return v, err
		}
	}
	return v, nil
}

func (st *state) evalCond(x *ast.Cond) (values.Value, error) {
	c, err := st.eval(x.Cond)
	if err != nil {
		return values.Value{}, err
	}
	if c.Truth() {
		return st.eval(x.Then)
	}
	if x.Otherwise == nil {
		undefined := values.Value{Kind: values.KindUndefined, Num: values.UndefMessage,
			Text: "the inline if-expression evaluated to false and no else section was defined."}
		return undefined, nil
	}
	return st.eval(x.Otherwise)
}

func (st *state) evalCompare(x *ast.Compare) (values.Value, error) {
	left, err := st.eval(x.First)
	if err != nil {
		return values.Value{}, err
	}
	for _, c := range x.Rest {
		right, err := st.eval(c.X)
		if err != nil {
			return values.Value{}, err
		}
		ok, err := st.Compare(c.Op, left, right)
		if err != nil || !ok {
			return values.Bool(false), err
		}
		left = right
	}
	return values.Bool(true), nil
}

func (st *state) evalArith(x *ast.Arith) (values.Value, error) {
	left, err := st.eval(x.Left)
	if err != nil {
		return values.Value{}, err
	}
	right, err := st.eval(x.Right)
	if err != nil {
		return values.Value{}, err
	}
	return ops.Arith(&st.Budget, x.Op, left, right)
}

// evalAdd adds from left to right. Leading texts are collected and joined once.
func (st *state) evalAdd(x *ast.Add) (values.Value, error) {
	depth := len(st.stack)
	sum, rest, err := st.collect(x)
	if err == nil {
		texts := st.stack[depth:]
		if len(texts) > 0 {
			sum, err = st.joinTexts(texts)
		}
	}
	st.stack = st.stack[:depth]
	for ; err == nil && rest < len(x.List); rest++ {
		var v values.Value
		if v, err = st.eval(x.List[rest]); err == nil {
			sum, err = ops.Arith(&st.Budget, "+", sum, v)
		}
	}
	if err != nil {
		return values.Value{}, err
	}
	return sum, st.Tick()
}

// collect evaluates the chain as long as its parts are plain texts and leaves them on the stack. If
// the first is something else, it is returned as the sum so far. rest is the first part not
// evaluated, unless a part that does not fit the texts before it was: then that is an error.
func (st *state) collect(x *ast.Add) (sum values.Value, rest int, err error) {
	for i, part := range x.List {
		v, err := st.eval(part)
		if err != nil {
			return values.Value{}, 0, err
		}
		if v.Kind == values.KindString && !v.Markup {
			st.stack = append(st.stack, v)
			continue
		}
		if i == 0 {
			return v, 1, nil
		}
		left, err := st.joinTexts(st.stack[len(st.stack)-i:])
		if err != nil {
			return values.Value{}, 0, err
		}
		st.stack = st.stack[:len(st.stack)-i]
		sum, err = ops.Arith(&st.Budget, "+", left, v)
		return sum, i + 1, err
	}
	return values.Value{}, len(x.List), nil
}

// joinTexts concatenates texts.
func (st *state) joinTexts(texts []values.Value) (values.Value, error) {
	if len(texts) == 1 {
		return texts[0], nil
	}
	n := 0
	for _, v := range texts {
		n += len(v.Text)
	}
	if err := st.Charge(n); err != nil {
		return values.Value{}, err
	}
	buf := make([]byte, 0, n)
	for _, v := range texts {
		buf = append(buf, v.Text...)
	}
	return values.Str(string(buf)), nil
}

// printSum writes the sum. Texts go straight to the output: a part that does not fit is an error,
// and an error discards the output.
func (st *state) printSum(x *ast.Add) error {
	depth := len(st.stack)
	sum, rest, err := st.collect(x)
	if err != nil {
		st.stack = st.stack[:depth]
		return err
	}
	if texts := st.stack[depth:]; len(texts) > 0 {
		for _, v := range texts {
			if err := st.write(v.Text); err != nil {
				return err
			}
		}
		st.stack = st.stack[:depth]
		return nil
	}
	for ; rest < len(x.List); rest++ {
		v, err := st.eval(x.List[rest])
		if err != nil {
			return err
		}
		if sum, err = ops.Arith(&st.Budget, "+", sum, v); err != nil {
			return err
		}
	}
	return st.print(sum)
}

func (st *state) evalConcat(x *ast.Concat) (values.Value, error) {
	depth := len(st.stack)
	for _, part := range x.List {
		v, err := st.eval(part)
		if err == nil && v.Kind != values.KindString {
			v, err = st.ToString(v)
		}
		if err != nil {
			st.stack = st.stack[:depth]
			return values.Value{}, err
		}
		st.stack = append(st.stack, v)
	}
	v, err := st.joinTexts(st.stack[depth:])
	v.Markup = false
	st.stack = st.stack[:depth]
	return v, err
}

func (st *state) evalList(list []ast.Expr) ([]values.Value, error) {
	if err := st.ChargeValues(len(list)); err != nil {
		return nil, err
	}
	items := make([]values.Value, len(list))
	for i, x := range list {
		v, err := st.eval(x)
		if err != nil {
			return nil, err
		}
		items[i] = v
	}
	return items, nil
}

func (st *state) evalDict(x *ast.Dict) (values.Value, error) {
	if err := st.ChargeValues(2 * len(x.Pairs)); err != nil {
		return values.Value{}, err
	}
	m := values.NewMap()
	for _, p := range x.Pairs {
		key, err := st.eval(p.Key)
		if err != nil {
			return values.Value{}, err
		}
		value, err := st.eval(p.Value)
		if err != nil {
			return values.Value{}, err
		}
		if err := st.SetItem(m, key, value); err != nil {
			return values.Value{}, err
		}
	}
	return m.Value(), nil
}
