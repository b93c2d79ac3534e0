package chattemplate

// maxNesting bounds a template's syntax tree.
const maxNesting = 250

// parser is a recursive-descent parser of jinja2's grammar.
type parser struct {
	tokens []token
	pos    int
	depth  int
}

// parse parses a template and binds its names; slots is the number of variables of its outermost scope.
// The error, if any, is an *Error.
func parse(source string) (body []stmt, slots int, err error) {
	tokens, err := lex(source)
	if err != nil {
		return nil, 0, err
	}
	p := &parser{tokens: tokens}
	if body, err = p.parseTemplate(); err != nil {
		return nil, 0, err
	}
	root := &scope{}
	r := &resolver{scope: root}
	if err := r.body(body); err != nil {
		return nil, 0, err
	}
	return body, root.size(), nil
}

func (p *parser) cur() token { return p.tokens[p.pos] }

func (p *parser) peek() token {
	if p.pos+1 < len(p.tokens) {
		return p.tokens[p.pos+1]
	}
	return p.tokens[p.pos]
}

func (p *parser) next() token {
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
		return ErrorAt(p.cur().Line, "expected '%s', got %s", op, p.cur().Describe())
	}
	return nil
}

func (p *parser) expectName() (token, error) {
	t := p.cur()
	if t.Kind != tokName {
		return t, ErrorAt(t.Line, "expected a name, got %s", t.Describe())
	}
	p.next()
	return t, nil
}

func (p *parser) expect(k tokenKind) error {
	if t := p.cur(); t.Kind != k {
		return ErrorAt(t.Line, "expected %s, got %s", token{Kind: k}.Describe(), t.Describe())
	}
	p.next()
	return nil
}

