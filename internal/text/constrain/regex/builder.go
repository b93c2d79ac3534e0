// Package regex has regular expressions over bytes as hash-consed nodes with derivatives: union,
// concatenation, counted repetition, intersection and complement. A Builder owns the nodes; equal
// expressions (up to the laws that the constructors apply) have equal ids, so that an id is a
// state of a lazily built automaton. Text is UTF-8: ranges of runes are sequences of bytes, and a
// text may be left in the middle of a character. Nothing here recurses deeper than the nesting of
// the expression, waits, or fails: work is counted as fuel, and what runs out of it says so.
package regex

import (
	"math/bits"
	"slices"
)

// Ex is an expression of one Builder.
type Ex int32

// The expressions that every Builder has.
const (
	Empty Ex = 0 // no text at all
	Eps   Ex = 1 // the empty text
)

// Inf as the upper bound of a repetition is no bound.
const Inf = -1

// Kinds of nodes.
const (
	kEmpty = uint8(iota)
	kEps
	kSet // one byte of a set
	kCat // a, then b; a is no kCat
	kOr  // one of args: sorted, at least two, no kOr, at most one kSet
	kAnd // all of args: sorted, at least two, no kAnd
	kNot // every byte sequence that a does not match
	kRep // a, min to max times
	// kMultiple is a run of digits whose value is a multiple of a; see multiple for the fields.
	kMultiple
	// kState is a state of an automaton: what Builder.defs[a] matches. min is its least, max is 1
	// if it matches infinitely many texts.
	kState
)

// ByteSet is a set of bytes.
type ByteSet [4]uint64

// Has says whether c is in the set.
func (s *ByteSet) Has(c byte) bool { return s[c>>6]>>(c&63)&1 == 1 }

// Add puts lo to hi, both included, into the set.
func (s *ByteSet) Add(lo, hi byte) {
	for c := int(lo); c <= int(hi); c++ {
		s[c>>6] |= 1 << (c & 63)
	}
}

// Count is the number of bytes in the set.
func (s *ByteSet) Count() int {
	return bits.OnesCount64(s[0]) + bits.OnesCount64(s[1]) + bits.OnesCount64(s[2]) +
		bits.OnesCount64(s[3])
}

// node is one expression. args are the operands of kOr and kAnd in Builder.args.
type node struct {
	kind     uint8
	nullable bool
	plain    bool // without kAnd and kNot: never dead
	size     size
	a, b     Ex // operands; of kOr and kAnd: from, to in Builder.args
	min, max int32
	set      int32
	// whole are the alphabets, as bits, of which each text is made of whole characters.
	whole uint8
	// least is a bound from below on the length of the texts, in bytes.
	least int32
}

// size is what the shape of an expression says about how many texts it matches.
type size uint8

const (
	some     = size(1 << iota) // surely one
	finite                     // surely finitely many
	infinite                   // surely infinitely many, where it is plain
)

// most is the greatest bound that node.least has.
const most = 1 << 29

// Builder makes expressions. The zero Builder is not usable: NewBuilder makes one. It is used by
// one goroutine at a time.
type Builder struct {
	nodes   []node
	args    []Ex
	defs    []Ex // of kState
	table   []Ex // hash table of nodes, a power of two long; 0: free
	sets    []ByteSet
	setIDs  map[ByteSet]int32
	derived map[uint64]Ex
	dead    map[Ex]bool
	heads   map[Ex][]byte
	bySets  map[string][]byte // the heads of expressions that begin with these sets
	within  map[[2]Ex]bool
	visited []uint32 // by node, the number of the last visit of Heads to it
	visit   uint32
	fuel    int
	given   int
	out     bool
	stop    func() bool
	held    int // bytes
	most    int // bytes, 0 for no bound
	full    bool
	buf     []Ex // of Or
	// json are the characters of a JSON string, rune those of a text; 0 before they are asked for.
	json, rune Ex
}

