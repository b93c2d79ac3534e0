package chattemplate

// eval evaluates an expression.
func (st *state) eval(x expr) (Value, error) {
	switch x := x.(type) {
	case *constExpr:
		return x.value, st.tick()
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
		v, err := st.eval(x.x)
		return Bool(!v.truth()), err
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
		items, err := st.evalList(x.list)
		return listValue(items), err
	case *tupleExpr:
		items, err := st.evalList(x.list)
		return tupleValue(items), err
	case *dictExpr:
		return st.evalDict(x)
	}
	return Value{}, errorf("unknown expression")
}

func (st *state) evalName(x *nameExpr) (Value, error) {
	f, up := st.frame, 0
	for _, ref := range x.refs {
		for ; up < ref.up; up++ {
			f = f.parent
		}
		if v := f.vars[ref.slot]; v.kind != kindMissing {
			return v, st.tick()
		}
	}
	if v, ok := st.vars.Get(x.name); ok {
		return v, st.tick()
	}
	if v, ok := globals[x.name]; ok {
		return v, st.tick()
	}
	return undefinedVar(x.name), st.tick()
}

func (st *state) evalAttr(x *attrExpr) (Value, error) {
	v, err := st.eval(x.x)
	if err != nil {
		return Value{}, err
	}
	v, err = Attribute(&st.budget, v, x.name)
	if err != nil {
		return Value{}, atLine(err, x.line)
	}
	return v, st.tick()
}

func (st *state) evalItem(x *itemExpr) (Value, error) {
	v, err := st.eval(x.x)
	if err != nil {
		return Value{}, err
	}
	key, err := st.eval(x.key)
	if err != nil {
		return Value{}, err
	}
	v, err = Item(&st.budget, v, key)
	if err != nil {
		return Value{}, atLine(err, x.line)
	}
	return v, st.tick()
}

func (st *state) evalSlice(x *sliceExpr) (Value, error) {
	v, err := st.eval(x.x)
	if err != nil {
		return Value{}, err
	}
	var bounds [3]Value
	for i, part := range [3]expr{x.low, x.high, x.step} {
		bounds[i] = None()
		if part == nil {
			continue
		}
		if bounds[i], err = st.eval(part); err != nil {
			return Value{}, err
		}
	}
	v, err = Slice(&st.budget, v, bounds)
	return v, atLine(err, x.line)
}

func (st *state) evalFilter(x *filterExpr) (Value, error) {
	v, err := st.eval(x.x)
	if err != nil {
		return Value{}, err
	}
	return st.applyFilter(x, v)
}

// applyFilter runs a filter on a value already evaluated.
func (st *state) applyFilter(x *filterExpr, v Value) (Value, error) {
	if x.fn == nil {
		return Value{}, errorAt(x.line, "no filter named '%s'", x.name)
	}
	depth := len(st.stack)
	args, err := st.evalArgs(&x.args)
	if err == nil {
		if err = st.work(v.weight()); err == nil {
			v, err = x.fn(&st.budget, v, &args)
		}
	}
	st.stack = st.stack[:depth]
	if err != nil {
		return Value{}, atLine(err, x.line)
	}
	return v, nil
}

func (st *state) evalTest(x *testExpr) (Value, error) {
	v, err := st.eval(x.x)
	if err != nil {
		return Value{}, err
	}
	if x.fn == nil {
		return Value{}, errorAt(x.line, "no test named '%s'", x.name)
	}
	depth := len(st.stack)
	args, err := st.evalArgs(&x.args)
	var ok bool
	if err == nil {
		ok, err = x.fn(&st.budget, v, &args)
	}
	st.stack = st.stack[:depth]
	if err != nil {
		return Value{}, atLine(err, x.line)
	}
	return Bool(ok), st.tick()
}

func (st *state) evalUnary(x *unaryExpr) (Value, error) {
	v, err := st.eval(x.x)
	if err != nil {
		return Value{}, err
	}
	return Unary(&st.budget, x.negative, v)
}

func (st *state) evalAnd(x *andExpr) (Value, error) {
	var v Value
	for _, part := range x.list {
		var err error
		if v, err = st.eval(part); err != nil || !v.truth() {
			return v, err
		}
	}
	return v, nil
}