// enter bounds the parser's own recursion; leave undoes it.
func (p *parser) enter() error {
	p.depth++
	if p.depth > maxNesting {
		return ErrorAt(p.cur().Line, "template is nested too deeply")
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

func (p *parser) parseTemplate() ([]stmt, error) {
	body, _, err := p.statements(nil)
	return body, err
}

func contains(names []string, t token) bool {
	if t.Kind != tokName {
		return false
	}
	for _, n := range names {
		if n == t.Text {
			return true
		}
	}
	return false
}

// statements parses up to a tag named in ends, which it consumes and returns; with no ends, up to the end of the template.
func (p *parser) statements(ends []string) ([]stmt, string, error) {
	if err := p.enter(); err != nil {
		return nil, "", err
	}
	defer p.leave()
	var body []stmt
	for {
		t := p.cur()
		switch t.Kind {
		case tokEOF:
			if ends != nil {
				return nil, "", ErrorAt(t.Line, "unexpected end of template, looking for '%s'", ends[len(ends)-1])
			}
			return body, "", nil
		case tokData:
			p.next()
			body = append(body, &dataStmt{Text: t.Text})
		case tokVariableBegin:
			p.next()
			x, err := p.tupleOrExpr(true, nil, false)
			if err != nil {
				return nil, "", err
			}
			if err := p.expect(tokVariableEnd); err != nil {
				return nil, "", err
			}
			body = append(body, &outputStmt{X: x, Line: t.Line})
		default: // tokBlockBegin: nothing else can stand outside a tag
			p.next()
			if contains(ends, p.cur()) {
				return body, p.next().Text, nil
			}
			s, err := p.statement()
			if err != nil {
				return nil, "", err
			}
			if err := p.expect(tokBlockEnd); err != nil {
				return nil, "", err
			}
			body = append(body, s...)
		}
	}
}

// block parses the rest of an opening tag and its body, up to a tag named in ends.
func (p *parser) block(ends ...string) ([]stmt, string, error) {
	p.skipOp(":")
	if err := p.expect(tokBlockEnd); err != nil {
		return nil, "", err
	}
	return p.statements(ends)
}

func (p *parser) statement() ([]stmt, error) {
	t, err := p.expectName()
	if err != nil {
		return nil, ErrorAt(t.Line, "tag name expected, got %s", t.Describe())
	}
	var s stmt
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
		return []stmt{&loopControlStmt{Control: controlBreak, Line: t.Line}}, nil
	case "continue":
		return []stmt{&loopControlStmt{Control: controlContinue, Line: t.Line}}, nil
	case "generation":
		body, _, err := p.block("endgeneration")
		return []stmt{&scopeStmt{Body: body}}, err
	case "block", "extends", "include", "import", "from", "autoescape":
		return nil, ErrorAt(t.Line, "tag '%s' is not supported in chat templates", t.Text)
	default:
		return nil, ErrorAt(t.Line, "encountered unknown tag '%s'", t.Text)
	}
	return []stmt{s}, err
}

func (p *parser) printTag(line int) ([]stmt, error) {
	var out []stmt
	for p.cur().Kind != tokBlockEnd {
		if out != nil {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		x, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		out = append(out, &outputStmt{X: x, Line: line})
	}
	return out, nil
}

func (p *parser) ifTag() (stmt, error) {
	s := &ifStmt{}
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
		s.Branches = append(s.Branches, ifBranch{Cond: cond, Body: body, Line: line})
		switch end {
		case "elif":
			continue
		case "else":
			s.Otherwise, _, err = p.block("endif")
		}
		return s, err
	}
}

func (p *parser) forTag(line int) (stmt, error) {
	s := &forStmt{Line: line, LoopSlot: -1}
	var err error
	if s.Target, err = p.assignTarget(false, "in"); err != nil {
		return nil, err
	}
	if !p.skipName("in") {
		return nil, ErrorAt(p.cur().Line, "expected 'in', got %s", p.cur().Describe())
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
		return nil, ErrorAt(line, "recursive loops are not supported")
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

func (p *parser) setTag(line int) (stmt, error) {
	target, err := p.assignTarget(true, "")
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		x, err := p.tupleOrExpr(true, nil, false)
		return &setStmt{Target: target, X: x, Line: line}, err
	}
	s := &setBlockStmt{Target: target, Line: line}
	if p.cur().Is("|") {
		s.Outer, s.Filter, err = p.filterChain(false)
		if err != nil {
			return nil, err
		}
	}
	s.Body, _, err = p.block("endset")
	return s, err
}

// filterChain parses filters that apply to a block. It returns the outermost and the innermost filter.
func (p *parser) filterChain(startInline bool) (expr, *filterExpr, error) {
	var outer expr
	var inner *filterExpr
	for n := 0; startInline || p.cur().Is("|"); n++ {
		if n > maxNesting {
			return nil, nil, ErrorAt(p.cur().Line, "template is nested too deeply")
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

func (p *parser) filterTag(line int) (stmt, error) {
	outer, inner, err := p.filterChain(true)
	if err != nil {
		return nil, err
	}
	body, _, err := p.block("endfilter")
	return &filterStmt{Filter: inner, Outer: outer, Body: body, Line: line}, err
}

func (p *parser) withTag(line int) (stmt, error) {
	s := &withStmt{Line: line}
	for p.cur().Kind != tokBlockEnd {
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

func (p *parser) macroTag(line int) (stmt, error) {
	name, err := p.expectName()
	if err != nil {
		return nil, err
	}
	def := newMacroDef(name.Text, line)
	if err := p.signature(def); err != nil {
		return nil, err
	}
	def.Body, _, err = p.block("endmacro")
	return &macroStmt{Def: def}, err
}

func newMacroDef(name string, line int) *macroDef {
	return &macroDef{Name: name, Line: line, Caller: -1, Varargs: -1, Kwargs: -1}
}

func (p *parser) signature(def *macroDef) error {
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
		q := param{Name: name.Text}
		if p.skipOp("=") {
			if q.Fallback, err = p.expression(true); err != nil {
				return err
			}
		} else if n := len(def.Params); n > 0 && def.Params[n-1].Fallback != nil {
			return ErrorAt(name.Line, "non-default argument follows default argument")
		}
		for _, other := range def.Params {
			if other.Name == q.Name {
				return ErrorAt(name.Line, "duplicate argument '%s' in macro definition", q.Name)
			}
		}
		if q.Name == "caller" {
			if q.Fallback == nil {
				return ErrorAt(name.Line, "the special argument 'caller' must have a default")
			}
			def.Explicit = true
		}
		def.Params = append(def.Params, q)
	}
	return p.expectOp(")")
}

func (p *parser) callTag(line int) (stmt, error) {
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
	call, ok := x.(*callExpr)
	if !ok {
		return nil, ErrorAt(line, "expected a call")
	}
	def.Body, _, err = p.block("endcall")
	return &callStmt{Def: def, Call: call, Line: line}, err
}

// assignTarget parses what an assignment binds, up to the name end if one is given.
func (p *parser) assignTarget(withNamespace bool, end string) (target, error) {
	line := p.cur().Line
	var list []target
	isTuple := false
	for {
		t := p.cur()
		if t.Kind == tokVariableEnd || t.Kind == tokBlockEnd || t.Is(")") || end != "" && t.Named(end) {
			break
		}
		one, err := p.oneTarget(withNamespace)
		if err != nil {
			return target{}, err
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
		return target{}, ErrorAt(line, "expected a name to assign to, got %s", p.cur().Describe())
	}
	return target{Tuple: list, Line: line}, nil
}

func (p *parser) oneTarget(withNamespace bool) (target, error) {
	t := p.cur()
	if t.Is("(") {
		if err := p.enter(); err != nil {
			return target{}, err
		}
		defer p.leave()
		p.next()
		inner, err := p.assignTarget(withNamespace, "")
		if err != nil {
			return target{}, err
		}
		return inner, p.expectOp(")")
	}
	if t.Kind != tokName {
		return target{}, ErrorAt(t.Line, "can't assign to %s", t.Describe())
	}
	if _, isConst := constants[t.Text]; isConst {
		return target{}, ErrorAt(t.Line, "can't assign to '%s'", t.Text)
	}
	p.next()
	if withNamespace && p.skipOp(".") {
		attr, err := p.expectName()
		return target{Space: &nameExpr{Name: t.Text}, Attr: attr.Text, Line: t.Line}, err
	}
	return target{Name: t.Text, Line: t.Line}, nil
}
