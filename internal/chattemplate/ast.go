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
type slotRef struct{ up, slot int }

type (
	constExpr struct{ value Value }

	// nameExpr is a variable: the first bound of its slots, else one of the rendering's variables, else a global.
	nameExpr struct {
		name string
		refs []slotRef
	}

	attrExpr struct {
		x    expr
		name string
		line int
	}

	itemExpr struct {
		x, key expr
		line   int
	}

	// sliceExpr is what stands in the brackets of x[low:high:step]; absent parts are nil.
	sliceExpr struct {
		x               expr
		low, high, step expr
		line            int
	}

	callExpr struct {
		fn   expr
		args arguments
		line int
	}

	filterExpr struct {
		x    expr // nil where a block supplies the value
		name string
		fn   filterFunc // nil if there is no such filter
		args arguments
		line int
	}

	testExpr struct {
		x    expr
		name string
		fn   testFunc // nil if there is no such test
		args arguments
		line int
	}

	notExpr struct{ x expr }

	unaryExpr struct {
		negative bool
		x        expr
	}

	andExpr struct{ list []expr }

	orExpr struct{ list []expr }

	condExpr struct{ cond, then, otherwise expr }

	compareExpr struct {
		first expr
		rest  []comparison
	}

	// addExpr is a chain a + b + c, kept flat so that joining texts copies them once.
	addExpr struct{ list []expr }

	arithExpr struct {
		op          string
		left, right expr
	}

	// concatExpr is a ~ b ~ c.
	concatExpr struct{ list []expr }

	listExpr struct{ list []expr }

	tupleExpr struct{ list []expr }

	dictExpr struct{ pairs []pair }
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
	op string // a comparison operator, "in" or "not in"
	x  expr
}

type pair struct{ key, value expr }

// arguments are those of a call, filter or test as written.
type arguments struct {
	positional []expr
	keywords   []keyword
	star       expr // *args
	doubleStar expr // **kwargs
}

type keyword struct {
	name string
	x    expr
}

type (
	dataStmt struct{ text string }

	outputStmt struct {
		x    expr
		line int
	}

	ifStmt struct {
		branches  []ifBranch
		otherwise []stmt
	}

	forStmt struct {
		target     target
		testTarget target // the target bound in the scope of the test
		iter       expr
		test       expr
		body       []stmt
		otherwise  []stmt
		slots      int // of the body's scope
		testSlots  int
		elseSlots  int
		loopSlot   int // of the loop variable, -1 if the body does not use it
		line       int
	}

	loopControlStmt struct {
		control control
		line    int
	}

	setStmt struct {
		target target
		x      expr
		line   int
	}

	setBlockStmt struct {
		target target
		filter *filterExpr // innermost of the filters, or nil
		outer  expr        // the whole chain of filters
		body   []stmt
		slots  int
		line   int
	}

	withStmt struct {
		targets []target
		values  []expr
		body    []stmt
		slots   int
		line    int
	}

	macroStmt struct {
		def  *macroDef
		slot int
	}

	callStmt struct {
		def  *macroDef // the body, passed as caller
		call *callExpr
		line int
	}

	filterStmt struct {
		filter *filterExpr
		outer  expr
		body   []stmt
		slots  int
		line   int
	}

	// scopeStmt is the generation tag: it marks text the assistant wrote and renders as its body.
	scopeStmt struct {
		body  []stmt
		slots int
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
	cond expr
	body []stmt
	line int
}

// target is what an assignment binds: a name, a namespace's attribute, or a tuple of targets.
type target struct {
	name  string
	slot  int
	space *nameExpr // the namespace of an attribute target
	attr  string
	tuple []target // non-nil for a tuple
	line  int
}

func (t target) copied() target {
	if t.tuple != nil {
		tuple := make([]target, len(t.tuple))
		for i := range t.tuple {
			tuple[i] = t.tuple[i].copied()
		}
		t.tuple = tuple
	}
	if t.space != nil {
		t.space = &nameExpr{name: t.space.name}
	}
	return t
}

// macroDef is the shared part of a macro's values: its signature and body.
type macroDef struct {
	name     string
	params   []param
	body     []stmt
	slots    int
	caller   int // slot of the special variable, -1 if the body does not use it
	varargs  int
	kwargs   int
	line     int
	explicit bool // caller is one of the parameters
}

type param struct {
	name     string
	slot     int
	fallback expr // nil if there is no default
}
