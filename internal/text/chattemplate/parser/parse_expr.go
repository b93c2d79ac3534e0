package parser

import (
	"strconv"

	"github.com/eagleray/eagleray/internal/text/chattemplate/ast"
	"github.com/eagleray/eagleray/internal/text/chattemplate/lexer"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// constants are the names that are literals.
var constants = map[string]values.Value{
	"true": values.Bool(true), "True": values.Bool(true),
	"false": values.Bool(false), "False": values.Bool(false),
	"none": values.None(), "None": values.None(),
}

// expression parses one expression; without cond, an inline if is left to the caller.
func (p *parser) expression(cond bool) (ast.Expr, error) {
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
		var otherwise ast.Expr
		if p.skipName("else") {
			if otherwise, err = p.expression(true); err != nil {
				return nil, err
			}
		}
		x = &ast.Cond{Cond: c, Then: x, Otherwise: otherwise}
	}
	return x, nil
}

func (p *parser) or() (ast.Expr, error) {
	return p.joined("or", p.and, func(list []ast.Expr) ast.Expr { return &ast.Or{List: list} })
}

func (p *parser) and() (ast.Expr, error) {
	return p.joined("and", p.not, func(list []ast.Expr) ast.Expr { return &ast.And{List: list} })
}

// joined parses operands with a word between them; several makes one expression of more than one.
func (p *parser) joined(word string, operand func() (ast.Expr, error),
	several func([]ast.Expr) ast.Expr) (ast.Expr, error) {
	x, err := operand()
	if err != nil || !p.cur().Named(word) {
		return x, err
	}
	list := []ast.Expr{x}
	for p.skipName(word) {
		y, err := operand()
		if err != nil {
			return nil, err
		}
		list = append(list, y)
	}
	return several(list), nil
}