// NewBuilder makes a Builder that may do fuel operations: a new node and a derivative are one each,
// and one more for every 16 alternatives or operands of an intersection that are looked at.
func NewBuilder(fuel int) *Builder {
	b := &Builder{table: make([]Ex, 256), setIDs: map[ByteSet]int32{}, derived: map[uint64]Ex{},
		dead: map[Ex]bool{}, heads: map[Ex][]byte{},
		bySets: map[string][]byte{}, within: map[[2]Ex]bool{}, fuel: fuel, given: fuel}
	b.nodes = append(b.nodes,
		node{kind: kEmpty, plain: true, size: finite, least: most, whole: inJSON | inText},
		node{kind: kEps, nullable: true, plain: true, size: some | finite, whole: inJSON | inText})
	return b
}

// Refuel sets what is left to do to fuel operations, and clears Exhausted, unless the Builder is
// Full.
func (b *Builder) Refuel(fuel int) {
	b.fuel, b.given, b.out = fuel, fuel, b.full
	if b.full {
		b.fuel = 0
	}
}

// Given is what there was to do at the beginning, or at the last Refuel.
func (b *Builder) Given() int { return b.given }

// Fuel is what is left to do.
func (b *Builder) Fuel() int { return b.fuel }

// Exhausted says whether an operation since the last Refuel wanted more than there was. The
// result of that operation, and everything made from it, is to be thrown away: nothing wrong was
// remembered by the Builder itself.
func (b *Builder) Exhausted() bool { return b.out || b.Stopped() }

// Stopped says that the work is not to go on.
func (b *Builder) Stopped() bool { return b.stop != nil && b.stop() }

// Len is the number of expressions.
func (b *Builder) Len() int { return len(b.nodes) }

// Limit bounds the memory that the Builder, and those that have it Hold, may come to, in bytes as
// Held counts them; what would need more is Exhausted, and Full says why. 0 is no bound.
func (b *Builder) Limit(bytes int) { b.most = bytes }

// StopAt has the Builder Exhausted, and Stopped, from when stop says so; nil is never.
func (b *Builder) StopAt(stop func() bool) { b.stop = stop }

// Held is the memory of all that is remembered, in bytes. It is counted by what is there, the same
// on every machine: what the run-time system takes for it is up to three times as much, while it
// grows.
func (b *Builder) Held() int { return b.held }

// Hold counts memory of others that grows with the expressions. A negative number gives back.
func (b *Builder) Hold(bytes int) {
	b.held += bytes
	if b.most > 0 && b.held > b.most {
		b.fuel, b.out, b.full = 0, true, true
	}
}

// Full says that the limit on memory has been passed. It stays so.
func (b *Builder) Full() bool { return b.full }

// Bytes of what is remembered: of a node with its places in the hash table, of an operand, and of
// an entry of a map. Maps and tables are half empty when they have just grown.
const (
	nodeBytes  = 40 + 4 + 12
	argBytes   = 4
	entryBytes = 40
)

// perUnit is how many operands take as long as an operation.
const perUnit = 16

func (b *Builder) spend() bool { return b.spendN(1) }

// Spend counts n operations of others on what the expressions stand for, and says whether there was
// so much left to do.
func (b *Builder) Spend(n int) bool { return b.spendN(n) }

func (b *Builder) spendN(n int) bool {
	if b.fuel < n || b.Stopped() {
		b.fuel, b.out = 0, true
		return false
	}
	b.fuel -= n
	return true
}

func (b *Builder) operands(n *node) []Ex { return b.args[n.a:n.b] }

func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9E3779B97F4A7C15
	return h ^ h>>29
}

func (b *Builder) hash(n *node, args []Ex) uint64 {
	h := mix(uint64(n.kind)+1, uint64(uint32(n.min))<<32|uint64(uint32(n.max)))
	h = mix(h, uint64(uint32(n.set)))
	if n.kind == kOr || n.kind == kAnd {
		for _, a := range args {
			h = mix(h, uint64(uint32(a)))
		}
		return h
	}
	return mix(h, uint64(uint32(n.a))<<32|uint64(uint32(n.b)))
}

func (b *Builder) same(x Ex, n *node, args []Ex) bool {
	o := &b.nodes[x]
	if o.kind != n.kind || o.min != n.min || o.max != n.max || o.set != n.set {
		return false
	}
	if n.kind == kOr || n.kind == kAnd {
		return slices.Equal(b.operands(o), args)
	}
	return o.a == n.a && o.b == n.b
}

