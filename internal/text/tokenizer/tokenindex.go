package tokenizer

import (
	"hash/maphash"
	"math/bits"
)

// tokenIndex finds the id of a token among the texts that it was given. It is a hash table with
// open addressing that holds no pointers: a vocabulary is entered and looked up several times at
// each start. The seeded hash keeps files from aiming at slots.
type tokenIndex struct {
	seed maphash.Seed
	// slots are the upper half of a token's hash and its id + 1; 0 is free. At most three quarters
	// are in use.
	slots []uint64
	used  int // slots that are not free, those of removed tokens among them
	count int
}

// goneSlot is a slot whose token is gone: what was entered after it may lie behind.
const goneSlot = 1<<32 - 1

// newTokenIndex makes room for n tokens.
func newTokenIndex(n int) tokenIndex {
	size := max(bits.Len(uint(n+n/3)), 3)
	return tokenIndex{seed: maphash.MakeSeed(), slots: make([]uint64, 1<<size)}
}

// find returns the slot of a token, spelled by texts, with its id; of a token that is not there the
// free slot where it belongs, with id -1.
func (x *tokenIndex) find(hash uint64, token string, texts []string) (slot int, id int32) {
	mask := len(x.slots) - 1
	for i := int(hash) & mask; ; i = (i + 1) & mask {
		s := x.slots[i]
		if s == 0 {
			return i, -1
		}
		if s>>32 == hash>>32 && uint32(s) != goneSlot {
			if id := int32(uint32(s) - 1); texts[id] == token {
				return i, id
			}
		}
	}
}

// enter gives texts[id] its id, in place of another, and reports whether it had none.
func (x *tokenIndex) enter(id int32, texts []string) bool {
	if 4*(x.used+1) > 3*len(x.slots) {
		x.grow(texts)
	}
	hash := maphash.String(x.seed, texts[id])
	slot, other := x.find(hash, texts[id], texts)
	x.slots[slot] = hash>>32<<32 | uint64(uint32(id)+1)
	if other >= 0 {
		return false
	}
	x.used++
	x.count++
	return true
}

// remove forgets a token.
func (x *tokenIndex) remove(token string, texts []string) {
	if slot, id := x.find(maphash.String(x.seed, token), token, texts); id >= 0 {
		x.slots[slot] = goneSlot
		x.count--
	}
}

func (x *tokenIndex) grow(texts []string) {
	old := x.slots
	x.slots = make([]uint64, 2*len(old))
	x.used, x.count = 0, 0
	for _, s := range old {
		if s != 0 && uint32(s) != goneSlot {
			x.enter(int32(uint32(s)-1), texts)
		}
	}
}
