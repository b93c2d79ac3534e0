// Package parser makes the syntax tree of a template and binds its names.
package parser

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/lexer"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// maxNesting bounds a template's syntax tree.
const maxNesting = 250

// parser is a recursive-descent parser of jinja2's grammar.
type parser struct {
	tokens []lexer.Token
	pos    int
	depth  int
}

func (p *parser) cur() lexer.Token { return p.tokens[p.pos] }

func (p *parser) peek() lexer.Token {
	if p.pos+1 < len(p.tokens) {
		return p.tokens[p.pos+1]
	}
	return p.tokens[p.pos]
}

func (p *parser) next() lexer.Token {
	t := p.tokens[p.pos]
	if p.pos+1 < len(p.tokens) {
		p.pos++
	}
	return t
}

func (p *parser) skipName(name string) bool {
	if p.cur().Named(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipOp(op string) bool {
	if p.cur().Is(op) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expectOp(op string) error {
	if !p.skipOp(op) {
		return values.ErrorAt(p.cur().Line, "expected '%s', got %s", op, p.cur().Describe())
	}
	return nil
}

func (p *parser) expectName() (lexer.Token, error) {
	t := p.cur()
	if t.Kind != lexer.Name {
		return t, values.ErrorAt(t.Line, "expected a name, got %s", t.Describe())
	}
	p.next()
	return t, nil
}

func (p *parser) expect(k lexer.Kind) error {
	if t := p.cur(); t.Kind != k {
		return values.ErrorAt(t.Line, "expected %s, got %s", lexer.Token{Kind: k}.Describe(),
			t.Describe())
	}
	p.next()
	return nil
}

// enter bounds the parser's own recursion; leave undoes it.
func (p *parser) enter() error {
	p.depth++
	if p.depth > maxNesting {
		return values.ErrorAt(p.cur().Line, "template is nested too deeply")
	}
	return nil
}

func (p *parser) leave() { p.depth-- }
