package constrain

import "slices"

// item is a place in a rule that began at a row, with the counts of a list.
type item struct {
	dot  int32
	org  *row
	word uint64
}

// row is where the text may be at a boundary between lexemes: an Earley set. It does not change,
// but for the rows that were found to follow it.
type row struct {
	items  []item
	kids   []kid
	merged map[string]*row
	tokens []int32 // sets of special tokens that may come next
	lex    int32   // the lexer state here
	serial int32
	accept bool
}

// kid is the row after a set of lexemes, or, negative, of token sets.
type kid struct {
	ends int32
	row  *row
}

// parser makes rows.
type parser struct {
	*program
	lx        *lexer
	root      *row
	serial    int32
	memo      int // rows that others remember
	memoItems int // items of those
	epoch     int32
	predicted []int32 // the epoch of the last row in which a nonterminal was
	seen      []int32 // a hash table over work: index+1 when of this epoch
	seenEpoch []int32
	work      []item
	lexemes   []int32
	fuel      int
	maxItems  int
	crowded   bool
}

// maxMemo is how many rows are remembered by those before them, maxMemoItems how many items they
// have together.
const (
	maxMemo      = 1 << 14
	maxMemoItems = 1 << 19
)

// itemsPerUnit is how many items are looked at in the time that one more takes.
const itemsPerUnit = 8

// itemBytes is the size of an item, rowBytes what a row takes beside its items.
const (
	itemBytes = 24
	rowBytes  = 160
)

func newParser(p *program, lx *lexer, fuel, maxItems int) *parser {
	ps := &parser{program: p, lx: lx, predicted: make([]int32, len(p.nts)),
		seen: make([]int32, 64), seenEpoch: make([]int32, 64), fuel: fuel, maxItems: maxItems}
	ps.restart()
	return ps
}

// restart makes the first row anew: what the old one remembers is forgotten with it.
func (p *parser) restart() {
	p.lx.b.Hold(-p.memo*rowBytes - p.memoItems*itemBytes)
	p.memo, p.memoItems = 0, 0
	r := &row{}
	p.begin(r)
	p.predict(r, p.start)
	r.accept = p.nts[p.start].nullable
	p.close(r, r)
	p.root = r
}

// spent says that a row could not be made for want of fuel or because it has too many items.
func (p *parser) spent() bool { return p.crowded || p.fuel < 0 || p.lx.spent() }

func (p *parser) begin(r *row) {
	p.serial++
	r.serial = p.serial
	p.epoch++
	p.work = p.work[:0]
}

func hashItem(it item) uint64 {
	h := uint64(it.dot)<<32 ^ uint64(it.org.serial) ^ it.word*0x9E3779B97F4A7C15
	h *= 0xD6E8FEB86659FD93
	return h ^ h>>32
}

// push adds an item to the row being made.
func (p *parser) push(it item) {
	mask := uint64(len(p.seen) - 1)
	i := hashItem(it) & mask
	for ; p.seenEpoch[i] == p.epoch; i = (i + 1) & mask {
		if p.work[p.seen[i]] == it {
			return
		}
	}
	if len(p.work) >= p.maxItems {
		p.crowded = true
		return
	}
	p.fuel--
	p.seen[i], p.seenEpoch[i] = int32(len(p.work)), p.epoch
	p.work = append(p.work, it)
	if 2*len(p.work) > len(p.seen) {
		p.grow()
	}
}

func (p *parser) grow() {
	p.seen, p.seenEpoch = make([]int32, 2*len(p.seen)), make([]int32, 2*len(p.seen))
	mask := uint64(len(p.seen) - 1)
	for k, it := range p.work {
		i := hashItem(it) & mask
		for p.seenEpoch[i] == p.epoch {
			i = (i + 1) & mask
		}
		p.seen[i], p.seenEpoch[i] = int32(k), p.epoch
	}
}

func (p *parser) predict(r *row, nt int32) {
	if p.predicted[nt] == p.epoch {
		return
	}
	p.predicted[nt] = p.epoch
	for _, d := range p.nts[nt].starts {
		p.push(item{dot: d, org: r})
	}
}

// close completes and predicts until nothing is new, and says what may come next. root is the first
// row of the text.
func (p *parser) close(r, root *row) {
	p.lexemes = p.lexemes[:0]
	for k := 0; k < len(p.work) && !p.crowded && p.fuel >= 0; k++ {
		it := p.work[k]
		switch d := p.dots[it.dot]; d.kind {
		case dotEnd:
			// What is complete where it began is empty: predict goes past it.
			if it.org == r {
				continue
			}
			if d.arg == p.start && it.org == root {
				r.accept = true
			}
			p.fuel -= len(it.org.items) / itemsPerUnit // to look at those that wait for another
			if p.fuel < 0 {
				break
			}
			for i := range it.org.items {
				p.complete(&it.org.items[i], d.arg)
			}
		case dotLexeme:
			p.lexemes = append(p.lexemes, d.arg)
		case dotTokens:
			r.tokens = append(r.tokens, d.arg)
		case dotRule:
			p.predict(r, d.arg)
			if p.nts[d.arg].nullable {
				p.push(item{it.dot + 1, it.org, it.word})
			}
		case dotBefore:
			p.closeBefore(r, it, &p.lists[d.arg], d.elem)
		case dotAfter:
			p.closeAfter(r, it, &p.lists[d.arg], d.elem)
		}
	}
	r.items = make([]item, 0, len(p.work))
	for _, it := range p.work {
		if p.dots[it.dot].kind != dotEnd {
			r.items = append(r.items, it)
		}
	}
	slices.Sort(p.lexemes)
	lives := p.lx.scratch[:0]
	for _, l := range slices.Compact(p.lexemes) {
		lives = append(lives, live{l, p.program.lexemes[l]})
	}
	p.lx.scratch = lives
	r.lex = p.lx.state(lives)
	slices.Sort(r.tokens)
	r.tokens = slices.Compact(r.tokens)
}

