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
		x = &condExpr{Cond: c, Then: x, Otherwise: otherwise}
	}
	return x, nil
}

func (p *parser) or() (expr, error) {
	x, err := p.and()
	if err != nil || !p.cur().Named("or") {
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
	return &orExpr{List: list}, nil
}

func (p *parser) and() (expr, error) {
	x, err := p.not()
	if err != nil || !p.cur().Named("and") {
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
	return &andExpr{List: list}, nil
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
	return &notExpr{X: x}, err
}

func (p *parser) compareOp() string {
	t := p.cur()
	if t.Kind == tokOperator {
		switch t.Text {
		case "==", "!=", "<", "<=", ">", ">=":
			p.next()
			return t.Text
		}
		return ""
	}
	if p.skipName("in") {
		return "in"
	}
	if t.Named("not") && p.peek().Named("in") {
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
		rest = append(rest, comparison{Op: op, X: y})
	}
	if rest == nil {
		return x, nil
	}
	return &compareExpr{First: x, Rest: rest}, nil
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
			if p.cur().Is(o) {
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
			x = &arithExpr{Op: op, Left: x, Right: y}
			continue
		}
		if sum, ok := x.(*addExpr); ok {
			sum.List = append(sum.List, y)
			continue
		}
		x = &addExpr{List: []expr{x, y}}
	}
}

func (p *parser) sum() (expr, error) { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() (expr, error) {
	x, err := p.product()
	if err != nil || !p.cur().Is("~") {
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
	return &concatExpr{List: list}, nil
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
	if t.Is("-") || t.Is("+") {
		if err := p.enter(); err != nil {
			return nil, err
		}
		defer p.leave()
		p.next()
		x, err = p.unary(false)
		x = &unaryExpr{Negative: t.Text == "-", X: x}
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
	case t.Kind == tokName:
		p.next()
		if v, ok := constants[t.Text]; ok {
			return &constExpr{Value: v}, nil
		}
		return &nameExpr{Name: t.Text}, nil
	case t.Kind == tokString:
		if p.next(); p.cur().Kind != tokString {
			return &constExpr{Value: Str(t.Text)}, nil
		}
		joined := []byte(t.Text)
		for p.cur().Kind == tokString {
			joined = append(joined, p.next().Text...)
		}
		return &constExpr{Value: Str(string(joined))}, nil
	case t.Kind == tokInteger:
		p.next()
		v, ok := parseInteger(t.Text)
		if !ok {
			return nil, ErrorAt(t.Line, "invalid integer")
		}
		return &constExpr{Value: v}, nil
	case t.Kind == tokFloat:
		p.next()
		// Out of range is infinity, as in Python; the lexer lets nothing else through.
		f, _ := strconv.ParseFloat(t.Text, 64)
		return &constExpr{Value: Float(f)}, nil
	case t.Is("("):
		p.next()
		x, err := p.tupleOrExpr(true, nil, true)
		if err != nil {
			return nil, err
		}
		return x, p.expectOp(")")
	case t.Is("["):
		p.next()
		list, err := p.exprList("]")
		return &listExpr{List: list}, err
	case t.Is("{"):
		p.next()
		return p.dict()
	}
	return nil, ErrorAt(t.Line, "unexpected %s", t.Describe())
}

// exprList parses expressions up to the closing bracket, which it consumes.
func (p *parser) exprList(closing string) ([]expr, error) {
	var list []expr
	for !p.cur().Is(closing) {
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
	for !p.cur().Is("}") {
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
		pairs = append(pairs, pair{Key: key, Value: value})
		if !p.skipOp(",") {
			break
		}
	}
	return &dictExpr{Pairs: pairs}, p.expectOp("}")
}

// tupleOrExpr parses an expression, or a tuple if commas follow; only in parentheses may it be empty.
func (p *parser) tupleOrExpr(cond bool, ends []string, parentheses bool) (expr, error) {
	var list []expr
	isTuple := false
	for {
		t := p.cur()
		if t.Kind == tokVariableEnd || t.Kind == tokBlockEnd || t.Is(")") || contains(ends, t) {
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
		return nil, ErrorAt(p.cur().Line, "expected an expression, got %s", p.cur().Describe())
	}
	return &tupleExpr{List: list}, nil
}

func (p *parser) postfix(x expr) (expr, error) {
	for {
		t := p.cur()
		var err error
		switch {
		case t.Is("."):
			p.next()
			x, err = p.Attribute(x, t.Line)
		case t.Is("["):
			p.next()
			x, err = p.subscript(x, t.Line)
		case t.Is("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) Attribute(x expr, line int) (expr, error) {
	t := p.next()
	switch t.Kind {
	case tokName:
		return &attrExpr{X: x, Name: t.Text, Line: line}, nil
	case tokInteger:
		v, ok := parseInteger(t.Text)
		if !ok {
			return nil, ErrorAt(t.Line, "invalid integer")
		}
		return &itemExpr{X: x, Key: &constExpr{Value: v}, Line: line}, nil
	}
	return nil, ErrorAt(t.Line, "expected name or number after '.', got %s", t.Describe())
}

func (p *parser) subscript(x expr, line int) (expr, error) {
	var key expr
	var err error
	if !p.cur().Is(":") {
		if key, err = p.expression(true); err != nil {
			return nil, err
		}
		if p.cur().Is(",") {
			p.next()
			rest, err := p.exprList("]")
			return &itemExpr{X: x, Key: &tupleExpr{List: append([]expr{key}, rest...)}, Line: line}, err
		}
		if !p.cur().Is(":") {
			return &itemExpr{X: x, Key: key, Line: line}, p.expectOp("]")
		}
	}
	s := &sliceExpr{X: x, Low: key, Line: line}
	p.next()
	for _, part := range []*expr{&s.High, &s.Step} {
		if !p.cur().Is(":") && !p.cur().Is("]") {
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
