package replicas

import (
	"encoding/binary"
	"hash/maphash"
)

// A prompt's beginnings are known by their hashes at some of the lengths that the prefix cache can
// find, which are whole blocks: each of the first fineBlocks, from there on every coarseBlocks-th.
// So a long prompt costs little, and what is not seen of a hit is a small part of it.
const (
	fineBlocks   = 16
	coarseBlocks = 8
)

// maxRemembered bounds what is remembered of an engine, in tokens: half a million hashes at most.
const maxRemembered = 8 << 20

// beginning is one of a prompt's beginnings.
type beginning struct {
	hash uint64
	// tokens is its length, step how much longer it is than the one before.
	tokens, step int
}

// beginnings appends those of a prompt, shortest first, without the last token: it is always
// computed. Only prompts of equal salt have equal ones. Hashes are keyed by the seed, which clients
// do not know; a collision would cost no more than a request on the slower engine.
func beginnings(list []beginning, seed maphash.Seed, salt string, prompt []int32,
	blockSize int) []beginning {
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(salt) // never fails
	var number [8]byte
	binary.LittleEndian.PutUint64(number[:], uint64(len(salt)))
	_, _ = h.Write(number[:])
	var buffer [256]byte
	done := 0
	for block := 1; ; {
		end := block * blockSize
		if end >= len(prompt) {
			return list
		}
		step := end - done
		for done < end {
			n := min(end-done, len(buffer)/4)
			for i, t := range prompt[done : done+n] {
				binary.LittleEndian.PutUint32(buffer[4*i:], uint32(t))
			}
			_, _ = h.Write(buffer[:4*n])
			done += n
		}
		list = append(list, beginning{h.Sum64(), end, step})
		if block < fineBlocks {
			block++
		} else {
			block += coarseBlocks
		}
	}
}

// prefixes remembers the beginnings of the prompts that an engine was given, about as long as the
// engine's prefix cache does: the newest, of as many tokens as the cache holds, at least half of
// them. It is right about what was sent and guesses what was evicted; a wrong guess costs time,
// never a wrong answer.
//
// There are two generations. What is used goes into the young one; when that holds half of the
// cache, it becomes the old one, and what was old is forgotten unless it was used meanwhile.
type prefixes struct {
	// capacity is the cache's size in tokens, spent what has gone into the young generation.
	capacity, spent int
	young, old      map[uint64]struct{}
}

func newPrefixes(capacity int) prefixes {
	return prefixes{capacity: capacity, young: map[uint64]struct{}{}, old: map[uint64]struct{}{}}
}

// match returns the number of leading tokens of a prompt that are believed to be cached.
func (p *prefixes) match(list []beginning) int {
	cached := 0
	for i := range list {
		if !p.has(list[i].hash) {
			break
		}
		cached = list[i].tokens
	}
	return cached
}

func (p *prefixes) has(hash uint64) bool {
	if _, ok := p.young[hash]; ok {
		return true
	}
	_, ok := p.old[hash]
	return ok
}

// add notes that the engine was given a prompt.
func (p *prefixes) add(list []beginning) {
	for i := range list {
		b := &list[i]
		if _, ok := p.young[b.hash]; ok {
			continue
		}
		p.young[b.hash] = struct{}{}
		p.spend(b.step)
	}
}

// spend records that tokens have taken room in the cache.
func (p *prefixes) spend(tokens int) {
	p.spent += tokens
	if p.spent < p.capacity/2 {
		return
	}
	p.young, p.old = p.old, p.young
	clear(p.young)
	p.spent = 0
}

// clear removes all beginnings: the engine has lost its cache.
func (p *prefixes) clear() {
	clear(p.young)
	clear(p.old)
	p.spent = 0
}
