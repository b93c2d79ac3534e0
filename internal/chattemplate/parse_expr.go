package chattemplate

import (
	"strconv"
)

// constants are the names that are literals.
var constants = map[string]Value{
	"true": Bool(true), "True": Bool(true),
	"false": Bool(false), "False": Bool(false),
	"none": None(), "None": None(),
}

// expression parses one expression; without cond, an inline if is left to the caller.
func (p *parser) expression(cond bool) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	x, err := p.or()
	if err != nil || !cond {
		return x, err
	}
	for p.skipName("if") {
		c, err := p.or()
		if err != nil {
			return nil, err
		}
		var otherwise expr
		if p.skipName("else") {
			if otherwise, err = p.expression(true); err != nil {
				return nil, err
			}
		}
		x = &condExpr{c, x, otherwise}
	}
	return x, nil
}

func (p *parser) or() (expr, error) {
	x, err := p.and()
	if err != nil || !p.cur().named("or") {
		return x, err
	}
	list := []expr{x}
	for p.skipName("or") {
		y, err := p.and()
		if err != nil {
			return nil, err
		}
		list = append(list, y)
	}
	return &orExpr{list}, nil
}

func (p *parser) and() (expr, error) {
	x, err := p.not()
	if err != nil || !p.cur().named("and") {
		return x, err
	}
	list := []expr{x}
	for p.skipName("and") {
		y, err := p.not()
		if err != nil {
			return nil, err
		}
		list = append(list, y)
	}
	return &andExpr{list}, nil
}