// intern is the id of a node. Without fuel a node is still made, so that an operation under way
// ends with something; the operations that could go on for long look at the fuel themselves.
func (b *Builder) intern(n node, args []Ex) Ex {
	mask := uint64(len(b.table) - 1)
	i := b.hash(&n, args) & mask
	for ; b.table[i] != 0; i = (i + 1) & mask {
		if b.same(b.table[i], &n, args) {
			return b.table[i]
		}
	}
	b.spendN(1 + len(args)/perUnit)
	if n.kind == kOr || n.kind == kAnd {
		n.a = Ex(len(b.args))
		b.args = append(b.args, args...)
		n.b = Ex(len(b.args))
	}
	b.Hold(nodeBytes + len(args)*argBytes)
	n.least, n.whole, n.size = b.least(&n), b.whole(&n), b.size(&n)
	x := Ex(len(b.nodes))
	b.nodes = append(b.nodes, n)
	b.table[i] = x
	if len(b.nodes)*2 > len(b.table) {
		b.grow()
	}
	return x
}

// size looks at the operands only, so that it costs the same however deep they are. An infinite
// language without the texts of a finite one is the usual shape of what surely has a text.
func (b *Builder) size(n *node) size {
	s := size(0)
	switch n.kind {
	case kSet:
		s = finite
	case kCat:
		x, y := b.nodes[n.a].size, b.nodes[n.b].size
		s = x&y&(some|finite) | (x|y)&infinite
	case kRep:
		if n.max < 0 {
			s = infinite
		} else {
			s = b.nodes[n.a].size & finite
		}
	case kOr:
		s = finite
		for _, a := range b.operands(n) {
			o := b.nodes[a].size
			s = s&(o|some|infinite) | o&(some|infinite)
		}
	case kAnd:
		many := 0
		s = some
		for _, a := range b.operands(n) {
			o := &b.nodes[a]
			s |= o.size & finite
			switch {
			case o.plain && o.size&infinite != 0:
				many++
			case o.kind != kNot || b.nodes[o.a].size&finite == 0:
				s &^= some
			}
		}
		if many > 1 {
			s &^= some
		}
	case kNot:
		if b.nodes[n.a].size&finite != 0 {
			s = some
		}
	case kState:
		s = finite
		if n.max == 1 {
			s = infinite
		}
	}
	if n.plain {
		s |= some
	}
	return s
}

func (b *Builder) least(n *node) int32 {
	switch n.kind {
	case kSet:
		return 1
	case kState:
		return n.min
	case kCat:
		return min(b.nodes[n.a].least+b.nodes[n.b].least, most)
	case kRep:
		return int32(min(int64(n.min)*int64(b.nodes[n.a].least), most))
	case kOr:
		l := int32(most)
		for _, a := range b.operands(n) {
			l = min(l, b.nodes[a].least)
		}
		return l
	case kAnd:
		l := int32(0)
		for _, a := range b.operands(n) {
			l = max(l, b.nodes[a].least)
		}
		return l
	}
	switch {
	case n.nullable:
		return 0
	case n.kind == kMultiple && n.max == 0:
		return multipleLeast(int64(n.a), int64(n.b), n.min)
	}
	return 1
}

func (b *Builder) grow() {
	b.table = make([]Ex, 2*len(b.table))
	mask := uint64(len(b.table) - 1)
	for x := 2; x < len(b.nodes); x++ {
		n := &b.nodes[x]
		var args []Ex
		if n.kind == kOr || n.kind == kAnd {
			args = b.operands(n)
		}
		i := b.hash(n, args) & mask
		for b.table[i] != 0 {
			i = (i + 1) & mask
		}
		b.table[i] = Ex(x)
	}
}

// Set matches one byte of a set; the empty set is Empty.
func (b *Builder) Set(s ByteSet) Ex {
	if s == (ByteSet{}) {
		return Empty
	}
	id, ok := b.setIDs[s]
	if !ok {
		id = int32(len(b.sets))
		b.sets = append(b.sets, s)
		b.setIDs[s] = id
		b.Hold(4 * entryBytes)
	}
	return b.intern(node{kind: kSet, set: id, plain: true}, nil)
}

// Bytes matches one byte of lo to hi.
func (b *Builder) Bytes(lo, hi byte) Ex {
	var s ByteSet
	s.Add(lo, hi)
	return b.Set(s)
}

