package chattemplate

// eval evaluates an expression.
func (st *state) eval(x expr) (Value, error) {
	switch x := x.(type) {
	case *constExpr:
		return x.Value, st.Tick()
	case *nameExpr:
		return st.evalName(x)
	case *attrExpr:
		return st.evalAttr(x)
	case *itemExpr:
		return st.evalItem(x)
	case *sliceExpr:
		return st.evalSlice(x)
	case *callExpr:
		return st.callWith(x, nil)
	case *filterExpr:
		return st.evalFilter(x)
	case *testExpr:
		return st.evalTest(x)
	case *notExpr:
		v, err := st.eval(x.X)
		return Bool(!v.Truth()), err
	case *unaryExpr:
		return st.evalUnary(x)
	case *andExpr:
		return st.evalAnd(x)
	case *orExpr:
		return st.evalOr(x)
	case *condExpr:
		return st.evalCond(x)
	case *compareExpr:
		return st.evalCompare(x)
	case *addExpr:
		return st.evalAdd(x)
	case *arithExpr:
		return st.evalArith(x)
	case *concatExpr:
		return st.evalConcat(x)
	case *listExpr:
		items, err := st.evalList(x.List)
		return NewList(items), err
	case *tupleExpr:
		items, err := st.evalList(x.List)
		return NewTuple(items), err
	case *dictExpr:
		return st.evalDict(x)
	}
	return Value{}, Errorf("unknown expression")
}

func (st *state) evalName(x *nameExpr) (Value, error) {
	f, up := st.frame, 0
	for _, ref := range x.Refs {
		for ; up < ref.Up; up++ {
			f = f.parent
		}
		if v := f.vars[ref.Slot]; v.Kind != KindMissing {
			return v, st.Tick()
		}
	}
	if v, ok := st.vars.Get(x.Name); ok {
		return v, st.Tick()
	}
	if v, ok := globals[x.Name]; ok {
		return v, st.Tick()
	}
	return UndefinedVariable(x.Name), st.Tick()
}

func (st *state) evalAttr(x *attrExpr) (Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return Value{}, err
	}
	v, err = Attribute(&st.Budget, v, x.Name)
	if err != nil {
		return Value{}, AtLine(err, x.Line)
	}
	return v, st.Tick()
}

func (st *state) evalItem(x *itemExpr) (Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return Value{}, err
	}
	key, err := st.eval(x.Key)
	if err != nil {
		return Value{}, err
	}
	v, err = Item(&st.Budget, v, key)
	if err != nil {
		return Value{}, AtLine(err, x.Line)
	}
	return v, st.Tick()
}

func (st *state) evalSlice(x *sliceExpr) (Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return Value{}, err
	}
	var bounds [3]Value
	for i, part := range [3]expr{x.Low, x.High, x.Step} {
		bounds[i] = None()
		if part == nil {
			continue
		}
		if bounds[i], err = st.eval(part); err != nil {
			return Value{}, err
		}
	}
	v, err = Slice(&st.Budget, v, bounds)
	return v, AtLine(err, x.Line)
}

func (st *state) evalFilter(x *filterExpr) (Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return Value{}, err
	}
	return st.applyFilter(x, v)
}

// applyFilter runs a filter on a value already evaluated.
func (st *state) applyFilter(x *filterExpr, v Value) (Value, error) {
	if x.Fn == nil {
		return Value{}, ErrorAt(x.Line, "no filter named '%s'", x.Name)
	}
	depth := len(st.stack)
	args, err := st.evalArgs(&x.Args)
	if err == nil {
		if err = st.Work(v.Weight()); err == nil {
			v, err = x.Fn(&st.Budget, v, &args)
		}
	}
	st.stack = st.stack[:depth]
	if err != nil {
		return Value{}, AtLine(err, x.Line)
	}
	return v, nil
}

func (st *state) evalTest(x *testExpr) (Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return Value{}, err
	}
	if x.Fn == nil {
		return Value{}, ErrorAt(x.Line, "no test named '%s'", x.Name)
	}
	depth := len(st.stack)
	args, err := st.evalArgs(&x.Args)
	var ok bool
	if err == nil {
		ok, err = x.Fn(&st.Budget, v, &args)
	}
	st.stack = st.stack[:depth]
	if err != nil {
		return Value{}, AtLine(err, x.Line)
	}
	return Bool(ok), st.Tick()
}

func (st *state) evalUnary(x *unaryExpr) (Value, error) {
	v, err := st.eval(x.X)
	if err != nil {
		return Value{}, err
	}
	return Unary(&st.Budget, x.Negative, v)
}

func (st *state) evalAnd(x *andExpr) (Value, error) {
	var v Value
	for _, part := range x.List {
		var err error
		if v, err = st.eval(part); err != nil || !v.Truth() {
			return v, err
		}
	}
	return v, nil
}

