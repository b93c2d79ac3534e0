package chattemplate

// scope is one of Jinja's variable scopes while a template is resolved: the names bound in it, by slot.
// Scopes are lexical; a name not yet bound in the inner scope is looked for in the outer ones at run time.
type scope struct {
	parent *scope
	names  map[string]int
	loop   *forStmt  // the loop whose body this is
	macro  *macroDef // the macro whose body this is
}

func (s *scope) size() int { return len(s.names) }

func (s *scope) declare(name string) int {
	if slot, ok := s.names[name]; ok {
		return slot
	}
	if s.names == nil {
		s.names = make(map[string]int)
	}
	slot := len(s.names)
	s.names[name] = slot
	return slot
}

// special declares the variables that a loop body or macro has only if it uses them.
func (s *scope) special(name string) bool {
	switch {
	case s.loop != nil && name == "loop":
		s.loop.loopSlot = s.declare(name)
	case s.macro == nil:
		return false
	case name == "caller" && !s.macro.explicit:
		s.macro.caller = s.declare(name)
	case name == "varargs":
		s.macro.varargs = s.declare(name)
	case name == "kwargs":
		s.macro.kwargs = s.declare(name)
	default:
		return false
	}
	return true
}

// resolver binds the names of a parsed template to slots and bounds the depth of its tree, which bounds
// the recursion of its evaluation.
type resolver struct {
	scope *scope
	loops int // loops open around the current statement, inside the current macro
	depth int
}

func (r *resolver) enter(line int) error {
	r.depth++
	if r.depth > maxNesting {
		return errorAt(line, "template is nested too deeply")
	}
	return nil
}

// name returns the slots a name may be bound at, innermost first.
func (r *resolver) name(name string) []slotRef {
	var refs []slotRef
	up := 0
	for s := r.scope; s != nil; s = s.parent {
		if slot, ok := s.names[name]; ok {
			refs = append(refs, slotRef{up, slot})
		} else if s.special(name) {
			refs = append(refs, slotRef{up, s.names[name]})
		}
		up++
	}
	return refs
}

// declareAll declares what the statements bind in their own scope, before any of them is resolved.
func (r *resolver) declareAll(body []stmt) {
	for _, s := range body {
		switch s := s.(type) {
		case *setStmt:
			r.declareTarget(&s.target)
		case *setBlockStmt:
			r.declareTarget(&s.target)
		case *macroStmt:
			s.slot = r.scope.declare(s.def.name)
		case *ifStmt:
			for _, b := range s.branches {
				r.declareAll(b.body)
			}
			r.declareAll(s.otherwise)
		}
	}
}

func (r *resolver) declareTarget(t *target) {
	for i := range t.tuple {
		r.declareTarget(&t.tuple[i])
	}
	if t.name != "" {
		t.slot = r.scope.declare(t.name)
	}
}

// target resolves the namespaces an assignment mentions.
func (r *resolver) target(t *target) {
	for i := range t.tuple {
		r.target(&t.tuple[i])
	}
	if t.space != nil {
		t.space.refs = r.name(t.space.name)
	}
}

// inner resolves a body in a scope of its own and returns the number of its slots. prepare declares what the
// scope binds from outside.
func (r *resolver) inner(s *scope, body []stmt, prepare func() error) (int, error) {
	s.parent = r.scope
	r.scope = s
	defer func() { r.scope = s.parent }()
	if prepare != nil {
		if err := prepare(); err != nil {
			return 0, err
		}
	}
	if err := r.body(body); err != nil {
		return 0, err
	}
	return s.size(), nil
}

func (r *resolver) body(body []stmt) error {
	r.declareAll(body)
	return r.statements(body)
}

func (r *resolver) statements(body []stmt) error {
	if err := r.enter(0); err != nil {
		return err
	}
	defer func() { r.depth-- }()
	for _, s := range body {
		if err := r.statement(s); err != nil {
			return err
		}
	}
	return nil
}

