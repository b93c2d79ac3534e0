package ptx

import "strings"

// operandKind is the form of an operand.
type operandKind byte

const (
	nameOperand    operandKind = iota // a register, a special register, a variable, a label
	numberOperand                     // an immediate
	addressOperand                    // [base+offset], or [base, more]
	vectorOperand                     // {a, b}, (a, b)
)

// operand is one operand of an instruction.
type operand struct {
	kind operandKind
	name string
	// negated is "!" before a predicate, minus "-" before a register.
	negated, minus bool
	// bits are a number's: of an integer in two's complement, or of a float of floatBits (0: an
	// integer).
	bits      uint64
	floatBits int
	// offset is what is added to an address or to a variable.
	offset int64
	elems  []operand
	// second is what follows "|": the predicate of shfl, the complement of setp.
	second *operand
}

// statement is one instruction.
type statement struct {
	line    int
	guard   string // its predicate, "" for none
	negated bool   // @!p
	opcode  string // the first part of the name: "ld"
	mods    []string
	args    []operand
	scope   *scope
	text    string
}

func (s *statement) has(mod string) bool {
	for _, m := range s.mods {
		if m == mod {
			return true
		}
	}
	return false
}

// hasAny is the first of the modifiers that the statement has, "" for none.
func (s *statement) hasAny(mods ...string) string {
	for _, m := range mods {
		if s.has(m) {
			return m
		}
	}
	return ""
}

// hasPrefix says whether a modifier begins so (shared, shared::cta).
func (s *statement) hasPrefix(prefix string) bool {
	for _, m := range s.mods {
		if strings.HasPrefix(m, prefix) {
			return true
		}
	}
	return false
}

// types are the types among the modifiers, in order.
func (s *statement) types() []typ {
	var all []typ
	for _, m := range s.mods {
		if t, ok := types[m]; ok {
			all = append(all, t)
		}
	}
	return all
}

// name is the opcode with all modifiers.
func (s *statement) name() string {
	if len(s.mods) == 0 {
		return s.opcode
	}
	return s.opcode + "." + strings.Join(s.mods, ".")
}

// scope is a pair of braces: names declared inside mean nothing outside (PTX ISA 5.4.1, 7.1.4).
type scope struct {
	parent *scope
	// regs are declared registers by name; ranges those declared as %r<100>, by prefix.
	regs   map[string]typ
	ranges map[string]regRange
	labels map[string]int // index of the statement that follows
	// targets are the lists of .branchtargets by label.
	targets map[string][]string
	vars    map[string]*variable
	ordered []*variable // those declared among statements
	// resolved are registers that instructions have named already.
	resolved map[string]int32
}

type regRange struct {
	typ   typ
	count int
}

func newScope(parent *scope) *scope {
	return &scope{parent: parent, regs: map[string]typ{}, ranges: map[string]regRange{},
		labels: map[string]int{}, targets: map[string][]string{}, vars: map[string]*variable{},
		resolved: map[string]int32{}}
}

// reg is a register's type, if the scope itself has the register.
func (s *scope) reg(name string) (typ, bool) {
	if t, ok := s.regs[name]; ok {
		return t, true
	}
	digits := strings.TrimRight(name, "0123456789")
	r, ok := s.ranges[digits]
	if !ok || len(digits) == len(name) || len(name)-len(digits) > 8 {
		return typ{}, false
	}
	n := 0
	for _, c := range name[len(digits):] {
		n = n*10 + int(c-'0')
	}
	return r.typ, n < r.count
}

// variable finds a variable from the inside to the outside, nil for none.
func (s *scope) variable(name string) *variable {
	for ; s != nil; s = s.parent {
		if v := s.vars[name]; v != nil {
			return v
		}
	}
	return nil
}

// label is the statement that a label stands before.
func (s *scope) label(name string) (int, bool) {
	for ; s != nil; s = s.parent {
		if at, ok := s.labels[name]; ok {
			return at, true
		}
	}
	return 0, false
}

// branchTargets is a list of .branchtargets, nil for none.
func (s *scope) branchTargets(name string) []string {
	for ; s != nil; s = s.parent {
		if t := s.targets[name]; t != nil {
			return t
		}
	}
	return nil
}

// space is a state space (PTX ISA 5.1).
type space byte

const (
	genericSpace space = iota
	globalSpace
	sharedSpace
	localSpace
	constSpace
	paramSpace
)

// String is the space's name in PTX.
func (s space) String() string {
	return [...]string{"generic", "global", "shared", "local", "const", "param"}[s]
}

// variable is a declared variable.
type variable struct {
	name  string
	space space
	align int
	size  uint64 // bytes; 0 for .extern .shared
	// external is .extern: dynamic shared memory.
	external bool
	init     []initial
	// at is its place: an offset in parameters, shared, local or module memory.
	at uint64
	// inBody is a .param declared among statements, for a call; it lies in local memory (inLocal),
	// as parameters of device functions do.
	inBody, inLocal bool
}

// initial is a piece of an initialiser: bytes, or a variable's address.
type initial struct {
	at      uint64
	data    []byte
	symbol  string
	generic bool
	offset  int64
}

// function is an entry or a device function.
type function struct {
	name    string
	entry   bool
	line    int
	params  []*variable
	returns []*variable
	maxntid [3]int
	body    []statement
	scope   *scope
	defined bool
	text    token // of an entry's body, until that is read
}

// typ is a fundamental type (PTX ISA 5.2).
type typ struct {
	// class is 'u', 's', 'b' (bits), 'f' (IEEE, also f16), 't' (bf16), 'q' (tf32), 'e' (e4m3),
	// 'v' (e5m2) or 'p' (predicate).
	class byte
	bits  int // of one element
	pack  int // elements in the register: 2 for f16x2
}

func (t typ) size() int    { return t.bits * t.pack / 8 }
func (t typ) width() int   { return t.bits * t.pack }
func (t typ) signed() bool { return t.class == 's' }
func (t typ) float() bool  { return t.class == 'f' || t.class == 't' }

// integer is u, s or b.
func (t typ) integer() bool { return t.class == 'u' || t.class == 's' || t.class == 'b' }

var types = map[string]typ{
	"pred": {'p', 1, 1},
	"u8":   {'u', 8, 1}, "u16": {'u', 16, 1}, "u32": {'u', 32, 1}, "u64": {'u', 64, 1},
	"s8": {'s', 8, 1}, "s16": {'s', 16, 1}, "s32": {'s', 32, 1}, "s64": {'s', 64, 1},
	"b8": {'b', 8, 1}, "b16": {'b', 16, 1}, "b32": {'b', 32, 1}, "b64": {'b', 64, 1},
	"b128": {'b', 128, 1},
	"f16":  {'f', 16, 1}, "f16x2": {'f', 16, 2}, "f32": {'f', 32, 1}, "f64": {'f', 64, 1},
	"f32x2": {'f', 32, 2},
	"bf16":  {'t', 16, 1}, "bf16x2": {'t', 16, 2}, "tf32": {'q', 32, 1},
	"e4m3": {'e', 8, 1}, "e4m3x2": {'e', 8, 2}, "e5m2": {'v', 8, 1}, "e5m2x2": {'v', 8, 2},
	"u16x2": {'u', 16, 2}, "s16x2": {'s', 16, 2},
}
