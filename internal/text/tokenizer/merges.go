package tokenizer

import "math/bits"

// noMerge is the value of a pair that does not merge; it is larger than that of any that does.
const noMerge = ^uint64(0)

// mergeTable maps a pair of token ids to rank<<32 | id of the merged token: of two merges the one
// with the smaller value comes first. It is a hash table with open addressing, since merging is
// little but look-ups in it.
type mergeTable struct {
	slots []mergeSlot
	shift uint8
}

type mergeSlot struct {
	pair  uint64
	value uint64
}

// newMergeTable makes room for n merges.
func newMergeTable(n int) *mergeTable {
	size := max(bits.Len(uint(n+n/3)), 3) // at most three quarters full
	t := &mergeTable{slots: make([]mergeSlot, 1<<size), shift: uint8(64 - size)}
	for i := range t.slots {
		t.slots[i].value = noMerge
	}
	return t
}

func pairOf(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// slot returns the slot that holds the pair or the free one where it belongs.
func (t *mergeTable) slot(pair uint64) *mergeSlot {
	const golden = 0x9e3779b97f4a7c15 // 2^64 ÷ the golden ratio: multiplicative (Fibonacci) hashing
	i := pair * golden >> t.shift
	for {
		s := &t.slots[i&uint64(len(t.slots)-1)]
		if s.pair == pair || s.value == noMerge {
			return s
		}
		i++
	}
}

// put enters a merge. A pair that is listed twice has its later rank, as in Hugging Face's
// tokenizers.
func (t *mergeTable) put(a, b int32, rank int, merged int32) {
	pair := pairOf(a, b)
	*t.slot(pair) = mergeSlot{pair, uint64(rank)<<32 | uint64(uint32(merged))}
}

// get returns the value of a pair, or noMerge.
func (t *mergeTable) get(a, b int32) uint64 {
	s := t.slot(pairOf(a, b))
	return s.value
}