// what notes what the next thing may be.
func (p *parser) what(r *row, d dot) {
	switch d.kind {
	case dotLexeme:
		p.lexemes = append(p.lexemes, d.arg)
	case dotTokens:
		r.tokens = append(r.tokens, d.arg)
	case dotRule:
		p.predict(r, d.arg)
	}
}

func (p *parser) closeBefore(r *row, it item, l *list, at int32) {
	for j := l.next(at, it.word, 0); j >= 0; j = l.next(at, it.word, j+1) {
		e := &l.elems[j]
		p.what(r, e.what)
		if e.nullable && l.sep.kind != dotEnd {
			word, _ := l.take(at, it.word, j)
			p.push(item{l.after(j), it.org, word})
		}
	}
}

func (p *parser) closeAfter(r *row, it item, l *list, at int32) {
	if l.mayEnd(at, it.word) {
		p.push(item{dot: p.nts[l.nt].end, org: it.org})
	}
	if l.next(at, it.word, 0) < 0 {
		return
	}
	if l.sep.kind == dotEnd {
		p.push(item{it.dot - 1, it.org, it.word})
		return
	}
	p.what(r, l.sep)
	if l.sep.kind == dotRule && p.nts[l.sep.arg].nullable {
		p.push(item{it.dot - 1, it.org, it.word})
	}
}

// complete moves an item that waits for a nonterminal past it.
func (p *parser) complete(it *item, nt int32) {
	switch d := p.dots[it.dot]; d.kind {
	case dotRule:
		if d.arg == nt {
			p.push(item{it.dot + 1, it.org, it.word})
		}
	case dotBefore:
		l := &p.lists[d.arg]
		for _, j := range l.byRule[nt] {
			p.pass(it, l, d.elem, j)
		}
	case dotAfter:
		l := &p.lists[d.arg]
		if l.sep.kind == dotRule && l.sep.arg == nt && l.next(d.elem, it.word, 0) >= 0 {
			p.push(item{it.dot - 1, it.org, it.word})
		}
	}
}

// pass moves an item of a list past element j, if it may.
func (p *parser) pass(it *item, l *list, at, j int32) {
	if word, ok := l.take(at, it.word, j); ok {
		p.push(item{l.after(j), it.org, word})
	}
}

// seed pushes the items of a row past the lexemes, or past the special tokens, of a set.
func (p *parser) seed(r *row, ends int32) {
	kind := dotLexeme
	if ends < 0 {
		kind, ends = dotTokens, -ends
	}
	set := p.lx.sets[ends]
	for i := range r.items {
		it := &r.items[i]
		switch d := p.dots[it.dot]; d.kind {
		case kind:
			if slices.Contains(set, d.arg) {
				p.push(item{it.dot + 1, it.org, it.word})
			}
		case dotBefore:
			l := &p.lists[d.arg]
			by := l.byLexeme
			if kind == dotTokens {
				by = l.byTokens
			}
			for _, x := range set {
				for _, j := range by[x] {
					p.enter(r, it, l, d.elem, j)
				}
			}
		case dotAfter:
			l := &p.lists[d.arg]
			if l.sep.kind == kind && slices.Contains(set, l.sep.arg) &&
				l.next(d.elem, it.word, 0) >= 0 {
				p.push(item{it.dot - 1, it.org, it.word})
			}
		}
	}
}

// enter moves past the first lexeme of element j, which may be all of it.
func (p *parser) enter(r *row, it *item, l *list, at, j int32) {
	if into := l.elems[j].into; into >= 0 {
		if _, ok := l.take(at, it.word, j); ok {
			p.push(item{dot: into, org: r})
		}
		return
	}
	p.pass(it, l, at, j)
}

// remembers says whether a row that has been made is to be remembered, and counts it.
func (p *parser) remembers(r *row) bool {
	if p.spent() || p.memoFull() {
		return false
	}
	p.memo++
	p.memoItems += len(r.items)
	p.lx.b.Hold(rowBytes + len(r.items)*itemBytes)
	return true
}

// memoFull says that no more rows are remembered.
func (p *parser) memoFull() bool { return p.memo >= maxMemo || p.memoItems >= maxMemoItems }

// scan is the row after a row and a set of lexemes, or, negative, of token sets.
func (p *parser) scan(root, r *row, ends int32) *row {
	for _, k := range r.kids {
		if k.ends == ends {
			return k.row
		}
	}
	next := &row{}
	p.begin(next)
	p.seed(r, ends)
	p.close(next, root)
	if p.remembers(next) {
		r.kids = append(r.kids, kid{ends, next})
	}
	return next
}

// scanAll is the row after several rows that end at one place in the text.
func (p *parser) scanAll(root *row, from []ending) *row {
	if len(from) == 1 {
		return p.scan(root, from[0].row, from[0].ends)
	}
	var key []byte
	for _, f := range from {
		key = appendInt(appendInt(key, f.row.serial), f.ends)
	}
	first := from[0].row
	if r := first.merged[string(key)]; r != nil {
		return r
	}
	next := &row{}
	p.begin(next)
	for _, f := range from {
		p.seed(f.row, f.ends)
	}
	p.close(next, root)
	if p.remembers(next) {
		if first.merged == nil {
			first.merged = map[string]*row{}
		}
		first.merged[string(key)] = next
	}
	return next
}

// ending is a row whose lexemes of a set end.
type ending struct {
	row  *row
	ends int32
}
