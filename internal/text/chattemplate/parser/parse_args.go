package parser

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/ast"
	"github.com/eagleray/eagleray/internal/text/chattemplate/builtins"
	"github.com/eagleray/eagleray/internal/text/chattemplate/lexer"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

func (p *parser) call(fn ast.Expr) (ast.Expr, error) {
	line := p.cur().Line
	args, err := p.arguments()
	return &ast.Call{Fn: fn, Args: args, Line: line}, err
}

func (p *parser) arguments() (ast.Arguments, error) {
	var a ast.Arguments
	line := p.next().Line
	bad := values.ErrorAt(line, "invalid syntax for function call expression")
	for n := 0; !p.cur().Is(")"); n++ {
		if n > 0 {
			if err := p.expectOp(","); err != nil {
				return a, err
			}
			if p.cur().Is(")") {
				break
			}
		}
		var err error
		switch {
		case p.cur().Is("*"):
			if a.Star != nil || a.DoubleStar != nil {
				return a, bad
			}
			p.next()
			a.Star, err = p.expression(true)
		case p.cur().Is("**"):
			if a.DoubleStar != nil {
				return a, bad
			}
			p.next()
			a.DoubleStar, err = p.expression(true)
		case p.cur().Kind == lexer.Name && p.peek().Is("="):
			if a.DoubleStar != nil {
				return a, bad
			}
			k := ast.Keyword{Name: p.next().Text}
			p.next()
			for _, other := range a.Keywords {
				if other.Name == k.Name {
					return a, values.ErrorAt(line, "keyword argument repeated: %s", k.Name)
				}
			}
			k.X, err = p.expression(true)
			a.Keywords = append(a.Keywords, k)
		default:
			if a.Star != nil || a.DoubleStar != nil || a.Keywords != nil {
				return a, bad
			}
			var x ast.Expr
			x, err = p.expression(true)
			a.Positional = append(a.Positional, x)
		}
		if err != nil {
			return a, err
		}
	}
	return a, p.expectOp(")")
}

func (p *parser) filters(x ast.Expr) (ast.Expr, error) {
	for {
		t := p.cur()
		var err error
		switch {
		case t.Is("|"):
			p.next()
			x, err = p.filter(x)
		case t.Named("is"):
			x, err = p.test(x)
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

func (p *parser) dottedName() (string, error) {
	t, err := p.expectName()
	name := t.Text
	for err == nil && p.skipOp(".") {
		t, err = p.expectName()
		name += "." + t.Text
	}
	return name, err
}

func (p *parser) filter(x ast.Expr) (*ast.Filter, error) {
	f := &ast.Filter{X: x, Line: p.cur().Line}
	var err error
	if f.Name, err = p.dottedName(); err != nil {
		return nil, err
	}
	f.Fn = builtins.Filter(f.Name)
	if p.cur().Is("(") {
		f.Args, err = p.arguments()
	}
	return f, err
}

func (p *parser) test(x ast.Expr) (ast.Expr, error) {
	t := &ast.Test{X: x, Line: p.next().Line}
	negated := p.skipName("not")
	var err error
	if t.Name, err = p.dottedName(); err != nil {
		return nil, err
	}
	t.Fn = builtins.Test(t.Name)
	switch c := p.cur(); {
	case c.Is("("):
		t.Args, err = p.arguments()
	case c.Kind == lexer.Name && (c.Text == "else" || c.Text == "or" || c.Text == "and"):
	case c.Named("is"):
		return nil, values.ErrorAt(c.Line, "you cannot chain multiple tests with is")
	case c.Kind == lexer.Name || c.Kind == lexer.String || c.Kind == lexer.Integer ||
		c.Kind == lexer.Float || c.Is("[") || c.Is("{"):
		var arg ast.Expr
		if arg, err = p.primary(); err == nil {
			arg, err = p.postfix(arg)
		}
		t.Args.Positional = []ast.Expr{arg}
	}
	if negated {
		return &ast.Not{X: t}, err
	}
	return t, err
}
