package regex

import (
	"container/heap"
	"encoding/binary"
	"slices"
)

// Nullable says whether x matches the empty text.
func (b *Builder) Nullable(x Ex) bool { return b.nodes[x].nullable }

// Derivative matches the texts t for which x matches c·t. It is Empty when the fuel is out; see
// Exhausted.
func (b *Builder) Derivative(x Ex, c byte) Ex {
	n := b.nodes[x]
	switch n.kind {
	case kEmpty, kEps:
		return Empty
	case kSet:
		if b.sets[n.set].Has(c) {
			return Eps
		}
		return Empty
	case kCat:
		// The head of most is one byte: nothing to remember.
		if h := &b.nodes[n.a]; h.kind == kSet {
			if b.sets[h.set].Has(c) {
				return n.b
			}
			return Empty
		}
	}
	key := uint64(x)<<8 | uint64(c)
	if r, ok := b.derived[key]; ok {
		return r
	}
	cost := 1
	if n.kind == kOr || n.kind == kAnd {
		cost += int(n.b-n.a) / perUnit
	}
	if !b.spendN(cost) {
		return Empty
	}
	r := b.derive(&n, c)
	if !b.out {
		b.derived[key] = r
		b.Hold(entryBytes)
	}
	return r
}

func (b *Builder) derive(n *node, c byte) Ex {
	switch n.kind {
	case kCat:
		return b.deriveCat(*n, c)
	case kOr:
		l := make([]Ex, 0, n.b-n.a)
		for i := n.a; i < n.b; i++ {
			if d := b.Derivative(b.args[i], c); d != Empty {
				l = append(l, d)
			}
		}
		return b.Or(l...)
	case kAnd:
		l := make([]Ex, 0, n.b-n.a)
		for i := n.a; i < n.b; i++ {
			d := b.Derivative(b.args[i], c)
			if d == Empty {
				return Empty
			}
			l = append(l, d)
		}
		return b.And(l...)
	case kNot:
		return b.Not(b.Derivative(n.a, c))
	case kMultiple:
		return b.multipleBy(n, c)
	case kState:
		return b.Derivative(b.defs[n.a], c)
	}
	d := b.Derivative(n.a, c) // kRep
	if d == Empty {
		return Empty
	}
	lo, hi := n.min, n.max
	if lo > 0 {
		lo--
	}
	if hi > 0 {
		hi--
	}
	return b.cat(d, b.Rep(n.a, int(lo), int(hi)))
}

// deriveCat goes along what may be empty, which may be as long as a text, and puts together what
// comes of each part once.
func (b *Builder) deriveCat(n node, c byte) Ex {
	first := b.cat(b.Derivative(n.a, c), n.b)
	if !b.nodes[n.a].nullable || b.out {
		return first
	}
	l := []Ex{first}
	for x := n.b; ; x = n.b {
		n = b.nodes[x]
		if n.kind != kCat || !b.nodes[n.a].nullable {
			return b.Or(append(l, b.Derivative(x, c))...)
		}
		if r, known := b.derived[uint64(x)<<8|uint64(c)]; known {
			return b.Or(append(l, r)...)
		}
		if !b.spend() {
			return Empty
		}
		l = append(l, b.cat(b.Derivative(n.a, c), n.b))
	}
}

// Heads has one byte of each class of next bytes that x tells apart.
func (b *Builder) Heads(x Ex) []byte {
	if reps, ok := b.heads[x]; ok {
		return reps
	}
	var sets []int32
	b.visit++
	b.visited = append(b.visited, make([]uint32, len(b.nodes)-len(b.visited))...)
	seen := 0
	var visit func(x Ex)
	visit = func(x Ex) {
		for {
			if b.visited[x] == b.visit {
				return
			}
			b.visited[x] = b.visit
			seen++
			n := &b.nodes[x]
			switch n.kind {
			case kSet:
				sets = append(sets, n.set)
				return
			case kCat:
				if b.nodes[n.a].nullable {
					visit(n.a)
					x = n.b
					continue
				}
				x = n.a
				continue
			case kNot, kRep:
				x = n.a
				continue
			case kState:
				x = b.defs[n.a]
				continue
			case kMultiple:
				for _, c := range []byte(".0123456789") {
					var one ByteSet
					one.Add(c, c)
					sets = append(sets, b.setIDs[one])
				}
			case kOr, kAnd:
				for i := n.a; i < n.b; i++ {
					visit(b.args[i])
				}
			}
			return
		}
	}
	visit(x)
	b.spendN(seen / perUnit)
	slices.Sort(sets)
	sets = slices.Compact(sets)
	key := make([]byte, 0, 4*len(sets))
	for _, id := range sets {
		key = binary.LittleEndian.AppendUint32(key, uint32(id))
	}
	reps, ok := b.bySets[string(key)]
	if !ok {
		for range sets { // each is a look at every byte
			b.spend()
		}
		class, _ := partition(b.sets, sets)
		var done [256]bool
		for c := range 256 {
			if !done[class[c]] {
				done[class[c]] = true
				reps = append(reps, byte(c))
			}
		}
		b.bySets[string(key)] = reps
		b.Hold(2*entryBytes + len(key) + len(reps))
	}
	b.heads[x] = reps
	b.Hold(2 * entryBytes)
	return reps
}