func (st *state) evalOr(x *orExpr) (Value, error) {
	var v Value
	for _, part := range x.list {
		var err error
		if v, err = st.eval(part); err != nil || v.truth() {
			return v, err
		}
	}
	return v, nil
}

func (st *state) evalCond(x *condExpr) (Value, error) {
	c, err := st.eval(x.cond)
	if err != nil {
		return Value{}, err
	}
	if c.truth() {
		return st.eval(x.then)
	}
	if x.otherwise == nil {
		return Value{kind: kindUndefined, num: undefMessage,
			str: "the inline if-expression evaluated to false and no else section was defined."}, nil
	}
	return st.eval(x.otherwise)
}

func (st *state) evalCompare(x *compareExpr) (Value, error) {
	left, err := st.eval(x.first)
	if err != nil {
		return Value{}, err
	}
	for _, c := range x.rest {
		right, err := st.eval(c.x)
		if err != nil {
			return Value{}, err
		}
		ok, err := st.compare(c.op, left, right)
		if err != nil || !ok {
			return Bool(false), err
		}
		left = right
	}
	return Bool(true), nil
}

func (st *state) evalArith(x *arithExpr) (Value, error) {
	left, err := st.eval(x.left)
	if err != nil {
		return Value{}, err
	}
	right, err := st.eval(x.right)
	if err != nil {
		return Value{}, err
	}
	return Arith(&st.budget, x.op, left, right)
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
	for ; err == nil && rest < len(x.list); rest++ {
		var v Value
		if v, err = st.eval(x.list[rest]); err == nil {
			sum, err = Arith(&st.budget, "+", sum, v)
		}
	}
	if err != nil {
		return Value{}, err
	}
	return sum, st.tick()
}

// collect evaluates the chain as long as its parts are plain texts and leaves them on the stack. If the first
// is something else, it is returned as the sum so far. rest is the first part not evaluated, unless a part that
// does not fit the texts before it was: then that is an error.
func (st *state) collect(x *addExpr) (sum Value, rest int, err error) {
	for i, part := range x.list {
		v, err := st.eval(part)
		if err != nil {
			return Value{}, 0, err
		}
		if v.kind == kindString && !v.markup {
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
		sum, err = Arith(&st.budget, "+", left, v)
		return sum, i + 1, err
	}
	return Value{}, len(x.list), nil
}

// joinTexts concatenates texts.
func (st *state) joinTexts(texts []Value) (Value, error) {
	if len(texts) == 1 {
		return texts[0], nil
	}
	n := 0
	for _, v := range texts {
		n += len(v.str)
	}
	if err := st.charge(n); err != nil {
		return Value{}, err
	}
	buf := make([]byte, 0, n)
	for _, v := range texts {
		buf = append(buf, v.str...)
	}
	return strValue(string(buf)), nil
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
			if err := st.write(v.str); err != nil {
				return err
			}
		}
		st.stack = st.stack[:depth]
		return nil
	}
	for ; rest < len(x.list); rest++ {
		v, err := st.eval(x.list[rest])
		if err != nil {
			return err
		}
		if sum, err = Arith(&st.budget, "+", sum, v); err != nil {
			return err
		}
	}
	return st.print(sum)
}

func (st *state) evalConcat(x *concatExpr) (Value, error) {
	depth := len(st.stack)
	for _, part := range x.list {
		v, err := st.eval(part)
		if err == nil && v.kind != kindString {
			v, err = st.toString(v)
		}
		if err != nil {
			st.stack = st.stack[:depth]
			return Value{}, err
		}
		st.stack = append(st.stack, v)
	}
	v, err := st.joinTexts(st.stack[depth:])
	v.markup = false
	st.stack = st.stack[:depth]
	return v, err
}

func (st *state) evalList(list []expr) ([]Value, error) {
	if err := st.chargeValues(len(list)); err != nil {
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
	if err := st.chargeValues(2 * len(x.pairs)); err != nil {
		return Value{}, err
	}
	m := NewMap()
	for _, p := range x.pairs {
		key, err := st.eval(p.key)
		if err != nil {
			return Value{}, err
		}
		value, err := st.eval(p.value)
		if err != nil {
			return Value{}, err
		}
		if err := st.setItem(m, key, value); err != nil {
			return Value{}, err
		}
	}
	return m.Value(), nil
}