func (st *state) evalOr(x *orExpr) (Value, error) {
	var v Value
	for _, part := range x.List {
		var err error
		if v, err = st.eval(part); err != nil || v.Truth() {
			return v, err
		}
	}
	return v, nil
}

func (st *state) evalCond(x *condExpr) (Value, error) {
	c, err := st.eval(x.Cond)
	if err != nil {
		return Value{}, err
	}
	if c.Truth() {
		return st.eval(x.Then)
	}
	if x.Otherwise == nil {
		return Value{Kind: KindUndefined, Num: UndefMessage,
			Text: "the inline if-expression evaluated to false and no else section was defined."}, nil
	}
	return st.eval(x.Otherwise)
}

func (st *state) evalCompare(x *compareExpr) (Value, error) {
	left, err := st.eval(x.First)
	if err != nil {
		return Value{}, err
	}
	for _, c := range x.Rest {
		right, err := st.eval(c.X)
		if err != nil {
			return Value{}, err
		}
		ok, err := st.Compare(c.Op, left, right)
		if err != nil || !ok {
			return Bool(false), err
		}
		left = right
	}
	return Bool(true), nil
}

func (st *state) evalArith(x *arithExpr) (Value, error) {
	left, err := st.eval(x.Left)
	if err != nil {
		return Value{}, err
	}
	right, err := st.eval(x.Right)
	if err != nil {
		return Value{}, err
	}
	return Arith(&st.Budget, x.Op, left, right)
}

// evalAdd adds from left to right. Leading texts are collected and joined once.
func (st *state) evalAdd(x *addExpr) (Value, error) {
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
		var v Value
		if v, err = st.eval(x.List[rest]); err == nil {
			sum, err = Arith(&st.Budget, "+", sum, v)
		}
	}
	if err != nil {
		return Value{}, err
	}
	return sum, st.Tick()
}

// collect evaluates the chain as long as its parts are plain texts and leaves them on the stack. If the first
// is something else, it is returned as the sum so far. rest is the first part not evaluated, unless a part that
// does not fit the texts before it was: then that is an error.
func (st *state) collect(x *addExpr) (sum Value, rest int, err error) {
	for i, part := range x.List {
		v, err := st.eval(part)
		if err != nil {
			return Value{}, 0, err
		}
		if v.Kind == KindString && !v.Markup {
			st.stack = append(st.stack, v)
			continue
		}
		if i == 0 {
			return v, 1, nil
		}
		left, err := st.joinTexts(st.stack[len(st.stack)-i:])
		if err != nil {
			return Value{}, 0, err
		}
		st.stack = st.stack[:len(st.stack)-i]
		sum, err = Arith(&st.Budget, "+", left, v)
		return sum, i + 1, err
	}
	return Value{}, len(x.List), nil
}

// joinTexts concatenates texts.
func (st *state) joinTexts(texts []Value) (Value, error) {
	if len(texts) == 1 {
		return texts[0], nil
	}
	n := 0
	for _, v := range texts {
		n += len(v.Text)
	}
	if err := st.Charge(n); err != nil {
		return Value{}, err
	}
	buf := make([]byte, 0, n)
	for _, v := range texts {
		buf = append(buf, v.Text...)
	}
	return Str(string(buf)), nil
}

// printSum writes the sum. Texts go straight to the output: a part that does not fit is an error, and an
// error discards the output.
func (st *state) printSum(x *addExpr) error {
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
		if sum, err = Arith(&st.Budget, "+", sum, v); err != nil {
			return err
		}
	}
	return st.print(sum)
}

func (st *state) evalConcat(x *concatExpr) (Value, error) {
	depth := len(st.stack)
	for _, part := range x.List {
		v, err := st.eval(part)
		if err == nil && v.Kind != KindString {
			v, err = st.ToString(v)
		}
		if err != nil {
			st.stack = st.stack[:depth]
			return Value{}, err
		}
		st.stack = append(st.stack, v)
	}
	v, err := st.joinTexts(st.stack[depth:])
	v.Markup = false
	st.stack = st.stack[:depth]
	return v, err
}

func (st *state) evalList(list []expr) ([]Value, error) {
	if err := st.ChargeValues(len(list)); err != nil {
		return nil, err
	}
	items := make([]Value, len(list))
	for i, x := range list {
		v, err := st.eval(x)
		if err != nil {
			return nil, err
		}
		items[i] = v
	}
	return items, nil
}

func (st *state) evalDict(x *dictExpr) (Value, error) {
	if err := st.ChargeValues(2 * len(x.Pairs)); err != nil {
		return Value{}, err
	}
	m := NewMap()
	for _, p := range x.Pairs {
		key, err := st.eval(p.Key)
		if err != nil {
			return Value{}, err
		}
		value, err := st.eval(p.Value)
		if err != nil {
			return Value{}, err
		}
		if err := st.SetItem(m, key, value); err != nil {
			return Value{}, err
		}
	}
	return m.Value(), nil
}