// partition numbers the classes of bytes that no set tells apart.
func partition(sets []ByteSet, ids []int32) (class [256]uint8, n int) {
	n = 1
	for _, id := range ids {
		s := &sets[id]
		var in, all [256]int
		for c := range 256 {
			all[class[c]]++
			if s.Has(byte(c)) {
				in[class[c]]++
			}
		}
		var split [256]int
		for c := range 256 {
			k := class[c]
			if !s.Has(byte(c)) || in[k] == all[k] {
				continue
			}
			if split[k] == 0 {
				split[k] = n
				n++
			}
			class[c] = uint8(split[k])
		}
	}
	return class, n
}

// Classes numbers the bytes that no set of the Builder tells apart, from 0 to n-1: equal classes
// have equal derivatives of every expression that is there, and of every one made of those.
func (b *Builder) Classes() (class [256]uint8, n int) {
	ids := make([]int32, len(b.sets))
	for i := range ids {
		ids[i] = int32(i)
	}
	return partition(b.sets, ids)
}

// Dead says whether x matches no text at all. It is decided by shape for most, by exploration for
// intersections and complements. Without fuel it says false; see Exhausted.
func (b *Builder) Dead(x Ex) bool {
	n := &b.nodes[x]
	if x == Empty {
		return true
	}
	if n.plain || n.nullable {
		return false
	}
	if v, ok := b.dead[x]; ok {
		return v
	}
	if b.alive(x) {
		b.dead[x] = false
		return false
	}
	// What leads to a text is alive, too: the next question about any of it is answered.
	from := map[Ex]Ex{x: x}
	defer func() { b.Hold(-len(from) * entryBytes / 2) }() // half of it is remembered
	found := func(y Ex) {
		for ; !b.known(y); y = from[y] {
			b.dead[y] = false
		}
	}
	// What has the shortest way to a text, by its shape, comes first: a search among long texts
	// does not go through all lengths.
	for todo := (frontier{b, []Ex{x}}); len(todo.of) > 0; {
		y := heap.Pop(&todo).(Ex)
		heads := b.Heads(y)
		if !b.spendN(len(heads) / 4) { // to look at what is known takes time, too
			return false
		}
		for _, c := range heads {
			z := b.Derivative(y, c)
			if b.out {
				return false
			}
			if z == Empty {
				continue
			}
			if _, seen := from[z]; seen {
				continue
			}
			v, known := b.dead[z]
			if m := &b.nodes[z]; m.plain || m.nullable || known && !v || !known && b.alive(z) {
				found(y)
				return false
			}
			if known {
				continue
			}
			from[z] = y
			b.Hold(entryBytes)
			heap.Push(&todo, z)
		}
	}
	for y := range from {
		b.dead[y] = true
	}
	return true
}

// frontier is a heap of expressions: the first is one with the least bound on its texts' length.
type frontier struct {
	b  *Builder
	of []Ex
}

func (f *frontier) Len() int { return len(f.of) }
func (f *frontier) Less(i, j int) bool {
	return f.b.nodes[f.of[i]].least < f.b.nodes[f.of[j]].least
}
func (f *frontier) Swap(i, j int) { f.of[i], f.of[j] = f.of[j], f.of[i] }
func (f *frontier) Push(x any)    { f.of = append(f.of, x.(Ex)) }
func (f *frontier) Pop() any {
	last := f.of[len(f.of)-1]
	f.of = f.of[:len(f.of)-1]
	return last
}

