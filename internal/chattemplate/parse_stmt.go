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
	if p.cur().named(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipOp(op string) bool {
	if p.cur().is(op) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expectOp(op string) error {
	if !p.skipOp(op) {
		return errorAt(p.cur().line, "expected '%s', got %s", op, p.cur().describe())
	}
	return nil
}

func (p *parser) expectName() (token, error) {
	t := p.cur()
	if t.kind != tokName {
		return t, errorAt(t.line, "expected a name, got %s", t.describe())
	}
	p.next()
	return t, nil
}

func (p *parser) expect(k tokenKind) error {
	if t := p.cur(); t.kind != k {
		return errorAt(t.line, "expected %s, got %s", token{kind: k}.describe(), t.describe())
	}
	p.next()
	return nil
}

// enter bounds the parser's own recursion; leave undoes it.
func (p *parser) enter() error {
	p.depth++
	if p.depth > maxNesting {
		return errorAt(p.cur().line, "template is nested too deeply")
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

func (p *parser) parseTemplate() ([]stmt, error) {
	body, _, err := p.statements(nil)
	return body, err
}

func contains(names []string, t token) bool {
	if t.kind != tokName {
		return false
	}
	for _, n := range names {
		if n == t.text {
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
		switch t.kind {
		case tokEOF:
			if ends != nil {
				return nil, "", errorAt(t.line, "unexpected end of template, looking for '%s'", ends[len(ends)-1])
			}
			return body, "", nil
		case tokData:
			p.next()
			body = append(body, &dataStmt{t.text})
		case tokVariableBegin:
			p.next()
			x, err := p.tupleOrExpr(true, nil, false)
			if err != nil {
				return nil, "", err
			}
			if err := p.expect(tokVariableEnd); err != nil {
				return nil, "", err
			}
			body = append(body, &outputStmt{x, t.line})
		default: // tokBlockBegin: nothing else can stand outside a tag
			p.next()
			if contains(ends, p.cur()) {
				return body, p.next().text, nil
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
		return nil, errorAt(t.line, "tag name expected, got %s", t.describe())
	}
	var s stmt
	switch t.text {
	case "if":
		s, err = p.ifTag()
	case "for":
		s, err = p.forTag(t.line)
	case "set":
		s, err = p.setTag(t.line)
	case "macro":
		s, err = p.macroTag(t.line)
	case "call":
		s, err = p.callTag(t.line)
	case "filter":
		s, err = p.filterTag(t.line)
	case "with":
		s, err = p.withTag(t.line)
	case "print":
		return p.printTag(t.line)
	case "break":
		return []stmt{&loopControlStmt{controlBreak, t.line}}, nil
	case "continue":
		return []stmt{&loopControlStmt{controlContinue, t.line}}, nil
	case "generation":
		body, _, err := p.block("endgeneration")
		return []stmt{&scopeStmt{body: body}}, err
	case "block", "extends", "include", "import", "from", "autoescape":
		return nil, errorAt(t.line, "tag '%s' is not supported in chat templates", t.text)
	default:
		return nil, errorAt(t.line, "encountered unknown tag '%s'", t.text)
	}
	return []stmt{s}, err
}

func (p *parser) printTag(line int) ([]stmt, error) {
	var out []stmt
	for p.cur().kind != tokBlockEnd {
		if out != nil {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		x, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		out = append(out, &outputStmt{x, line})
	}
	return out, nil
}

func (p *parser) ifTag() (stmt, error) {
	s := &ifStmt{}
	for {
		line := p.cur().line
		cond, err := p.tupleOrExpr(false, nil, false)
		if err != nil {
			return nil, err
		}
		body, end, err := p.block("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		s.branches = append(s.branches, ifBranch{cond, body, line})
		switch end {
		case "elif":
			continue
		case "else":
			s.otherwise, _, err = p.block("endif")
		}
		return s, err
	}
}

func (p *parser) forTag(line int) (stmt, error) {
	s := &forStmt{line: line, loopSlot: -1}
	var err error
	if s.target, err = p.assignTarget(false, "in"); err != nil {
		return nil, err
	}
	if !p.skipName("in") {
		return nil, errorAt(p.cur().line, "expected 'in', got %s", p.cur().describe())
	}
	if s.iter, err = p.tupleOrExpr(false, []string{"recursive"}, false); err != nil {
		return nil, err
	}
	if p.skipName("if") {
		if s.test, err = p.expression(true); err != nil {
			return nil, err
		}
		s.testTarget = s.target.copied()
	}
	if p.cur().named("recursive") {
		return nil, errorAt(line, "recursive loops are not supported")
	}
	var end string
	if s.body, end, err = p.block("endfor", "else"); err != nil {
		return nil, err
	}
	if end == "else" {
		s.otherwise, _, err = p.block("endfor")
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
		return &setStmt{target, x, line}, err
	}
	s := &setBlockStmt{target: target, line: line}
	if p.cur().is("|") {
		s.outer, s.filter, err = p.filterChain(false)
		if err != nil {
			return nil, err
		}
	}
	s.body, _, err = p.block("endset")
	return s, err
}

// filterChain parses filters that apply to a block. It returns the outermost and the innermost filter.
func (p *parser) filterChain(startInline bool) (expr, *filterExpr, error) {
	var outer expr
	var inner *filterExpr
	for n := 0; startInline || p.cur().is("|"); n++ {
		if n > maxNesting {
			return nil, nil, errorAt(p.cur().line, "template is nested too deeply")
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
	return &filterStmt{filter: inner, outer: outer, body: body, line: line}, err
}

func (p *parser) withTag(line int) (stmt, error) {
	s := &withStmt{line: line}
	for p.cur().kind != tokBlockEnd {
		if len(s.targets) > 0 {
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
		s.targets, s.values = append(s.targets, target), append(s.values, x)
	}
	var err error
	s.body, _, err = p.block("endwith")
	return s, err
}

func (p *parser) macroTag(line int) (stmt, error) {
	name, err := p.expectName()
	if err != nil {
		return nil, err
	}
	def := newMacroDef(name.text, line)
	if err := p.signature(def); err != nil {
		return nil, err
	}
	def.body, _, err = p.block("endmacro")
	return &macroStmt{def: def}, err
}

func newMacroDef(name string, line int) *macroDef {
	return &macroDef{name: name, line: line, caller: -1, varargs: -1, kwargs: -1}
}

func (p *parser) signature(def *macroDef) error {
	if err := p.expectOp("("); err != nil {
		return err
	}
	for !p.cur().is(")") {
		if len(def.params) > 0 {
			if err := p.expectOp(","); err != nil {
				return err
			}
		}
		name, err := p.expectName()
		if err != nil {
			return err
		}
		q := param{name: name.text}
		if p.skipOp("=") {
			if q.fallback, err = p.expression(true); err != nil {
				return err
			}
		} else if n := len(def.params); n > 0 && def.params[n-1].fallback != nil {
			return errorAt(name.line, "non-default argument follows default argument")
		}
		for _, other := range def.params {
			if other.name == q.name {
				return errorAt(name.line, "duplicate argument '%s' in macro definition", q.name)
			}
		}
		if q.name == "caller" {
			if q.fallback == nil {
				return errorAt(name.line, "the special argument 'caller' must have a default")
			}
			def.explicit = true
		}
		def.params = append(def.params, q)
	}
	return p.expectOp(")")
}

func (p *parser) callTag(line int) (stmt, error) {
	def := newMacroDef("caller", line)
	if p.cur().is("(") {
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
		return nil, errorAt(line, "expected a call")
	}
	def.body, _, err = p.block("endcall")
	return &callStmt{def: def, call: call, line: line}, err
}

// assignTarget parses what an assignment binds, up to the name end if one is given.
func (p *parser) assignTarget(withNamespace bool, end string) (target, error) {
	line := p.cur().line
	var list []target
	isTuple := false
	for {
		t := p.cur()
		if t.kind == tokVariableEnd || t.kind == tokBlockEnd || t.is(")") || end != "" && t.named(end) {
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
		return target{}, errorAt(line, "expected a name to assign to, got %s", p.cur().describe())
	}
	return target{tuple: list, line: line}, nil
}

func (p *parser) oneTarget(withNamespace bool) (target, error) {
	t := p.cur()
	if t.is("(") {
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
	if t.kind != tokName {
		return target{}, errorAt(t.line, "can't assign to %s", t.describe())
	}
	if _, isConst := constants[t.text]; isConst {
		return target{}, errorAt(t.line, "can't assign to '%s'", t.text)
	}
	p.next()
	if withNamespace && p.skipOp(".") {
		attr, err := p.expectName()
		return target{space: &nameExpr{name: t.text}, attr: attr.text, line: t.line}, err
	}
	return target{name: t.text, line: t.line}, nil
}