func (p *parser) not() (expr, error) {
	if !p.skipName("not") {
		return p.compare()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	x, err := p.not()
	return &notExpr{x}, err
}

func (p *parser) compareOp() string {
	t := p.cur()
	if t.kind == tokOperator {
		switch t.text {
		case "==", "!=", "<", "<=", ">", ">=":
			p.next()
			return t.text
		}
		return ""
	}
	if p.skipName("in") {
		return "in"
	}
	if t.named("not") && p.peek().named("in") {
		p.next()
		p.next()
		return "not in"
	}
	return ""
}

func (p *parser) compare() (expr, error) {
	x, err := p.sum()
	if err != nil {
		return nil, err
	}
	var rest []comparison
	for op := p.compareOp(); op != ""; op = p.compareOp() {
		y, err := p.sum()
		if err != nil {
			return nil, err
		}
		rest = append(rest, comparison{op, y})
	}
	if rest == nil {
		return x, nil
	}
	return &compareExpr{x, rest}, nil
}

// binary parses a left-associative level of the grammar.
func (p *parser) binary(operand func() (expr, error), ops ...string) (expr, error) {
	x, err := operand()
	if err != nil {
		return nil, err
	}
	for {
		op := ""
		for _, o := range ops {
			if p.cur().is(o) {
				op = o
			}
		}
		if op == "" {
			return x, nil
		}
		p.next()
		y, err := operand()
		if err != nil {
			return nil, err
		}
		if op != "+" {
			x = &arithExpr{op, x, y}
			continue
		}
		if sum, ok := x.(*addExpr); ok {
			sum.list = append(sum.list, y)
			continue
		}
		x = &addExpr{[]expr{x, y}}
	}
}

func (p *parser) sum() (expr, error) { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() (expr, error) {
	x, err := p.product()
	if err != nil || !p.cur().is("~") {
		return x, err
	}
	list := []expr{x}
	for p.skipOp("~") {
		y, err := p.product()
		if err != nil {
			return nil, err
		}
		list = append(list, y)
	}
	return &concatExpr{list}, nil
}

func (p *parser) product() (expr, error) { return p.binary(p.power, "*", "/", "//", "%") }

// power is left-associative and weaker than unary minus, unlike Python's.
func (p *parser) power() (expr, error) {
	return p.binary(func() (expr, error) { return p.unary(true) }, "**")
}

func (p *parser) unary(withFilter bool) (expr, error) {
	t := p.cur()
	var x expr
	var err error
	if t.is("-") || t.is("+") {
		if err := p.enter(); err != nil {
			return nil, err
		}
		defer p.leave()
		p.next()
		x, err = p.unary(false)
		x = &unaryExpr{t.text == "-", x}
	} else {
		x, err = p.primary()
	}
	if err != nil {
		return nil, err
	}
	if x, err = p.postfix(x); err != nil || !withFilter {
		return x, err
	}
	return p.filters(x)
}

func (p *parser) primary() (expr, error) {
	t := p.cur()
	switch {
	case t.kind == tokName:
		p.next()
		if v, ok := constants[t.text]; ok {
			return &constExpr{v}, nil
		}
		return &nameExpr{name: t.text}, nil
	case t.kind == tokString:
		if p.next(); p.cur().kind != tokString {
			return &constExpr{strValue(t.text)}, nil
		}
		joined := []byte(t.text)
		for p.cur().kind == tokString {
			joined = append(joined, p.next().text...)
		}
		return &constExpr{strValue(string(joined))}, nil
	case t.kind == tokInteger:
		p.next()
		v, ok := parseInteger(t.text)
		if !ok {
			return nil, errorAt(t.line, "invalid integer")
		}
		return &constExpr{v}, nil
	case t.kind == tokFloat:
		p.next()
		// Out of range is infinity, as in Python; the lexer lets nothing else through.
		f, _ := strconv.ParseFloat(t.text, 64)
		return &constExpr{Float(f)}, nil
	case t.is("("):
		p.next()
		x, err := p.tupleOrExpr(true, nil, true)
		if err != nil {
			return nil, err
		}
		return x, p.expectOp(")")
	case t.is("["):
		p.next()
		list, err := p.exprList("]")
		return &listExpr{list}, err
	case t.is("{"):
		p.next()
		return p.dict()
	}
	return nil, errorAt(t.line, "unexpected %s", t.describe())
}

// exprList parses expressions up to the closing bracket, which it consumes.
func (p *parser) exprList(closing string) ([]expr, error) {
	var list []expr
	for !p.cur().is(closing) {
		x, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
		if !p.skipOp(",") {
			break
		}
	}
	return list, p.expectOp(closing)
}

func (p *parser) dict() (expr, error) {
	var pairs []pair
	for !p.cur().is("}") {
		key, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		if err := p.expectOp(":"); err != nil {
			return nil, err
		}
		value, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, pair{key, value})
		if !p.skipOp(",") {
			break
		}
	}
	return &dictExpr{pairs}, p.expectOp("}")
}

// tupleOrExpr parses an expression, or a tuple if commas follow; only in parentheses may it be empty.
func (p *parser) tupleOrExpr(cond bool, ends []string, parentheses bool) (expr, error) {
	var list []expr
	isTuple := false
	for {
		t := p.cur()
		if t.kind == tokVariableEnd || t.kind == tokBlockEnd || t.is(")") || contains(ends, t) {
			break
		}
		x, err := p.expression(cond)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
		if !p.skipOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple && len(list) == 1 {
		return list[0], nil
	}
	if !isTuple && !parentheses {
		return nil, errorAt(p.cur().line, "expected an expression, got %s", p.cur().describe())
	}
	return &tupleExpr{list}, nil
}

func (p *parser) postfix(x expr) (expr, error) {
	for {
		t := p.cur()
		var err error
		switch {
		case t.is("."):
			p.next()
			x, err = p.attribute(x, t.line)
		case t.is("["):
			p.next()
			x, err = p.subscript(x, t.line)
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

func (p *parser) attribute(x expr, line int) (expr, error) {
	t := p.next()
	switch t.kind {
	case tokName:
		return &attrExpr{x, t.text, line}, nil
	case tokInteger:
		v, ok := parseInteger(t.text)
		if !ok {
			return nil, errorAt(t.line, "invalid integer")
		}
		return &itemExpr{x, &constExpr{v}, line}, nil
	}
	return nil, errorAt(t.line, "expected name or number after '.', got %s", t.describe())
}

func (p *parser) subscript(x expr, line int) (expr, error) {
	var key expr
	var err error
	if !p.cur().is(":") {
		if key, err = p.expression(true); err != nil {
			return nil, err
		}
		if p.cur().is(",") {
			p.next()
			rest, err := p.exprList("]")
			return &itemExpr{x, &tupleExpr{append([]expr{key}, rest...)}, line}, err
		}
		if !p.cur().is(":") {
			return &itemExpr{x, key, line}, p.expectOp("]")
		}
	}
	s := &sliceExpr{x: x, low: key, line: line}
	p.next()
	for _, part := range []*expr{&s.high, &s.step} {
		if !p.cur().is(":") && !p.cur().is("]") {
			if *part, err = p.expression(true); err != nil {
				return nil, err
			}
		}
		if !p.skipOp(":") {
			break
		}
	}
	return s, p.expectOp("]")
}

// filters parses what may follow a complete operand: filters, tests and calls.
// dottedName parses a filter's or test's name.
