package chattemplate

// expr is an expression of the syntax tree.
type expr interface{ isExpr() }

// stmt is a statement of the syntax tree.
type stmt interface{ isStmt() }

// control is how a statement ends: normally, or by break or continue.
type control uint8

const (
	controlNext control = iota
	controlBreak
	controlContinue
)

// slotRef is a place a name may be bound at: a number of scopes up, and a variable there.
type slotRef struct{ Up, Slot int }

type (
	constExpr struct{ Value Value }

	// nameExpr is a variable: the first bound of its slots, else one of the rendering's variables, else a global.
	nameExpr struct {
		Name string
		Refs []slotRef
	}

	attrExpr struct {
		X    expr
		Name string
		Line int
	}

	itemExpr struct {
		X, Key expr
		Line   int
	}

	// sliceExpr is what stands in the brackets of x[low:high:step]; absent parts are nil.
	sliceExpr struct {
		X               expr
		Low, High, Step expr
		Line            int
	}

	callExpr struct {
		Fn   expr
		Args arguments
		Line int
	}

	filterExpr struct {
		X    expr // nil where a block supplies the value
		Name string
		Fn   filterFunc // nil if there is no such filter
		Args arguments
		Line int
	}

	testExpr struct {
		X    expr
		Name string
		Fn   testFunc // nil if there is no such test
		Args arguments
		Line int
	}

	notExpr struct{ X expr }

	unaryExpr struct {
		Negative bool
		X        expr
	}

	andExpr struct{ List []expr }

	orExpr struct{ List []expr }

	condExpr struct{ Cond, Then, Otherwise expr }

	compareExpr struct {
		First expr
		Rest  []comparison
	}

	// addExpr is a chain a + b + c, kept flat so that joining texts copies them once.
	addExpr struct{ List []expr }

	arithExpr struct {
		Op          string
		Left, Right expr
	}

	// concatExpr is a ~ b ~ c.
	concatExpr struct{ List []expr }

	listExpr struct{ List []expr }

	tupleExpr struct{ List []expr }

	dictExpr struct{ Pairs []pair }
)

func (*constExpr) isExpr()   {}
func (*nameExpr) isExpr()    {}
func (*attrExpr) isExpr()    {}
func (*itemExpr) isExpr()    {}
func (*sliceExpr) isExpr()   {}
func (*callExpr) isExpr()    {}
func (*filterExpr) isExpr()  {}
func (*testExpr) isExpr()    {}
func (*notExpr) isExpr()     {}
func (*unaryExpr) isExpr()   {}
func (*andExpr) isExpr()     {}
func (*orExpr) isExpr()      {}
func (*condExpr) isExpr()    {}
func (*compareExpr) isExpr() {}
func (*addExpr) isExpr()     {}
func (*arithExpr) isExpr()   {}
func (*concatExpr) isExpr()  {}
func (*listExpr) isExpr()    {}
func (*tupleExpr) isExpr()   {}
func (*dictExpr) isExpr()    {}

type comparison struct {
	Op string // a comparison operator, "in" or "not in"
	X  expr
}

type pair struct{ Key, Value expr }

// arguments are those of a call, filter or test as written.
type arguments struct {
	Positional []expr
	Keywords   []keyword
	Star       expr // *args
	DoubleStar expr // **kwargs
}

type keyword struct {
	Name string
	X    expr
}

type (
	dataStmt struct{ Text string }

	outputStmt struct {
		X    expr
		Line int
	}

	ifStmt struct {
		Branches  []ifBranch
		Otherwise []stmt
	}

	forStmt struct {
		Target     target
		TestTarget target // the target bound in the scope of the test
		Iter       expr
		Test       expr
		Body       []stmt
		Otherwise  []stmt
		Slots      int // of the body's scope
		TestSlots  int
		ElseSlots  int
		LoopSlot   int // of the loop variable, -1 if the body does not use it
		Line       int
	}

	loopControlStmt struct {
		Control control
		Line    int
	}

	setStmt struct {
		Target target
		X      expr
		Line   int
	}

	setBlockStmt struct {
		Target target
		Filter *filterExpr // innermost of the filters, or nil
		Outer  expr        // the whole chain of filters
		Body   []stmt
		Slots  int
		Line   int
	}

	withStmt struct {
		Targets []target
		Values  []expr
		Body    []stmt
		Slots   int
		Line    int
	}

	macroStmt struct {
		Def  *macroDef
		Slot int
	}

	callStmt struct {
		Def  *macroDef // the body, passed as caller
		Call *callExpr
		Line int
	}

	filterStmt struct {
		Filter *filterExpr
		Outer  expr
		Body   []stmt
		Slots  int
		Line   int
	}

	// scopeStmt is the generation tag: it marks text the assistant wrote and renders as its body.
	scopeStmt struct {
		Body  []stmt
		Slots int
	}
)

func (*dataStmt) isStmt()        {}
func (*outputStmt) isStmt()      {}
func (*ifStmt) isStmt()          {}
func (*forStmt) isStmt()         {}
func (*loopControlStmt) isStmt() {}
func (*setStmt) isStmt()         {}
func (*setBlockStmt) isStmt()    {}
func (*withStmt) isStmt()        {}
func (*macroStmt) isStmt()       {}
func (*callStmt) isStmt()        {}
func (*filterStmt) isStmt()      {}
func (*scopeStmt) isStmt()       {}

type ifBranch struct {
	Cond expr
	Body []stmt
	Line int
}

// target is what an assignment binds: a name, a namespace's attribute, or a tuple of targets.
type target struct {
	Name  string
	Slot  int
	Space *nameExpr // the namespace of an attribute target
	Attr  string
	Tuple []target // non-nil for a tuple
	Line  int
}

func (t target) Copied() target {
	if t.Tuple != nil {
		tuple := make([]target, len(t.Tuple))
		for i := range t.Tuple {
			tuple[i] = t.Tuple[i].Copied()
		}
		t.Tuple = tuple
	}
	if t.Space != nil {
		t.Space = &nameExpr{Name: t.Space.Name}
	}
	return t
}

// macroDef is the shared part of a macro's values: its signature and body.
type macroDef struct {
	Name     string
	Params   []param
	Body     []stmt
	Slots    int
	Caller   int // slot of the special variable, -1 if the body does not use it
	Varargs  int
	Kwargs   int
	Line     int
	Explicit bool // caller is one of the parameters
}

type param struct {
	Name     string
	Slot     int
	Fallback expr // nil if there is no default
}
