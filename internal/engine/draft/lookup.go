package draft

// index finds in a text where tokens occurred before, as LZ77 finds what to copy: places, each
// before a token of the text, are chained by a hash of the tokens before them.
type index struct {
	levels []level
}

// level chains places by so many tokens before them.
type level struct {
	gram   int
	heads  []int32 // by hash: the last place, plus one
	before []int32 // by place less gram: the place before with that hash, plus one
}

// longestChain is how many places of a hash are compared, at most.
const longestChain = 16

// newIndex is that of an empty text, by these numbers of tokens, the greatest first.
func newIndex(grams []int) index {
	x := index{levels: make([]level, len(grams))}
	for i, gram := range grams {
		x.levels[i].gram = gram
	}
	return x
}

// hash is that of the tokens before a place.
func (l *level) hash(tokens []int32, place int) uint32 {
	h := uint64(0)
	for _, t := range tokens[place-l.gram : place] {
		h = (h ^ uint64(uint32(t))) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return uint32(h) & uint32(len(l.heads)-1)
}

// learn adds the places of a text that grew. Its end is no place yet: nothing follows it.
func (x *index) learn(tokens []int32) {
	for i := range x.levels {
		x.levels[i].learn(tokens)
	}
}

func (l *level) learn(tokens []int32) {
	if len(tokens) > len(l.heads) {
		n := 256
		for n < len(tokens)+len(tokens)/2 {
			n *= 2
		}
		l.heads = make([]int32, n)
		l.before = append(make([]int32, 0, n), l.before[:0]...)
	}
	for place := l.gram + len(l.before); place < len(tokens); place++ {
		head := &l.heads[l.hash(tokens, place)]
		l.before = append(l.before, *head)
		*head = int32(place + 1)
	}
}

// match is a place of a text before which the last tokens of another stand, or of the same: then it
// has no end, as what is guessed goes on in it.
type match struct {
	text    []int32
	place   int
	endless bool
}

// found are matches of equal length.
type found struct {
	list   []match
	length int
}

// most is how many of the longest matches are kept, the last ones of each text.
func (f *found) add(m match, length, most int) {
	if length > f.length {
		f.list, f.length = f.list[:0], length
	}
	if length == f.length && len(f.list) < most {
		f.list = append(f.list, m)
	}
}

// find adds places of a text by the i-th level.
func (x *index) find(f *found, i int, text, tokens []int32, c *Config, endless bool) {
	l := &x.levels[i]
	if len(tokens) < l.gram || len(l.heads) == 0 {
		return
	}
	at := int(l.heads[l.hash(tokens, len(tokens))])
	for range longestChain {
		if at == 0 {
			return
		}
		place := at - 1
		n := 0
		for n < min(place, len(tokens), c.Max) && text[place-1-n] == tokens[len(tokens)-1-n] {
			n++
		}
		if n >= l.gram {
			f.add(match{text, place, endless}, n, max(1, c.Votes))
		}
		at = int(l.before[place-l.gram])
	}
}

// next is the i-th token after the match, -1 where its text has ended. guessed are those before it.
func (m *match) next(i int, guessed []int32) int32 {
	if at := m.place + i; at < len(m.text) {
		return m.text[at]
	} else if m.endless {
		return guessed[at-len(m.text)]
	}
	return end
}

// end stands after each output in a History.
const end = -1
