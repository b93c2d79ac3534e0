// Package ast has the syntax tree of a template. Parsing binds its names: a variable is a place in
// a scope, a filter or test the function that stands for it.
package ast

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// Expr is an expression of the syntax tree.
type Expr interface{ isExpr() }

// Stmt is a statement of the syntax tree.
type Stmt interface{ isStmt() }

// Control is how a statement ends: normally, or by break or continue.
type Control uint8

const (
	Next Control = iota
	Break
	Continue
)

// Ref is a place a name may be bound at: a number of scopes up, and a variable there.
type Ref struct{ Up, Slot int }

type (
	Const struct{ Value values.Value }

	// Name is a variable: the first bound of its slots, else, if Given, one of the rendering's
	// variables or a global. One that the template binds before it mentions it otherwise is not.
	Name struct {
		Name  string
		Refs  []Ref
		Given bool
	}

	Attr struct {
		X    Expr
		Name string
		Line int
	}

	Item struct {
		X, Key Expr
		Line   int
	}

	// Slice is what stands in the brackets of x[low:high:step]; absent parts are nil.
	Slice struct {
		X               Expr
		Low, High, Step Expr
		Line            int
	}

	Call struct {
		Fn   Expr
		Args Arguments
		Line int
	}

	Filter struct {
		X    Expr // nil where a block supplies the value
		Name string
		Fn   values.Filter // nil if there is no such filter
		Args Arguments
		Line int
	}

	Test struct {
		X    Expr
		Name string
		Fn   values.Test // nil if there is no such test
		Args Arguments
		Line int
	}

	Not struct{ X Expr }

	Unary struct {
		Negative bool
		X        Expr
	}

	And struct{ List []Expr }

	Or struct{ List []Expr }

	Cond struct{ Cond, Then, Otherwise Expr }

	Compare struct {
		First Expr
		Rest  []Comparison
	}

	// Add is a chain a + b + c, kept flat so that joining texts copies them once.
	Add struct{ List []Expr }

	Arith struct {
		Op          string
		Left, Right Expr
	}

	// Concat is a ~ b ~ c.
	Concat struct{ List []Expr }

	List struct{ List []Expr }

	Tuple struct{ List []Expr }

	Dict struct{ Pairs []Pair }
)

func (*Const) isExpr()   {}
func (*Name) isExpr()    {}
func (*Attr) isExpr()    {}
func (*Item) isExpr()    {}
func (*Slice) isExpr()   {}
func (*Call) isExpr()    {}
func (*Filter) isExpr()  {}
func (*Test) isExpr()    {}
func (*Not) isExpr()     {}
func (*Unary) isExpr()   {}
func (*And) isExpr()     {}
func (*Or) isExpr()      {}
func (*Cond) isExpr()    {}
func (*Compare) isExpr() {}
func (*Add) isExpr()     {}
func (*Arith) isExpr()   {}
func (*Concat) isExpr()  {}
func (*List) isExpr()    {}
func (*Tuple) isExpr()   {}
func (*Dict) isExpr()    {}

type Comparison struct {
	Op string // a comparison operator, "in" or "not in"
	X  Expr
}

type Pair struct{ Key, Value Expr }

// Arguments are those of a call, filter or test as written.
type Arguments struct {
	Positional []Expr
	Keywords   []Keyword
	Star       Expr // *args
	DoubleStar Expr // **kwargs
}

type Keyword struct {
	Name string
	X    Expr
}

type (
	Data struct{ Text string }

	Output struct {
		X    Expr
		Line int
	}

	If struct {
		Branches  []IfBranch
		Otherwise []Stmt
	}

	For struct {
		Target     Target
		TestTarget Target // the target bound in the scope of the test
		Iter       Expr
		Test       Expr
		Body       []Stmt
		Otherwise  []Stmt
		Slots      int // of the body's scope
		TestSlots  int
		ElseSlots  int
		LoopSlot   int // of the loop variable, -1 if the body does not use it
		Line       int
	}

	LoopControl struct {
		Control Control
		Line    int
	}

	Set struct {
		Target Target
		X      Expr
		Line   int
	}

	SetBlock struct {
		Target Target
		Filter *Filter // innermost of the filters, or nil
		Outer  Expr    // the whole chain of filters
		Body   []Stmt
		Slots  int
		Line   int
	}

	With struct {
		Targets []Target
		Values  []Expr
		Body    []Stmt
		Slots   int
		Line    int
	}

	Macro struct {
		Def  *MacroDef
		Slot int
	}

	CallBlock struct {
		Def  *MacroDef // the body, passed as caller
		Call *Call
		Line int
	}

	FilterBlock struct {
		Filter *Filter
		Outer  Expr
		Body   []Stmt
		Slots  int
		Line   int
	}

	// Generation is the generation tag: it marks text the assistant wrote and renders as its body.
	Generation struct {
		Body  []Stmt
		Slots int
	}
)

func (*Data) isStmt()        {}
func (*Output) isStmt()      {}
func (*If) isStmt()          {}
func (*For) isStmt()         {}
func (*LoopControl) isStmt() {}
func (*Set) isStmt()         {}
func (*SetBlock) isStmt()    {}
func (*With) isStmt()        {}
func (*Macro) isStmt()       {}
func (*CallBlock) isStmt()   {}
func (*FilterBlock) isStmt() {}
func (*Generation) isStmt()  {}

type IfBranch struct {
	Cond Expr
	Body []Stmt
	Line int
}

// Target is what an assignment binds: a name, a namespace's attribute, or a tuple of targets.
type Target struct {
	Name  string
	Slot  int
	Space *Name // the namespace of an attribute target
	Attr  string
	Tuple []Target // non-nil for a tuple
	Line  int
}

func (t Target) Copied() Target {
	if t.Tuple != nil {
		tuple := make([]Target, len(t.Tuple))
		for i := range t.Tuple {
			tuple[i] = t.Tuple[i].Copied()
		}
		t.Tuple = tuple
	}
	if t.Space != nil {
		t.Space = &Name{Name: t.Space.Name}
	}
	return t
}

// MacroDef is the shared part of a macro's values: its signature and body.
type MacroDef struct {
	Name     string
	Params   []Param
	Body     []Stmt
	Slots    int
	Caller   int // slot of the special variable, -1 if the body does not use it
	Varargs  int
	Kwargs   int
	Line     int
	Explicit bool // caller is one of the parameters
}

type Param struct {
	Name     string
	Slot     int
	Fallback Expr // nil if there is no default
}
