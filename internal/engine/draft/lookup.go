package draft

// lookup finds in a text what followed the last tokens where they occurred before (prompt lookup
// decoding: Saxena 2023), as LZ77 finds what to copy: places are chained by a hash of the tokens
// before them.
type lookup struct {
	min, max int
	heads    []int32 // by hash: the last place, plus one
	before   []int32 // by place less min: the place before with that hash, plus one
}

// longestChain is how many places are compared.
const longestChain = 16

func newLookup(least, most int) *lookup { return &lookup{min: least, max: most} }

// hash is that of the tokens before a place.
func (l *lookup) hash(tokens []int32, place int) uint32 {
	h := uint32(0)
	for _, t := range tokens[place-l.min : place] {
		h = (h ^ uint32(t)) * 0x9e3779b1
		h ^= h >> 15
	}
	return h & uint32(len(l.heads)-1)
}

// learn adds the places of a text that grew. Its end is no place yet: nothing follows it.
func (l *lookup) learn(tokens []int32) {
	if len(tokens) > len(l.heads) {
		n := 256
		for n < len(tokens)+len(tokens)/2 {
			n *= 2
		}
		l.heads = make([]int32, n)
		l.before = append(make([]int32, 0, n), l.before[:0]...)
	}
	for place := l.min + len(l.before); place < len(tokens); place++ {
		head := &l.heads[l.hash(tokens, place)]
		l.before = append(l.before, *head)
		*head = int32(place + 1)
	}
}

// find returns the place before which most of the text's last tokens stand, of equal ones the last;
// 0 for none.
func (l *lookup) find(tokens []int32) (found int) {
	if len(tokens) <= l.min {
		return 0
	}
	longest := l.min - 1
	at := int(l.heads[l.hash(tokens, len(tokens))])
	for range longestChain {
		if at == 0 {
			break
		}
		place := at - 1
		n := 0
		for n < min(place, l.max) && tokens[place-1-n] == tokens[len(tokens)-1-n] {
			n++
		}
		if n > longest {
			if longest, found = n, place; n == l.max {
				break
			}
		}
		at = int(l.before[place-l.min])
	}
	return found
}

// draft appends what follows the found place, without the tokens that come first and are unknown. A
// text that repeats itself goes on doing so.
func (l *lookup) draft(dst, tokens []int32, unknown, n int) []int32 {
	l.learn(tokens)
	place := l.find(tokens)
	if place == 0 {
		return dst
	}
	period := len(tokens) - place
	for i := range n {
		dst = append(dst, tokens[place+(unknown+i)%period])
	}
	return dst
}