// Lit matches exactly s.
func (b *Builder) Lit(s string) Ex {
	r := Eps
	for i := len(s) - 1; i >= 0 && !b.out; i-- {
		r = b.cat(b.Bytes(s[i], s[i]), r)
	}
	return r
}

// Lits matches exactly one of the texts. Texts with the same beginning share it, so that a
// derivative costs as much as there are different next bytes, not as there are texts.
func (b *Builder) Lits(texts []string) Ex {
	texts = slices.Clone(texts)
	slices.Sort(texts)
	return b.lits(slices.Compact(texts), 0)
}

func (b *Builder) lits(texts []string, at int) Ex {
	if len(texts) == 1 {
		return b.Lit(texts[0][at:])
	}
	var alts []Ex
	if len(texts) > 0 && len(texts[0]) == at {
		alts = append(alts, Eps)
		texts = texts[1:]
	}
	for len(texts) > 0 && !b.out {
		c, n := texts[0][at], 1
		for n < len(texts) && texts[n][at] == c {
			n++
		}
		// What all of them share is one literal: the depth of the recursion is that of the
		// branches.
		end := at + 1
		for first, last := texts[0], texts[n-1]; end < len(first) && first[end] == last[end]; {
			end++
		}
		alts = append(alts, b.Cat(b.Lit(texts[0][at:end]), b.lits(texts[:n], end)))
		texts = texts[n:]
	}
	return b.Or(alts...)
}

// Cat matches the expressions one after another; without any it is Eps.
func (b *Builder) Cat(xs ...Ex) Ex {
	r := Eps
	for i := len(xs) - 1; i >= 0 && !b.out; i-- {
		r = b.cat(xs[i], r)
	}
	return r
}

func (b *Builder) cat(x, y Ex) Ex {
	if x == Empty || y == Empty {
		return Empty
	}
	if x == Eps {
		return y
	}
	if y == Eps {
		return x
	}
	whole := b.nodes[x].whole & b.nodes[y].whole
	var spine []Ex // of x, which may be as long as a text
	for b.nodes[x].kind == kCat {
		spine = append(spine, b.nodes[x].a)
		x = b.nodes[x].b
	}
	y = b.cat2(x, y)
	for i := len(spine) - 1; i >= 0 && !b.out; i-- {
		y = b.cat2(spine[i], y)
	}
	return b.mark(y, whole)
}

func (b *Builder) cat2(x, y Ex) Ex {
	nx, ny := &b.nodes[x], &b.nodes[y]
	return b.intern(node{kind: kCat, a: x, b: y, nullable: nx.nullable && ny.nullable,
		plain: nx.plain && ny.plain}, nil)
}

// Rep matches x lo to hi times; hi may be Inf. A count is one node whatever its value. Bounds
// above 2³¹-1 are taken for that; hi below lo gives Empty.
func (b *Builder) Rep(x Ex, lo, hi int) Ex {
	const top = 1<<31 - 1
	lo = max(lo, 0)
	if hi < 0 {
		hi = Inf
	} else if hi < lo {
		return Empty
	}
	lo, hi = min(lo, top), min(hi, top)
	switch {
	case hi == 0 || x == Eps:
		return Eps
	case x == Empty && lo > 0:
		return Empty
	case x == Empty:
		return Eps
	}
	n := &b.nodes[x]
	if n.nullable {
		lo = 0
	}
	if lo == 1 && hi == 1 {
		return x
	}
	if n.kind == kRep && n.max == Inf && n.min <= 1 && lo <= 1 && hi != 0 { // (x*)* and the like
		return b.Rep(n.a, min(int(n.min), lo), Inf)
	}
	if lo == 0 && hi == 1 {
		return b.Or(Eps, x)
	}
	return b.intern(node{kind: kRep, a: x, min: int32(lo), max: int32(hi),
		nullable: lo == 0, plain: n.plain}, nil)
}

// Star, Plus and Opt are Rep with 0 to Inf, 1 to Inf and 0 to 1.
func (b *Builder) Star(x Ex) Ex { return b.Rep(x, 0, Inf) }

// Plus is x at least once.
func (b *Builder) Plus(x Ex) Ex { return b.Rep(x, 1, Inf) }

// Opt is x or nothing.
func (b *Builder) Opt(x Ex) Ex { return b.Or(Eps, x) }
