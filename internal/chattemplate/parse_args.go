package chattemplate

func (p *parser) call(fn expr) (expr, error) {
	line := p.cur().line
	args, err := p.arguments()
	return &callExpr{fn, args, line}, err
}

func (p *parser) arguments() (arguments, error) {
	var a arguments
	line := p.next().line
	bad := errorAt(line, "invalid syntax for function call expression")
	for n := 0; !p.cur().is(")"); n++ {
		if n > 0 {
			if err := p.expectOp(","); err != nil {
				return a, err
			}
			if p.cur().is(")") {
				break
			}
		}
		var err error
		switch {
		case p.cur().is("*"):
			if a.star != nil || a.doubleStar != nil {
				return a, bad
			}
			p.next()
			a.star, err = p.expression(true)
		case p.cur().is("**"):
			if a.doubleStar != nil {
				return a, bad
			}
			p.next()
			a.doubleStar, err = p.expression(true)
		case p.cur().kind == tokName && p.peek().is("="):
			if a.doubleStar != nil {
				return a, bad
			}
			k := keyword{name: p.next().text}
			p.next()
			for _, other := range a.keywords {
				if other.name == k.name {
					return a, errorAt(line, "keyword argument repeated: %s", k.name)
				}
			}
			k.x, err = p.expression(true)
			a.keywords = append(a.keywords, k)
		default:
			if a.star != nil || a.doubleStar != nil || a.keywords != nil {
				return a, bad
			}
			var x expr
			x, err = p.expression(true)
			a.positional = append(a.positional, x)
		}
		if err != nil {
			return a, err
		}
	}
	return a, p.expectOp(")")
}

func (p *parser) filters(x expr) (expr, error) {
	for {
		t := p.cur()
		var err error
		switch {
		case t.is("|"):
			p.next()
			x, err = p.filter(x)
		case t.named("is"):
			x, err = p.test(x)
		case t.is("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) dottedName() (string, error) {
	t, err := p.expectName()
	name := t.text
	for err == nil && p.skipOp(".") {
		t, err = p.expectName()
		name += "." + t.text
	}
	return name, err
}

func (p *parser) filter(x expr) (*filterExpr, error) {
	f := &filterExpr{x: x, line: p.cur().line}
	var err error
	if f.name, err = p.dottedName(); err != nil {
		return nil, err
	}
	f.fn = filters[f.name]
	if p.cur().is("(") {
		f.args, err = p.arguments()
	}
	return f, err
}

func (p *parser) test(x expr) (expr, error) {
	t := &testExpr{x: x, line: p.next().line}
	negated := p.skipName("not")
	var err error
	if t.name, err = p.dottedName(); err != nil {
		return nil, err
	}
	t.fn = tests[t.name]
	switch c := p.cur(); {
	case c.is("("):
		t.args, err = p.arguments()
	case c.kind == tokName && (c.text == "else" || c.text == "or" || c.text == "and"):
	case c.named("is"):
		return nil, errorAt(c.line, "you cannot chain multiple tests with is")
	case c.kind == tokName || c.kind == tokString || c.kind == tokInteger || c.kind == tokFloat || c.is("[") || c.is("{"):
		var arg expr
		if arg, err = p.primary(); err == nil {
			arg, err = p.postfix(arg)
		}
		t.args.positional = []expr{arg}
	}
	if negated {
		return &notExpr{t}, err
	}
	return t, err
}