func (r *resolver) statement(s stmt) (err error) {
	switch s := s.(type) {
	case *outputStmt:
		return atLine(r.expr(s.x), s.line)
	case *ifStmt:
		for _, b := range s.branches {
			if err := r.expr(b.cond); err != nil {
				return atLine(err, b.line)
			}
			if err := r.statements(b.body); err != nil {
				return err
			}
		}
		return r.statements(s.otherwise)
	case *forStmt:
		return atLine(r.loop(s), s.line)
	case *loopControlStmt:
		if r.loops == 0 {
			return errorAt(s.line, "break or continue outside a loop")
		}
	case *setStmt:
		r.target(&s.target)
		return atLine(r.expr(s.x), s.line)
	case *setBlockStmt:
		r.target(&s.target)
		if err := r.exprs(s.outer); err != nil {
			return atLine(err, s.line)
		}
		s.slots, err = r.closed(&scope{}, s.body, nil)
		return atLine(err, s.line)
	case *withStmt:
		if err := r.exprs(s.values...); err != nil {
			return atLine(err, s.line)
		}
		s.slots, err = r.inner(&scope{}, s.body, func() error {
			for i := range s.targets {
				r.declareTarget(&s.targets[i])
			}
			return nil
		})
		return atLine(err, s.line)
	case *macroStmt:
		return r.macro(s.def)
	case *callStmt:
		if err := r.expr(s.call); err != nil {
			return atLine(err, s.line)
		}
		return r.macro(s.def)
	case *filterStmt:
		if err := r.exprs(s.outer); err != nil {
			return atLine(err, s.line)
		}
		s.slots, err = r.closed(&scope{}, s.body, nil)
		return atLine(err, s.line)
	case *scopeStmt:
		// jinja2 compiles the body as the macro of a call block.
		s.slots, err = r.closed(&scope{}, s.body, nil)
		return err
	}
	return nil
}

// closed is inner for a body whose break and continue cannot reach the loops around it.
func (r *resolver) closed(s *scope, body []stmt, prepare func() error) (int, error) {
	loops := r.loops
	r.loops = 0
	defer func() { r.loops = loops }()
	return r.inner(s, body, prepare)
}

func (r *resolver) loop(s *forStmt) error {
	if err := r.expr(s.iter); err != nil {
		return err
	}
	var err error
	if s.test != nil {
		s.testSlots, err = r.inner(&scope{}, nil, func() error {
			r.declareTarget(&s.testTarget)
			return r.expr(s.test)
		})
		if err != nil {
			return err
		}
	}
	if s.elseSlots, err = r.inner(&scope{}, s.otherwise, nil); err != nil {
		return err
	}
	r.loops++
	defer func() { r.loops-- }()
	s.slots, err = r.inner(&scope{loop: s}, s.body, func() error {
		r.declareTarget(&s.target)
		return nil
	})
	return err
}

func (r *resolver) macro(def *macroDef) error {
	slots, err := r.closed(&scope{macro: def}, def.body, func() error {
		for i := range def.params {
			def.params[i].slot = r.scope.declare(def.params[i].name)
		}
		for _, q := range def.params {
			if err := r.exprs(q.fallback); err != nil {
				return err
			}
		}
		return nil
	})
	def.slots = slots
	return atLine(err, def.line)
}

// exprs resolves expressions, any of which may be nil.
func (r *resolver) exprs(list ...expr) error {
	for _, x := range list {
		if x == nil {
			continue
		}
		if err := r.expr(x); err != nil {
			return err
		}
	}
	return nil
}

func (r *resolver) expr(x expr) error {
	if err := r.enter(0); err != nil {
		return err
	}
	defer func() { r.depth-- }()
	switch x := x.(type) {
	case *nameExpr:
		x.refs = r.name(x.name)
	case *callExpr:
		return atLine(r.exprs(children(x)...), x.line)
	case *filterExpr:
		return atLine(r.exprs(children(x)...), x.line)
	default:
		return r.exprs(children(x)...)
	}
	return nil
}

// children lists the direct parts of an expression; absent parts are nil.
func children(x expr) []expr {
	switch x := x.(type) {
	case *attrExpr:
		return []expr{x.x}
	case *itemExpr:
		return []expr{x.x, x.key}
	case *sliceExpr:
		return []expr{x.x, x.low, x.high, x.step}
	case *callExpr:
		return append([]expr{x.fn}, exprs(&x.args)...)
	case *filterExpr:
		return append([]expr{x.x}, exprs(&x.args)...)
	case *testExpr:
		return append([]expr{x.x}, exprs(&x.args)...)
	case *notExpr:
		return []expr{x.x}
	case *unaryExpr:
		return []expr{x.x}
	case *andExpr:
		return x.list
	case *orExpr:
		return x.list
	case *condExpr:
		return []expr{x.cond, x.then, x.otherwise}
	case *compareExpr:
		list := []expr{x.first}
		for _, c := range x.rest {
			list = append(list, c.x)
		}
		return list
	case *addExpr:
		return x.list
	case *arithExpr:
		return []expr{x.left, x.right}
	case *concatExpr:
		return x.list
	case *listExpr:
		return x.list
	case *tupleExpr:
		return x.list
	case *dictExpr:
		var list []expr
		for _, p := range x.pairs {
			list = append(list, p.key, p.value)
		}
		return list
	}
	return nil
}

func exprs(a *arguments) []expr {
	list := append([]expr(nil), a.positional...)
	for _, k := range a.keywords {
		list = append(list, k.x)
	}
	return append(list, a.star, a.doubleStar)
}
