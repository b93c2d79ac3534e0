package parser

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/chattemplate/ast"
	"github.com/eagleray/eagleray/internal/text/chattemplate/lexer"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// Parsed is a template whose names are bound.
type Parsed struct {
	Body []ast.Stmt
	// Slots is the number of variables of the outermost scope.
	Slots int
	// Reads are the names that it reads of what it is given, and those of loops and parameters.
	Reads map[string]bool
}

// Parse parses a template and binds its names. The error, if any, is an *Error.
func Parse(source string) (*Parsed, error) {
	tokens, err := lexer.Lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, err := p.parseTemplate()
	if err != nil {
		return nil, values.AtColumn(err, p.cur().Line, p.cur().Column)
	}
	root := &scope{}
	r := &resolver{scope: root}
	if err := r.body(body); err != nil {
		return nil, err
	}
	return &Parsed{Body: body, Slots: root.size(), Reads: r.variables()}, nil
}

func (p *parser) parseTemplate() ([]ast.Stmt, error) {
	body, _, err := p.statements(nil)
	return body, err
}

func contains(names []string, t lexer.Token) bool {
	if t.Kind != lexer.Name {
		return false
	}
	return slices.Contains(names, t.Text)
}

// statements parses up to a tag named in ends, which it consumes and returns; with no ends, up to
// the end of the template.
func (p *parser) statements(ends []string) ([]ast.Stmt, string, error) {
	if err := p.enter(); err != nil {
		return nil, "", err
	}
	defer p.leave()
	var body []ast.Stmt
	for {
		t := p.cur()
		switch t.Kind {
		case lexer.EOF:
			if ends != nil {
				return nil, "", values.ErrorAt(t.Line,
					"unexpected end of template, looking for '%s'", ends[len(ends)-1])
			}
			return body, "", nil
		case lexer.Data:
			p.next()
			body = append(body, &ast.Data{Text: t.Text})
		case lexer.VariableBegin:
			p.next()
			x, err := p.tupleOrExpr(true, nil, false)
			if err != nil {
				return nil, "", err
			}
			if err := p.expect(lexer.VariableEnd); err != nil {
				return nil, "", err
			}
			body = append(body, &ast.Output{X: x, Line: t.Line})
		default: // BlockBegin: nothing else can stand outside a tag
			p.next()
			if contains(ends, p.cur()) {
				return body, p.next().Text, nil
			}
			s, err := p.statement()
			if err != nil {
				return nil, "", err
			}
			if err := p.expect(lexer.BlockEnd); err != nil {
				return nil, "", err
			}
			body = append(body, s...)
		}
	}
}

// block parses the rest of an opening tag and its body, up to a tag named in ends.
func (p *parser) block(ends ...string) ([]ast.Stmt, string, error) {
	p.skipOp(":")
	if err := p.expect(lexer.BlockEnd); err != nil {
		return nil, "", err
	}
	return p.statements(ends)
}

func (p *parser) statement() ([]ast.Stmt, error) {
	t, err := p.expectName()
	if err != nil {
		return nil, values.ErrorAt(t.Line, "tag name expected, got %s", t.Describe())
	}
	var s ast.Stmt
	switch t.Text {
	case "if":
		s, err = p.ifTag()
	case "for":
		s, err = p.forTag(t.Line)
	case "set":
		s, err = p.setTag(t.Line)
	case "macro":
		s, err = p.macroTag(t.Line)
	case "call":
		s, err = p.callTag(t.Line)
	case "filter":
		s, err = p.filterTag(t.Line)
	case "with":
		s, err = p.withTag(t.Line)
	case "print":
		return p.printTag(t.Line)
	case "break":
		return []ast.Stmt{&ast.LoopControl{Control: ast.Break, Line: t.Line}}, nil
	case "continue":
		return []ast.Stmt{&ast.LoopControl{Control: ast.Continue, Line: t.Line}}, nil
	case "generation":
		body, _, err := p.block("endgeneration")
		return []ast.Stmt{&ast.Generation{Body: body}}, err
	case "block", "extends", "include", "import", "from", "autoescape":
		return nil, values.ErrorAt(t.Line, "tag '%s' is not supported in chat templates", t.Text)
	default:
		return nil, values.ErrorAt(t.Line, "encountered unknown tag '%s'", t.Text)
	}
	return []ast.Stmt{s}, err
}