// known says whether Dead has been answered.
func (b *Builder) known(x Ex) bool {
	_, ok := b.dead[x]
	return ok
}

// Within says whether y matches everything that x matches. Without fuel it says false.
func (b *Builder) Within(x, y Ex) bool {
	if x == y {
		return true
	}
	if v, ok := b.within[[2]Ex{x, y}]; ok {
		return v
	}
	v := b.Dead(b.Minus(x, y)) && !b.out
	if !b.out {
		b.within[[2]Ex{x, y}] = v
		b.Hold(entryBytes)
	}
	return v
}

// Match says whether x matches the text. Without fuel it says false.
func (b *Builder) Match(x Ex, text string) bool {
	for i := 0; i < len(text) && x != Empty; i++ {
		x = b.Derivative(x, text[i])
	}
	return b.nodes[x].nullable
}

// listedBytes bounds the length of texts that List finds.
const listedBytes = 256

// List is all texts that x matches, the short ones first, if they are at most n and not long.
// Without fuel it says that they are not.
func (b *Builder) List(x Ex, n int) (texts []string, ok bool) {
	type beginning struct {
		text string
		rest Ex
	}
	todo := []beginning{{"", x}}
	for ; len(todo) > 0; todo = todo[1:] {
		at := todo[0]
		if b.Nullable(at.rest) {
			texts = append(texts, at.text)
		}
		if len(texts) > n || len(todo) > 4*n || len(at.text) == listedBytes {
			return nil, false
		}
		for c := range 256 {
			rest := b.Derivative(at.rest, byte(c))
			if rest == Empty || b.Dead(rest) {
				continue
			}
			todo = append(todo, beginning{at.text + string([]byte{byte(c)}), rest})
		}
		if b.out {
			return nil, false
		}
	}
	return texts, true
}

// alive is a quick look: true means that x matches a text.
func (b *Builder) alive(x Ex) bool { return b.nodes[x].size&some != 0 }

// finite says that x surely matches only finitely many texts.
func (b *Builder) finite(x Ex) bool { return b.nodes[x].size&finite != 0 }

// Forget is an expression that agrees with x on every text of fewer than n bytes: it has a
// continuation in the one if it has one in the other, and both match it or neither does. Counts
// that are out of reach are the same count in it. That is done where x, or an alternative of it,
// begins with a repetition; elsewhere x is returned.
func (b *Builder) Forget(x Ex, n int) Ex {
	m := b.nodes[x]
	if !m.plain || !b.spend() { // what is shared is looked at wherever it stands
		return x
	}
	switch m.kind {
	case kCat:
		if h := b.Forget(m.a, n); h != m.a {
			return b.cat(h, m.b)
		}
	case kRep:
		lo, hi := min(int(m.min), n), int(m.max)
		if hi > n {
			hi = Inf
		}
		if lo != int(m.min) || hi != int(m.max) {
			return b.Rep(m.a, lo, hi)
		}
	case kOr:
		var alts []Ex
		for i := m.a; i < m.b; i++ {
			alts = append(alts, b.Forget(b.args[i], n))
		}
		return b.Or(alts...)
	}
	return x
}

// Holds says that every text of at most n characters, each one that the expression char matches,
// can be continued to one that x matches; n may be Inf. It looks at the shape only: false may be
// wrong, true is not. Without fuel it says false.
func (b *Builder) Holds(x, char Ex, n int) bool {
	m := b.nodes[x]
	if !b.spend() {
		return false
	}
	switch m.kind {
	case kRep:
		return (m.max < 0 || n >= 0 && int(m.max) >= n) && b.Within(char, m.a)
	case kCat:
		return b.Holds(m.a, char, n) && !b.Dead(m.b)
	case kOr:
		for i := m.a; i < m.b; i++ {
			if b.Holds(b.args[i], char, n) {
				return true
			}
		}
	case kNot:
		return b.finite(m.a)
	case kAnd:
		infinite := 0
		for i := m.a; i < m.b; i++ {
			a := b.args[i]
			if o := &b.nodes[a]; o.kind == kNot && b.finite(o.a) {
				continue
			}
			infinite++
			if !b.Holds(a, char, Inf) {
				return false
			}
		}
		return infinite <= 1
	}
	return false
}
