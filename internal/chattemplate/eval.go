package chattemplate

func (x *constExpr) eval(st *state) (Value, error) { return x.value, st.tick() }

func (x *nameExpr) eval(st *state) (Value, error) {
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

func (x *attrExpr) eval(st *state) (Value, error) {
	v, err := x.x.eval(st)
	if err != nil {
		return Value{}, err
	}
	v, err = st.attribute(v, x.name)
	if err != nil {
		return Value{}, atLine(err, x.line)
	}
	return v, st.tick()
}

func (x *itemExpr) eval(st *state) (Value, error) {
	v, err := x.x.eval(st)
	if err != nil {
		return Value{}, err
	}
	key, err := x.key.eval(st)
	if err != nil {
		return Value{}, err
	}
	v, err = st.item(v, key)
	if err != nil {
		return Value{}, atLine(err, x.line)
	}
	return v, st.tick()
}

func (x *sliceExpr) eval(st *state) (Value, error) {
	v, err := x.x.eval(st)
	if err != nil {
		return Value{}, err
	}
	var bounds [3]Value
	for i, part := range [3]expr{x.low, x.high, x.step} {
		bounds[i] = None()
		if part == nil {
			continue
		}
		if bounds[i], err = part.eval(st); err != nil {
			return Value{}, err
		}
	}
	v, err = st.slice(v, bounds)
	return v, atLine(err, x.line)
}

func (x *filterExpr) eval(st *state) (Value, error) {
	v, err := x.x.eval(st)
	if err != nil {
		return Value{}, err
	}
	return x.apply(st, v)
}

// apply runs the filter on a value already evaluated.
func (x *filterExpr) apply(st *state, v Value) (Value, error) {
	if x.fn == nil {
		return Value{}, errorAt(x.line, "no filter named '%s'", x.name)
	}
	depth := len(st.stack)
	args, err := st.evalArgs(&x.args)
	if err == nil {
		if err = st.work(v.weight()); err == nil {
			v, err = x.fn(st, v, &args)
		}
	}
	st.stack = st.stack[:depth]
	if err != nil {
		return Value{}, atLine(err, x.line)
	}
	return v, nil
}

// weight is a measure, in bytes, of what walking over v once costs.
func (v Value) weight() int {
	if v.kind == kindString {
		return len(v.str)
	}
	n, _ := v.length()
	return n * bytesPerStep
}

func (x *testExpr) eval(st *state) (Value, error) {
	v, err := x.x.eval(st)
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
		ok, err = x.fn(st, v, &args)
	}
	st.stack = st.stack[:depth]
	if err != nil {
		return Value{}, atLine(err, x.line)
	}
	return Bool(ok), st.tick()
}

func (x *notExpr) eval(st *state) (Value, error) {
	v, err := x.x.eval(st)
	return Bool(!v.truth()), err
}

func (x *unaryExpr) eval(st *state) (Value, error) {
	v, err := x.x.eval(st)
	if err != nil {
		return Value{}, err
	}
	return st.unary(x.negative, v)
}

func (x *andExpr) eval(st *state) (Value, error) {
	var v Value
	for _, part := range x.list {
		var err error
		if v, err = part.eval(st); err != nil || !v.truth() {
			return v, err
		}
	}
	return v, nil
}

func (x *orExpr) eval(st *state) (Value, error) {
	var v Value
	for _, part := range x.list {
		var err error
		if v, err = part.eval(st); err != nil || v.truth() {
			return v, err
		}
	}
	return v, nil
}

func (x *condExpr) eval(st *state) (Value, error) {
	c, err := x.cond.eval(st)
	if err != nil {
		return Value{}, err
	}
	if c.truth() {
		return x.then.eval(st)
	}
	if x.otherwise == nil {
		return Value{kind: kindUndefined, num: undefMessage,
			str: "the inline if-expression evaluated to false and no else section was defined."}, nil
	}
	return x.otherwise.eval(st)
}

func (x *compareExpr) eval(st *state) (Value, error) {
	left, err := x.first.eval(st)
	if err != nil {
		return Value{}, err
	}
	for _, c := range x.rest {
		right, err := c.x.eval(st)
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

func (x *arithExpr) eval(st *state) (Value, error) {
	left, err := x.left.eval(st)
	if err != nil {
		return Value{}, err
	}
	right, err := x.right.eval(st)
	if err != nil {
		return Value{}, err
	}
	return st.arith(x.op, left, right)
}

// eval adds from left to right. Leading texts are collected and joined once.
func (x *addExpr) eval(st *state) (Value, error) {
	depth := len(st.stack)
	sum, rest, err := x.collect(st)
	if err == nil {
		texts := st.stack[depth:]
		if len(texts) > 0 {
			sum, err = st.joinTexts(texts)
		}
	}
	st.stack = st.stack[:depth]
	for ; err == nil && rest < len(x.list); rest++ {
		var v Value
		if v, err = x.list[rest].eval(st); err == nil {
			sum, err = st.arith("+", sum, v)
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
func (x *addExpr) collect(st *state) (sum Value, rest int, err error) {
	for i, part := range x.list {
		v, err := part.eval(st)
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
		sum, err = st.arith("+", left, v)
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

// print writes the sum. Texts go straight to the output: a part that does not fit is an error, and an
// error discards the output.
func (x *addExpr) print(st *state) error {
	depth := len(st.stack)
	sum, rest, err := x.collect(st)
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
		v, err := x.list[rest].eval(st)
		if err != nil {
			return err
		}
		if sum, err = st.arith("+", sum, v); err != nil {
			return err
		}
	}
	return st.print(sum)
}

func (x *concatExpr) eval(st *state) (Value, error) {
	depth := len(st.stack)
	for _, part := range x.list {
		v, err := part.eval(st)
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
		v, err := x.eval(st)
		if err != nil {
			return nil, err
		}
		items[i] = v
	}
	return items, nil
}

func (x *listExpr) eval(st *state) (Value, error) {
	items, err := st.evalList(x.list)
	return listValue(items), err
}

func (x *tupleExpr) eval(st *state) (Value, error) {
	items, err := st.evalList(x.list)
	return tupleValue(items), err
}

func (x *dictExpr) eval(st *state) (Value, error) {
	if err := st.chargeValues(2 * len(x.pairs)); err != nil {
		return Value{}, err
	}
	m := NewMap()
	for _, p := range x.pairs {
		key, err := p.key.eval(st)
		if err != nil {
			return Value{}, err
		}
		value, err := p.value.eval(st)
		if err != nil {
			return Value{}, err
		}
		if err := st.setItem(m, key, value); err != nil {
			return Value{}, err
		}
	}
	return m.Value(), nil
}