func (p *parser) printTag(line int) ([]ast.Stmt, error) {
	var out []ast.Stmt
	for p.cur().Kind != lexer.BlockEnd {
		if out != nil {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		x, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		out = append(out, &ast.Output{X: x, Line: line})
	}
	return out, nil
}

func (p *parser) ifTag() (ast.Stmt, error) {
	s := &ast.If{}
	for {
		line := p.cur().Line
		cond, err := p.tupleOrExpr(false, nil, false)
		if err != nil {
			return nil, err
		}
		body, end, err := p.block("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		s.Branches = append(s.Branches, ast.IfBranch{Cond: cond, Body: body, Line: line})
		switch end {
		case "elif":
			continue
		case "else":
			s.Otherwise, _, err = p.block("endif")
		}
		return s, err
	}
}

func (p *parser) forTag(line int) (ast.Stmt, error) {
	s := &ast.For{Line: line, LoopSlot: -1}
	var err error
	if s.Target, err = p.assignTarget(false, "in"); err != nil {
		return nil, err
	}
	if !p.skipName("in") {
		return nil, values.ErrorAt(p.cur().Line, "expected 'in', got %s", p.cur().Describe())
	}
	if s.Iter, err = p.tupleOrExpr(false, []string{"recursive"}, false); err != nil {
		return nil, err
	}
	if p.skipName("if") {
		if s.Test, err = p.expression(true); err != nil {
			return nil, err
		}
		s.TestTarget = s.Target.Copied()
	}
	if p.cur().Named("recursive") {
		return nil, values.ErrorAt(line, "recursive loops are not supported")
	}
	var end string
	if s.Body, end, err = p.block("endfor", "else"); err != nil {
		return nil, err
	}
	if end == "else" {
		s.Otherwise, _, err = p.block("endfor")
	}
	return s, err
}

func (p *parser) setTag(line int) (ast.Stmt, error) {
	target, err := p.assignTarget(true, "")
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		x, err := p.tupleOrExpr(true, nil, false)
		return &ast.Set{Target: target, X: x, Line: line}, err
	}
	s := &ast.SetBlock{Target: target, Line: line}
	if p.cur().Is("|") {
		s.Outer, s.Filter, err = p.filterChain(false)
		if err != nil {
			return nil, err
		}
	}
	s.Body, _, err = p.block("endset")
	return s, err
}

// filterChain parses filters that apply to a block. It returns the outermost and the innermost
// filter.
func (p *parser) filterChain(startInline bool) (ast.Expr, *ast.Filter, error) {
	var outer ast.Expr
	var inner *ast.Filter
	for n := 0; startInline || p.cur().Is("|"); n++ {
		if n > maxNesting {
			return nil, nil, values.ErrorAt(p.cur().Line, "template is nested too deeply")
		}
		if !startInline {
			p.next()
		}
		startInline = false
		f, err := p.filter(outer)
		if err != nil {
			return nil, nil, err
		}
		if inner == nil {
			inner = f
		}
		outer = f
	}
	return outer, inner, nil
}

func (p *parser) filterTag(line int) (ast.Stmt, error) {
	outer, inner, err := p.filterChain(true)
	if err != nil {
		return nil, err
	}
	body, _, err := p.block("endfilter")
	return &ast.FilterBlock{Filter: inner, Outer: outer, Body: body, Line: line}, err
}

func (p *parser) withTag(line int) (ast.Stmt, error) {
	s := &ast.With{Line: line}
	for p.cur().Kind != lexer.BlockEnd {
		if len(s.Targets) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		target, err := p.assignTarget(false, "")
		if err != nil {
			return nil, err
		}
		if err := p.expectOp("="); err != nil {
			return nil, err
		}
		x, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		s.Targets, s.Values = append(s.Targets, target), append(s.Values, x)
	}
	var err error
	s.Body, _, err = p.block("endwith")
	return s, err
}

func (p *parser) macroTag(line int) (ast.Stmt, error) {
	name, err := p.expectName()
	if err != nil {
		return nil, err
	}
	def := newMacroDef(name.Text, line)
	if err := p.signature(def); err != nil {
		return nil, err
	}
	def.Body, _, err = p.block("endmacro")
	return &ast.Macro{Def: def}, err
}

func newMacroDef(name string, line int) *ast.MacroDef {
	return &ast.MacroDef{Name: name, Line: line, Caller: -1, Varargs: -1, Kwargs: -1}
}

func (p *parser) signature(def *ast.MacroDef) error {
	if err := p.expectOp("("); err != nil {
		return err
	}
	for !p.cur().Is(")") {
		if len(def.Params) > 0 {
			if err := p.expectOp(","); err != nil {
				return err
			}
		}
		name, err := p.expectName()
		if err != nil {
			return err
		}
		q := ast.Param{Name: name.Text}
		if p.skipOp("=") {
			if q.Fallback, err = p.expression(true); err != nil {
				return err
			}
		} else if n := len(def.Params); n > 0 && def.Params[n-1].Fallback != nil {
			return values.ErrorAt(name.Line, "non-default argument follows default argument")
		}
		for _, other := range def.Params {
			if other.Name == q.Name {
				return values.ErrorAt(name.Line, "duplicate argument '%s' in macro definition",
					q.Name)
			}
		}
		if q.Name == "caller" {
			if q.Fallback == nil {
				return values.ErrorAt(name.Line,
					"the special argument 'caller' must have a default")
			}
			def.Explicit = true
		}
		def.Params = append(def.Params, q)
	}
	return p.expectOp(")")
}

func (p *parser) callTag(line int) (ast.Stmt, error) {
	def := newMacroDef("caller", line)
	if p.cur().Is("(") {
		if err := p.signature(def); err != nil {
			return nil, err
		}
	}
	x, err := p.expression(true)
	if err != nil {
		return nil, err
	}
	call, ok := x.(*ast.Call)
	if !ok {
		return nil, values.ErrorAt(line, "expected a call")
	}
	def.Body, _, err = p.block("endcall")
	return &ast.CallBlock{Def: def, Call: call, Line: line}, err
}

// assignTarget parses what an assignment binds, up to the name end if one is given.
func (p *parser) assignTarget(withNamespace bool, end string) (ast.Target, error) {
	line := p.cur().Line
	var list []ast.Target
	isTuple := false
	for {
		t := p.cur()
		if t.Kind == lexer.VariableEnd || t.Kind == lexer.BlockEnd || t.Is(")") ||
			end != "" && t.Named(end) {
			break
		}
		one, err := p.oneTarget(withNamespace)
		if err != nil {
			return ast.Target{}, err
		}
		list = append(list, one)
		if !p.skipOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple && len(list) == 1 {
		return list[0], nil
	}
	if !isTuple {
		return ast.Target{}, values.ErrorAt(line, "expected a name to assign to, got %s",
			p.cur().Describe())
	}
	return ast.Target{Tuple: list, Line: line}, nil
}

func (p *parser) oneTarget(withNamespace bool) (ast.Target, error) {
	t := p.cur()
	if t.Is("(") {
		if err := p.enter(); err != nil {
			return ast.Target{}, err
		}
		defer p.leave()
		p.next()
		inner, err := p.assignTarget(withNamespace, "")
		if err != nil {
			return ast.Target{}, err
		}
		return inner, p.expectOp(")")
	}
	if t.Kind != lexer.Name {
		return ast.Target{}, values.ErrorAt(t.Line, "can't assign to %s", t.Describe())
	}
	if _, isConst := constants[t.Text]; isConst {
		return ast.Target{}, values.ErrorAt(t.Line, "can't assign to '%s'", t.Text)
	}
	p.next()
	if withNamespace && p.skipOp(".") {
		attr, err := p.expectName()
		return ast.Target{Space: &ast.Name{Name: t.Text}, Attr: attr.Text, Line: t.Line}, err
	}
	return ast.Target{Name: t.Text, Line: t.Line}, nil
}