func (p *parser) not() (ast.Expr, error) {
	if !p.skipName("not") {
		return p.compare()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	x, err := p.not()
	return &ast.Not{X: x}, err
}

func (p *parser) compareOp() string {
	t := p.cur()
	if t.Kind == lexer.Operator {
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

func (p *parser) compare() (ast.Expr, error) {
	x, err := p.sum()
	if err != nil {
		return nil, err
	}
	var rest []ast.Comparison
	for op := p.compareOp(); op != ""; op = p.compareOp() {
		y, err := p.sum()
		if err != nil {
			return nil, err
		}
		rest = append(rest, ast.Comparison{Op: op, X: y})
	}
	if rest == nil {
		return x, nil
	}
	return &ast.Compare{First: x, Rest: rest}, nil
}

// binary parses a left-associative level of the grammar.
func (p *parser) binary(operand func() (ast.Expr, error), ops ...string) (ast.Expr, error) {
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
			x = &ast.Arith{Op: op, Left: x, Right: y}
			continue
		}
		if sum, ok := x.(*ast.Add); ok {
			sum.List = append(sum.List, y)
			continue
		}
		x = &ast.Add{List: []ast.Expr{x, y}}
	}
}

func (p *parser) sum() (ast.Expr, error) { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() (ast.Expr, error) {
	x, err := p.product()
	if err != nil || !p.cur().Is("~") {
		return x, err
	}
	list := []ast.Expr{x}
	for p.skipOp("~") {
		y, err := p.product()
		if err != nil {
			return nil, err
		}
		list = append(list, y)
	}
	return &ast.Concat{List: list}, nil
}

func (p *parser) product() (ast.Expr, error) { return p.binary(p.power, "*", "/", "//", "%") }

// power is left-associative and weaker than unary minus, unlike Python's.
func (p *parser) power() (ast.Expr, error) {
	return p.binary(func() (ast.Expr, error) { return p.unary(true) }, "**")
}

func (p *parser) unary(withFilter bool) (ast.Expr, error) {
	t := p.cur()
	var x ast.Expr
	var err error
	if t.Is("-") || t.Is("+") {
		if err := p.enter(); err != nil {
			return nil, err
		}
		defer p.leave()
		p.next()
		x, err = p.unary(false)
		x = &ast.Unary{Negative: t.Text == "-", X: x}
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

func (p *parser) primary() (ast.Expr, error) {
	t := p.cur()
	switch {
	case t.Kind == lexer.Name:
		p.next()
		if v, ok := constants[t.Text]; ok {
			return &ast.Const{Value: v}, nil
		}
		return &ast.Name{Name: t.Text}, nil
	case t.Kind == lexer.String:
		if p.next(); p.cur().Kind != lexer.String {
			return &ast.Const{Value: values.Str(t.Text)}, nil
		}
		joined := []byte(t.Text)
		for p.cur().Kind == lexer.String {
			joined = append(joined, p.next().Text...)
		}
		return &ast.Const{Value: values.Str(string(joined))}, nil
	case t.Kind == lexer.Integer:
		p.next()
		v, ok := lexer.ParseInteger(t.Text)
		if !ok {
			return nil, values.ErrorAt(t.Line, "invalid integer")
		}
		return &ast.Const{Value: v}, nil
	case t.Kind == lexer.Float:
		p.next()
		// Out of range is infinity, as in Python; the lexer lets nothing else through.
		f, _ := strconv.ParseFloat(t.Text, 64)
		return &ast.Const{Value: values.Float(f)}, nil
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
		return &ast.List{List: list}, err
	case t.Is("{"):
		p.next()
		return p.dict()
	}
	return nil, values.ErrorAt(t.Line, "unexpected %s", t.Describe())
}

// exprList parses expressions up to the closing bracket, which it consumes.
func (p *parser) exprList(closing string) ([]ast.Expr, error) {
	var list []ast.Expr
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

func (p *parser) dict() (ast.Expr, error) {
	var pairs []ast.Pair
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
		pairs = append(pairs, ast.Pair{Key: key, Value: value})
		if !p.skipOp(",") {
			break
		}
	}
	return &ast.Dict{Pairs: pairs}, p.expectOp("}")
}

// tupleOrExpr parses an expression, or a tuple if commas follow; only in parentheses may it be
// empty.
func (p *parser) tupleOrExpr(cond bool, ends []string, parentheses bool) (ast.Expr, error) {
	var list []ast.Expr
	isTuple := false
	for {
		t := p.cur()
		if t.Kind == lexer.VariableEnd || t.Kind == lexer.BlockEnd || t.Is(")") ||
			contains(ends, t) {
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
		return nil, values.ErrorAt(p.cur().Line, "expected an expression, got %s",
			p.cur().Describe())
	}
	return &ast.Tuple{List: list}, nil
}

func (p *parser) postfix(x ast.Expr) (ast.Expr, error) {
	for {
		t := p.cur()
		var err error
		switch {
		case t.Is("."):
			p.next()
			x, err = p.attribute(x, t.Line)
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

func (p *parser) attribute(x ast.Expr, line int) (ast.Expr, error) {
	t := p.next()
	switch t.Kind {
	case lexer.Name:
		return &ast.Attr{X: x, Name: t.Text, Line: line}, nil
	case lexer.Integer:
		v, ok := lexer.ParseInteger(t.Text)
		if !ok {
			return nil, values.ErrorAt(t.Line, "invalid integer")
		}
		return &ast.Item{X: x, Key: &ast.Const{Value: v}, Line: line}, nil
	}
	return nil, values.ErrorAt(t.Line, "expected name or number after '.', got %s", t.Describe())
}

func (p *parser) subscript(x ast.Expr, line int) (ast.Expr, error) {
	var key ast.Expr
	var err error
	if !p.cur().Is(":") {
		if key, err = p.expression(true); err != nil {
			return nil, err
		}
		if p.cur().Is(",") {
			p.next()
			rest, err := p.exprList("]")
			return &ast.Item{X: x, Key: &ast.Tuple{List: append([]ast.Expr{key}, rest...)},
				Line: line}, err
		}
		if !p.cur().Is(":") {
			return &ast.Item{X: x, Key: key, Line: line}, p.expectOp("]")
		}
	}
	s := &ast.Slice{X: x, Low: key, Line: line}
	p.next()
	for _, part := range []*ast.Expr{&s.High, &s.Step} {
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
