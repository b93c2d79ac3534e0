package constrain

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

const regexInf = regex.Inf

// live is one lexeme that the text since the last boundary may become, and what of it is missing.
type live struct {
	lexeme int32
	rest   regex.Ex
}

// stateBytes is what a state takes beside its lexemes and its table.
const stateBytes = 200

// Lexer states that every lexer has, and marks in the tables.
const (
	deadState = 0
	unknown   = -1
)

// lexState is a set of live lexemes.
type lexState struct {
	live  []live
	next  []int32 // by class of byte; unknown: not asked yet
	ends  int32   // the set of lexemes that may end here, 0 for none
	final bool    // no lexeme goes on
	mask  *lexMask
}

// lexer is a lazily built automaton over sets of lexemes. Its tables only grow.
type lexer struct {
	b        *regex.Builder
	class    [256]uint8
	sample   []byte // one byte of each class
	states   []lexState
	byLive   map[string]int32
	sets     [][]int32 // sets of lexemes, or of token symbols; 0 is none
	bySet    map[string]int32
	key      []byte
	scratch  []live
	safe     regex.Ex // one safe character
	dense    map[uint64][][]uint32
	limit    int
	overfull bool
}

func newLexer(b *regex.Builder, limit int) *lexer {
	l := &lexer{b: b, byLive: map[string]int32{}, bySet: map[string]int32{},
		states: make([]lexState, 1), sets: make([][]int32, 1), limit: limit,
		dense: map[uint64][][]uint32{}}
	l.safe = b.Runes(safeRanges...)
	var n int
	l.class, n = b.Classes()
	l.sample = make([]byte, n)
	for c := range 256 {
		l.sample[l.class[c]] = byte(c)
	}
	l.states[0].next = make([]int32, n)
	return l
}

func appendInt(key []byte, v int32) []byte {
	return append(key, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}

// set is the id of a sorted set, 0 for the empty one.
func (l *lexer) set(members []int32) int32 {
	if len(members) == 0 {
		return 0
	}
	l.key = l.key[:0]
	for _, m := range members {
		l.key = appendInt(l.key, m)
	}
	if id, ok := l.bySet[string(l.key)]; ok {
		return id
	}
	id := int32(len(l.sets))
	l.b.Hold(stateBytes/2 + 2*len(l.key))
	l.sets = append(l.sets, slices.Clone(members))
	l.bySet[string(l.key)] = id
	return id
}

// state is the id of a set of live lexemes, sorted.
func (l *lexer) state(lives []live) int32 {
	if len(lives) == 0 {
		return deadState
	}
	l.key = l.key[:0]
	for _, e := range lives {
		l.key = appendInt(appendInt(l.key, e.lexeme), int32(e.rest))
	}
	if id, ok := l.byLive[string(l.key)]; ok {
		return id
	}
	if len(l.states) >= l.limit {
		l.overfull = true
		return deadState
	}
	s := lexState{live: slices.Clone(lives), final: true}
	id := int32(len(l.states))
	l.b.Hold(stateBytes + 4*len(l.sample) + 2*len(l.key))
	l.byLive[string(l.key)] = id
	var ends []int32
	for _, e := range lives {
		if l.b.Nullable(e.rest) {
			ends = append(ends, e.lexeme)
		}
		s.final = s.final && e.rest == regex.Eps
	}
	s.ends = l.set(slices.Compact(ends))
	l.states = append(l.states, s)
	return id
}

// step is the state after one more byte. It is wrong, and not remembered, when the fuel is out; the
// caller looks at spent.
func (l *lexer) step(s int32, c byte) int32 {
	class := l.class[c]
	st := &l.states[s]
	if st.next == nil {
		st.next = make([]int32, len(l.sample))
		for i := range st.next {
			st.next[i] = unknown
		}
	}
	if t := st.next[class]; t != unknown {
		return t
	}
	c = l.sample[class]
	l.b.Spend(len(st.live) / 16) // to ask for what is known
	lives := l.scratch[:0]
	for _, e := range st.live {
		if d := l.b.Derivative(e.rest, c); d != regex.Empty && !l.b.Dead(d) {
			lives = append(lives, live{e.lexeme, d})
		}
	}
	l.scratch = lives
	if l.spent() {
		return deadState
	}
	t := l.state(lives)
	if !l.overfull {
		l.states[s].next[class] = t
	}
	return t
}

// spent says that an operation since the last refuelling could not be done.
func (l *lexer) spent() bool { return l.overfull || l.b.Exhausted() }

// canonical is a state with the same mask: counts that no token reaches the end of are alike.
func (l *lexer) canonical(s int32, longest int) int32 {
	changed := false
	lives := slices.Clone(l.states[s].live)
	for i, e := range lives {
		if r := l.b.Forget(e.rest, longest+1); r != e.rest {
			lives[i].rest, changed = r, true
		}
	}
	if !changed {
		return s
	}
	if t := l.state(lives); t != deadState {
		return t
	}
	return s
}
