package ptx

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits on what a text may ask for, so that a broken one ends in an error.
const (
	maxVariable  = 1 << 31 // bytes
	maxRegisters = 1 << 17 // of one declaration
	maxDepth     = 64      // of braces
)

// parser reads a module's tokens.
type parser struct {
	tokens []token
	at     int
	lines  []string
	first  int // the number of the first of them
	mod    *Module
	depth  int
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) pop() token {
	t := p.tokens[p.at]
	if t.kind != endToken {
		p.at++
	}
	return t
}

// is says whether the next token is this word or character.
func (p *parser) is(text string) bool {
	t := p.peek()
	return t.kind != stringToken && t.kind != endToken && t.text == text
}

// accept moves past the next token if it is this one.
func (p *parser) accept(text string) bool {
	if !p.is(text) {
		return false
	}
	p.at++
	return true
}

func (p *parser) expect(text string) error {
	if p.accept(text) {
		return nil
	}
	return p.errorf("expected %q, found %q", text, p.peek().text)
}

func (p *parser) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", p.peek().line, fmt.Sprintf(format, args...))
}

// word is the next token, which must be one of letters.
func (p *parser) word() (string, error) {
	if t := p.peek(); t.kind != wordToken {
		return "", p.errorf("expected a name, found %q", t.text)
	}
	return p.pop().text, nil
}

// skipLine moves past all tokens of the line.
func (p *parser) skipLine() {
	line := p.peek().line
	for p.peek().kind != endToken && p.peek().line == line {
		p.at++
	}
}

// skipPast moves past the next such character.
func (p *parser) skipPast(text string) {
	for p.peek().kind != endToken && !p.accept(text) {
		p.at++
	}
}

