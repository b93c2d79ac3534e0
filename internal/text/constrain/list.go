package constrain

import (
	"encoding/binary"
	"slices"
)

// reach says whether an item before element i of an ordered list, which has had so many of them,
// may go on with element j.
func (l *list) reach(i, j, had int64) bool {
	return j == i || j > i && had >= l.elems[i].min && l.least[i+1] == l.least[j]
}

// counts are those in an item's word: of the element at hand of an ordered list, and of all.
func (l *list) counts(word uint64) (had, total int64) {
	if l.anyOrder {
		return 0, l.field(l.vector(word), 0)
	}
	return int64(word & (1<<32 - 1)), int64(word >> 32)
}

// field is a count of a list in any order: 0 is that of all, 1+j that of element j.
func (l *list) field(v []uint64, i int) int64 {
	f := &l.fields[i]
	return int64(v[f.word] >> f.shift & (1<<f.width - 1))
}

// vector is the counts of a list in any order: the word of an item, or, where those are too many,
// what the word is the number of.
func (l *list) vector(word uint64) []uint64 {
	if l.vectors == nil {
		l.single[0] = word
		return l.single[:1]
	}
	return l.vectors[word]
}

// word is that of counts; the inverse of vector.
func (l *list) word(v []uint64) uint64 {
	if l.vectors == nil {
		return v[0]
	}
	key := make([]byte, 0, 8*len(v))
	for _, w := range v {
		key = binary.LittleEndian.AppendUint64(key, w)
	}
	id, ok := l.numbers[string(key)]
	if !ok {
		id = uint64(len(l.vectors))
		l.vectors = append(l.vectors, slices.Clone(v))
		l.numbers[string(key)] = id
	}
	return id
}

// take is the word after element j, when it may be next: when afterwards the bounds can still be
// kept.
func (l *list) take(at int32, word uint64, j int32) (after uint64, ok bool) {
	had, total := l.counts(word)
	e := &l.elems[j]
	if l.max >= 0 && total >= l.max {
		return 0, false
	}
	if l.anyOrder {
		return l.takeAny(word, total, int(j))
	}
	if !l.reach(int64(at), int64(j), had) {
		return 0, false
	}
	if j != at {
		had = 0
	}
	if e.max >= 0 && had >= e.max {
		return 0, false
	}
	had++
	least := l.least[j+1] + max(e.min-had, 0)
	if l.prefix {
		least = 0
	}
	if l.max >= 0 && total+1+least > l.max {
		return 0, false
	}
	if l.most[j] >= 0 && total+1+l.most[j]-had < l.min {
		return 0, false
	}
	if e.max < 0 {
		had = min(had, e.min)
	}
	return uint64(had) | uint64(l.saturated(total+1))<<32, true
}

// saturated is a total, as far as it matters.
func (l *list) saturated(total int64) int64 {
	if l.max < 0 {
		return min(total, l.min)
	}
	return total
}

func (l *list) takeAny(word uint64, total int64, j int) (after uint64, ok bool) {
	e := &l.elems[j]
	v := l.vector(word)
	had := l.field(v, 1+j)
	if e.max >= 0 && had >= e.max {
		return 0, false
	}
	v = append(l.scratch[:0], v...)
	l.scratch = v
	if e.max >= 0 || had < e.min {
		v[l.fields[1+j].word] += 1 << l.fields[1+j].shift
	}
	v[0] = v[0]&^(1<<l.fields[0].width-1) | uint64(l.saturated(total+1))
	if l.max >= 0 || l.min > 0 {
		var least, most int64
		for k := range l.elems {
			e, had := &l.elems[k], l.field(v, 1+k)
			least += max(e.min-had, 0)
			if e.max < 0 {
				most = inf
			} else if most >= 0 {
				most += e.max - had
			}
		}
		if l.max >= 0 && total+1+least > l.max || most >= 0 && total+1+most < l.min {
			return 0, false
		}
	}
	return l.word(v), true
}

// next is the first element from j on that may be next, -1 for none.
func (l *list) next(at int32, word uint64, j int32) int32 {
	for ; int(j) < len(l.elems); j++ {
		if _, ok := l.take(at, word, j); ok {
			return j
		}
		if had, _ := l.counts(word); !l.anyOrder && j > at && !l.reach(int64(at), int64(j), had) {
			break
		}
	}
	return -1
}

// mayEnd says whether the list may end after element at.
func (l *list) mayEnd(at int32, word uint64) bool {
	had, total := l.counts(word)
	switch {
	case total < l.min:
		return false
	case l.prefix:
		return true
	case !l.anyOrder:
		return had >= l.elems[at].min && l.least[at+1] == 0
	}
	v := l.vector(word)
	for j := range l.elems {
		if l.field(v, 1+j) < l.elems[j].min {
			return false
		}
	}
	return true
}

// begin is the element at which an ordered list stands before its first.
func (l *list) after(j int32) int32 {
	if l.anyOrder {
		j = 0
	}
	return l.before + 2*j + 1
}
