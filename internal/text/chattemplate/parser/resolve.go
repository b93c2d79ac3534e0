package parser

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/ast"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// scope is one of Jinja's variable scopes while a template is resolved: the names bound in it, by
// slot. Scopes are lexical; a name not yet bound in the inner scope is looked for in the outer ones
// at run time.
type scope struct {
	parent *scope
	names  map[string]int
	loop   *ast.For      // the loop whose body this is
	macro  *ast.MacroDef // the macro whose body this is
	// given says of each name that the scope's own statements mention whether it is a variable that
	// the template is given until it is bound: not if they begin with binding it.
	given map[string]bool
	// branches are the branches of conditions open around the current statement.
	branches int
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

// mention notes that a statement of the scope reads or binds a name.
func (s *scope) mention(name string, given bool) {
	if s.given == nil {
		s.given = make(map[string]bool)
	}
	if _, mentioned := s.given[name]; !mentioned {
		s.given[name] = given
	}
}

// outermost says what the outermost scope that mentions a name makes of it, as jinja2 does.
func (s *scope) outermost(name string) (given bool) {
	for ; s != nil; s = s.parent {
		if g, mentioned := s.given[name]; mentioned {
			given = g
		}
	}
	return given
}

// special declares the variables that a loop body or macro has only if it uses them.
func (s *scope) special(name string) bool {
	switch {
	case s.loop != nil && name == "loop":
		s.loop.LoopSlot = s.declare(name)
	case s.macro == nil:
		return false
	case name == "caller" && !s.macro.Explicit:
		s.macro.Caller = s.declare(name)
	case name == "varargs":
		s.macro.Varargs = s.declare(name)
	case name == "kwargs":
		s.macro.Kwargs = s.declare(name)
	default:
		return false
	}
	return true
}

// resolver binds the names of a parsed template to slots and bounds the depth of its tree, which
// bounds the recursion of its evaluation.
type resolver struct {
	scope *scope
	loops int // loops open around the current statement, inside the current macro
	depth int
	// names are those that are read, each in its scope.
	names []scopedName
}

type scopedName struct {
	*ast.Name
	scope *scope
}

// variables marks the names that are variables of the template as long as they are not bound. What
// a scope mentions first may stand behind the scopes within it, so that all are resolved before.
func (r *resolver) variables() map[string]bool {
	reads := map[string]bool{}
	for _, x := range r.names {
		if x.Given = x.scope.outermost(x.Name.Name); x.Given {
			reads[x.Name.Name] = true
		}
	}
	return reads
}

func (r *resolver) enter(line int) error {
	r.depth++
	if r.depth > maxNesting {
		return values.ErrorAt(line, "template is nested too deeply")
	}
	return nil
}

// name finds the slots a name may be bound at, innermost first.
func (r *resolver) name(x *ast.Name) {
	up := 0
	for s := r.scope; s != nil; s = s.parent {
		if slot, ok := s.names[x.Name]; ok {
			x.Refs = append(x.Refs, ast.Ref{Up: up, Slot: slot})
		} else if s.special(x.Name) {
			x.Refs = append(x.Refs, ast.Ref{Up: up, Slot: s.names[x.Name]})
		}
		up++
	}
	r.scope.mention(x.Name, true)
	r.names = append(r.names, scopedName{x, r.scope})
}

// declareAll declares what the statements bind in their own scope, before any of them is resolved.
func (r *resolver) declareAll(body []ast.Stmt) {
	for _, s := range body {
		switch s := s.(type) {
		case *ast.Set:
			r.declareTarget(&s.Target)
		case *ast.SetBlock:
			r.declareTarget(&s.Target)
		case *ast.Macro:
			s.Slot = r.scope.declare(s.Def.Name)
		case *ast.If:
			for _, b := range s.Branches {
				r.declareAll(b.Body)
			}
			r.declareAll(s.Otherwise)
		}
	}
}

func (r *resolver) declareTarget(t *ast.Target) {
	for i := range t.Tuple {
		r.declareTarget(&t.Tuple[i])
	}
	if t.Name != "" {
		t.Slot = r.scope.declare(t.Name)
	}
}

// target resolves the names and namespaces that an assignment mentions.
func (r *resolver) target(t *ast.Target) {
	for i := range t.Tuple {
		r.target(&t.Tuple[i])
	}
	if t.Space != nil {
		r.name(t.Space)
	} else if t.Name != "" {
		r.binds(t.Name)
	}
}

// binds notes that a statement binds a name. Under a condition it may remain what it was.
func (r *resolver) binds(name string) { r.scope.mention(name, r.scope.branches > 0) }

// inner resolves a body in a scope of its own and returns the number of its slots. prepare declares
// what the scope binds from outside.
func (r *resolver) inner(s *scope, body []ast.Stmt, prepare func() error) (int, error) {
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

func (r *resolver) body(body []ast.Stmt) error {
	r.declareAll(body)
	return r.statements(body)
}

func (r *resolver) statements(body []ast.Stmt) error {
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

func (r *resolver) statement(s ast.Stmt) (err error) {
	switch s := s.(type) {
	case *ast.Output:
		return values.AtLine(r.expr(s.X), s.Line)
	case *ast.If:
		for _, b := range s.Branches {
			if err := r.expr(b.Cond); err != nil {
				return values.AtLine(err, b.Line)
			}
			if err := r.branch(b.Body); err != nil {
				return err
			}
		}
		return r.branch(s.Otherwise)
	case *ast.For:
		return values.AtLine(r.loop(s), s.Line)
	case *ast.LoopControl:
		if r.loops == 0 {
			return values.ErrorAt(s.Line, "break or continue outside a loop")
		}
	case *ast.Set:
		err := r.expr(s.X)
		r.target(&s.Target)
		return values.AtLine(err, s.Line)
	case *ast.SetBlock:
		r.target(&s.Target)
		if err := r.exprs(s.Outer); err != nil {
			return values.AtLine(err, s.Line)
		}
		s.Slots, err = r.closed(&scope{}, s.Body, nil)
		return values.AtLine(err, s.Line)
	case *ast.With:
		if err := r.exprs(s.Values...); err != nil {
			return values.AtLine(err, s.Line)
		}
		s.Slots, err = r.inner(&scope{}, s.Body, func() error {
			for i := range s.Targets {
				r.declareTarget(&s.Targets[i])
			}
			return nil
		})
		return values.AtLine(err, s.Line)
	case *ast.Macro:
		r.binds(s.Def.Name)
		return r.macro(s.Def)
	case *ast.CallBlock:
		if err := r.expr(s.Call); err != nil {
			return values.AtLine(err, s.Line)
		}
		return r.macro(s.Def)
	case *ast.FilterBlock:
		if err := r.exprs(s.Outer); err != nil {
			return values.AtLine(err, s.Line)
		}
		s.Slots, err = r.closed(&scope{}, s.Body, nil)
		return values.AtLine(err, s.Line)
	case *ast.Generation:
		// jinja2 compiles the body as the macro of a call block.
		s.Slots, err = r.closed(&scope{}, s.Body, nil)
		return err
	}
	return nil
}

// branch resolves statements that a condition may leave out.
func (r *resolver) branch(body []ast.Stmt) error {
	r.scope.branches++
	defer func() { r.scope.branches-- }()
	return r.statements(body)
}

// closed is inner for a body whose break and continue cannot reach the loops around it.
func (r *resolver) closed(s *scope, body []ast.Stmt, prepare func() error) (int, error) {
	loops := r.loops
	r.loops = 0
	defer func() { r.loops = loops }()
	return r.inner(s, body, prepare)
}

func (r *resolver) loop(s *ast.For) error {
	if err := r.expr(s.Iter); err != nil {
		return err
	}
	var err error
	if s.Test != nil {
		s.TestSlots, err = r.inner(&scope{}, nil, func() error {
			r.declareTarget(&s.TestTarget)
			return r.expr(s.Test)
		})
		if err != nil {
			return err
		}
	}
	if s.ElseSlots, err = r.inner(&scope{}, s.Otherwise, nil); err != nil {
		return err
	}
	r.loops++
	defer func() { r.loops-- }()
	s.Slots, err = r.inner(&scope{loop: s}, s.Body, func() error {
		r.declareTarget(&s.Target)
		return nil
	})
	return err
}

func (r *resolver) macro(def *ast.MacroDef) error {
	slots, err := r.closed(&scope{macro: def}, def.Body, func() error {
		for i := range def.Params {
			def.Params[i].Slot = r.scope.declare(def.Params[i].Name)
		}
		for _, q := range def.Params {
			if err := r.exprs(q.Fallback); err != nil {
				return err
			}
		}
		return nil
	})
	def.Slots = slots
	return values.AtLine(err, def.Line)
}

// exprs resolves expressions, any of which may be nil.
func (r *resolver) exprs(list ...ast.Expr) error {
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

func (r *resolver) expr(x ast.Expr) error {
	if err := r.enter(0); err != nil {
		return err
	}
	defer func() { r.depth-- }()
	switch x := x.(type) {
	case *ast.Name:
		r.name(x)
	case *ast.Call:
		return values.AtLine(r.exprs(children(x)...), x.Line)
	case *ast.Filter:
		return values.AtLine(r.exprs(children(x)...), x.Line)
	default:
		return r.exprs(children(x)...)
	}
	return nil
}

// children lists the direct parts of an expression; absent parts are nil.
func children(x ast.Expr) []ast.Expr {
	switch x := x.(type) {
	case *ast.Attr:
		return []ast.Expr{x.X}
	case *ast.Item:
		return []ast.Expr{x.X, x.Key}
	case *ast.Slice:
		return []ast.Expr{x.X, x.Low, x.High, x.Step}
	case *ast.Call:
		return append([]ast.Expr{x.Fn}, exprs(&x.Args)...)
	case *ast.Filter:
		return append([]ast.Expr{x.X}, exprs(&x.Args)...)
	case *ast.Test:
		return append([]ast.Expr{x.X}, exprs(&x.Args)...)
	case *ast.Not:
		return []ast.Expr{x.X}
	case *ast.Unary:
		return []ast.Expr{x.X}
	case *ast.And:
		return x.List
	case *ast.Or:
		return x.List
	case *ast.Cond:
		return []ast.Expr{x.Cond, x.Then, x.Otherwise}
	case *ast.Compare:
		list := []ast.Expr{x.First}
		for _, c := range x.Rest {
			list = append(list, c.X)
		}
		return list
	case *ast.Add:
		return x.List
	case *ast.Arith:
		return []ast.Expr{x.Left, x.Right}
	case *ast.Concat:
		return x.List
	case *ast.List:
		return x.List
	case *ast.Tuple:
		return x.List
	case *ast.Dict:
		var list []ast.Expr
		for _, p := range x.Pairs {
			list = append(list, p.Key, p.Value)
		}
		return list
	}
	return nil
}

func exprs(a *ast.Arguments) []ast.Expr {
	list := append([]ast.Expr(nil), a.Positional...)
	for _, k := range a.Keywords {
		list = append(list, k.X)
	}
	return append(list, a.Star, a.DoubleStar)
}