// module reads all of a text.
func (p *parser) module() error {
	for p.peek().kind != endToken {
		if err := p.topLevel(); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) topLevel() error {
	switch t := p.peek(); t.text {
	case ".version":
		p.version(p.tokens[p.at+1].text)
		p.skipLine()
	case ".target":
		p.mod.target = p.tokens[p.at+1].text
		p.skipLine()
	case ".address_size", ".file":
		p.skipLine()
	case ".section":
		p.skipPast("}")
	case ".pragma", ".alias":
		p.skipPast(";")
	case ".visible", ".weak", ".common":
		p.pop()
	case ".extern":
		p.pop()
		return p.external()
	case ".entry", ".func":
		return p.function()
	case ".global", ".const", ".shared":
		return p.variables(p.mod.scope, false)
	default:
		return p.errorf("unknown directive %q", t.text)
	}
	return nil
}

// version notes the version that a text names.
func (p *parser) version(text string) {
	major, minor, _ := strings.Cut(text, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	if errA == nil && errB == nil {
		p.mod.version = a*10 + b
	}
}

func (p *parser) external() error {
	if p.is(".func") {
		return p.function()
	}
	return p.variables(p.mod.scope, true)
}

// function reads .entry or .func, a declaration or a definition.
func (p *parser) function() error {
	f := &function{line: p.peek().line, entry: p.pop().text == ".entry",
		scope: newScope(p.mod.scope)}
	var err error
	if !f.entry && p.is("(") {
		if f.returns, err = p.params(f.scope); err != nil {
			return err
		}
	}
	if f.name, err = p.word(); err != nil {
		return err
	}
	if p.is("(") {
		if f.params, err = p.params(f.scope); err != nil {
			return err
		}
	}
	if err := p.attributes(f); err != nil {
		return err
	}
	if p.accept(";") {
		return nil
	}
	if p.peek().kind == bodyToken {
		f.text = p.pop()
	} else if err := p.expect("{"); err != nil {
		return err
	}
	if f.entry && p.mod.entry(f.name) != nil || !f.entry && p.mod.functions[f.name] != nil {
		return p.errorf("%s is defined twice", f.name)
	}
	if f.entry {
		p.mod.entries = append(p.mod.entries, f)
	} else {
		p.mod.functions[f.name] = f
	}
	f.defined = true
	switch {
	case f.text.kind != bodyToken:
		return p.body(f)
	case hasGlobals(f.text.text):
		return p.mod.readBody(f)
	}
	return nil
}

// hasGlobals says whether a body declares variables of the module, as NVRTC and nvcc write it: one
// that does is read at once.
func hasGlobals(body string) bool {
	return strings.Contains(body, ".global .") || strings.Contains(body, ".const .")
}

// readBody reads a body that was left for later.
func (m *Module) readBody(f *function) error {
	t := f.text
	f.text = token{}
	tokens, err := lex(t.text+"}", t.line, false)
	if err != nil {
		return err
	}
	p := &parser{tokens: tokens, lines: strings.Split(t.text, "\n"), first: t.line, mod: m}
	return p.body(f)
}

// attributes reads what stands between a function's parameters and its body.
func (p *parser) attributes(f *function) error {
	for p.peek().kind == wordToken && strings.HasPrefix(p.peek().text, ".") {
		switch t := p.pop(); t.text {
		case ".pragma":
			p.skipPast(";")
		case ".maxntid", ".reqntid":
			if err := p.threads(f); err != nil {
				return err
			}
		default: // .minnctapersm 1, .noreturn, .explicitcluster, ...
			for p.peek().kind == wordToken && !strings.HasPrefix(p.peek().text, ".") {
				p.pop()
				if !p.accept(",") {
					break
				}
			}
		}
	}
	return nil
}

// threads reads the limits of .maxntid: one to three numbers.
func (p *parser) threads(f *function) error {
	f.maxntid = [3]int{1, 1, 1}
	for i := range f.maxntid {
		n, err := p.count(1 << 16)
		if err != nil {
			return err
		}
		f.maxntid[i] = n
		if !p.accept(",") {
			break
		}
	}
	return nil
}

// count reads a number of at most limit.
func (p *parser) count(limit uint64) (int, error) {
	w, err := p.word()
	if err != nil {
		return 0, err
	}
	n, bits, ok := parseNumber(w)
	if !ok || bits != 0 || n > limit {
		return 0, p.errorf("%q is not a number of at most %d", w, limit)
	}
	return int(n), nil
}

// params reads a list of parameters in parentheses.
func (p *parser) params(s *scope) ([]*variable, error) {
	if err := p.expect("("); err != nil {
		return nil, err
	}
	var all []*variable
	for !p.accept(")") {
		v, err := p.variable(false)
		if err != nil {
			return nil, err
		}
		if v.space != paramSpace {
			return nil, p.errorf("%s: parameters in registers are not known", v.name)
		}
		s.vars[v.name] = v
		all = append(all, v)
		if !p.accept(",") && !p.is(")") {
			return nil, p.errorf("expected \",\" or \")\", found %q", p.peek().text)
		}
	}
	return all, nil
}

// body reads the statements of a function up to its last brace.
func (p *parser) body(f *function) error {
	s := f.scope
	for depth := 1; depth > 0; {
		switch {
		case p.peek().kind == endToken:
			return p.errorf("%s has no end", f.name)
		case p.accept("{"):
			if depth++; depth > maxDepth {
				return p.errorf("braces are nested too deep")
			}
			s = newScope(s)
		case p.accept("}"):
			depth--
			s = s.parent
		case p.accept(";"):
		default:
			if err := p.statement(f, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// statement reads a label, a declaration or an instruction.
func (p *parser) statement(f *function, s *scope) error {
	t := p.peek()
	if t.kind == wordToken && p.tokens[p.at+1].text == ":" && p.tokens[p.at+1].kind == punctToken {
		p.at += 2
		if _, twice := s.labels[t.text]; twice {
			return p.errorf("label %s stands twice", t.text)
		}
		s.labels[t.text] = len(f.body)
		if p.accept(".branchtargets") {
			return p.targets(s, t.text)
		}
		return nil
	}
	switch t.text {
	case ".reg":
		return p.registers(s)
	case ".shared", ".local", ".param", ".const", ".global":
		return p.variables(s, false)
	case ".pragma":
		p.skipPast(";")
		return nil
	case ".loc":
		p.skipLine()
		return nil
	}
	return p.instruction(f, s)
}

// targets reads the list of .branchtargets.
func (p *parser) targets(s *scope, name string) error {
	for {
		w, err := p.word()
		if err != nil {
			return err
		}
		s.targets[name] = append(s.targets[name], w)
		if !p.accept(",") {
			return p.expect(";")
		}
	}
}

// registers reads .reg: names, or %r<100> for %r0 to %r99.
func (p *parser) registers(s *scope) error {
	p.pop()
	w, err := p.word()
	if err != nil {
		return err
	}
	t, ok := types[strings.TrimPrefix(w, ".")]
	if !ok || t.width() == 128 {
		return p.errorf("registers of %s are not known", w)
	}
	for {
		name, err := p.word()
		if err != nil {
			return err
		}
		if !p.accept("<") {
			s.regs[name] = t
		} else {
			n, err := p.count(maxRegisters)
			if err != nil {
				return err
			}
			s.ranges[name] = regRange{t, n}
			if err := p.expect(">"); err != nil {
				return err
			}
		}
		if !p.accept(",") {
			return p.expect(";")
		}
	}
}

// instruction reads one instruction and its operands.
func (p *parser) instruction(f *function, s *scope) error {
	st := statement{line: p.peek().line, scope: s}
	if i := st.line - p.first; i < len(p.lines) {
		st.text = strings.TrimSpace(p.lines[i])
	}
	if p.accept("@") {
		st.negated = p.accept("!")
		var err error
		if st.guard, err = p.word(); err != nil {
			return err
		}
	}
	name, err := p.word()
	if err != nil {
		return err
	}
	parts := strings.Split(name, ".")
	st.opcode, st.mods = parts[0], parts[1:]
	for !p.accept(";") {
		o, err := p.operand()
		if err != nil {
			return err
		}
		st.args = append(st.args, o)
		if !p.accept(",") && !p.is(";") {
			return p.errorf("%s: expected \",\" or \";\", found %q", name, p.peek().text)
		}
	}
	f.body = append(f.body, st)
	return nil
}
