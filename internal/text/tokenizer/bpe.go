package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// wordMark is the character (U+2581) that stands for a space in SentencePiece vocabularies.
const wordMark = "▁"

// bpe is the byte-pair encoding model: a piece becomes a row of symbols, one per character, and the
// neighbours whose merge ranks first are joined until no neighbours merge.
type bpe struct {
	vocab        *vocabulary
	merges       *mergeTable
	cache        *pieceCache
	ignoreMerges bool

	// rawBytes says that pieces are raw bytes and symbols are looked up in byteID: the byte-level
	// alphabet taken as read.
	rawBytes bool
	byteID   [256]int32

	// charID holds the tokens of one character, where pieces are text.
	charID         map[rune]int32
	prefix, suffix string // continuing_subword_prefix and end_of_word_suffix
	unknown        int32  // or -1
	fuseUnknown    bool
	// ids of <0x00> … <0xFF>, -1 for those missing; nil without byte_fallback
	fallback *[256]int32

	// cutWords says that no merge joins a character with a word mark after it. A text that reaches
	// the model in one piece can then be cut before each word without changing the result.
	cutWords bool

	// whole are pieces that stay whole whatever the merges say: SentencePiece's user-defined ones.
	whole map[string]int32
}

// encode appends the tokens of one piece.
func (m *bpe) encode(dst []int32, piece string, sc *scratch) []int32 {
	if id, ok := m.whole[piece]; ok {
		return append(dst, id)
	}
	if !m.cutWords {
		return m.encodeWord(dst, piece, sc)
	}
	start := 0
	for i := 1; i < len(piece); {
		skip := strings.Index(piece[i:], wordMark)
		if skip < 0 {
			break
		}
		if sc.done(skip + len(wordMark)) {
			return dst
		}
		i += skip
		if !strings.HasSuffix(piece[start:i], wordMark) {
			dst = m.encodeWord(dst, piece[start:i], sc)
			start = i
		}
		i += len(wordMark)
	}
	return m.encodeWord(dst, piece[start:], sc)
}

func (m *bpe) encodeWord(dst []int32, piece string, sc *scratch) []int32 {
	if m.rawBytes && len(piece) == 1 {
		return append(dst, m.byteID[piece[0]])
	}
	if len(piece) > maxCachedPiece {
		return m.merge(dst, piece, sc)
	}
	place := m.cache.place(piece)
	if c := place.find(piece); c != nil {
		return append(dst, c.ids[:c.count]...)
	}
	start := len(dst)
	dst = m.merge(dst, piece, sc)
	if sc.err == nil {
		place.store(piece, dst[start:])
	}
	return dst
}

// merge appends the tokens of a piece without the cache.
func (m *bpe) merge(dst []int32, piece string, sc *scratch) []int32 {
	if m.ignoreMerges {
		if m.rawBytes {
			sc.bytes = appendByteAlphabet(sc.bytes[:0], piece)
		} else {
			sc.bytes = append(sc.bytes[:0], piece...)
		}
		if id, ok := m.vocab.modelID(sc.bytes); ok {
			return append(dst, id)
		}
	}
	start := len(dst)
	if m.rawBytes {
		dst = slices.Grow(dst, len(piece))
		for i := range len(piece) {
			dst = append(dst, m.byteID[piece[i]])
		}
	} else {
		if len(piece) > workPart {
			dst = slices.Grow(dst, len(piece)) // no more copies
		}
		dst = m.symbols(dst, piece, sc)
	}
	n := 0
	if symbols := dst[start:]; len(symbols) <= maxScanned {
		n = m.mergeScan(symbols)
	} else {
		n = m.mergeHeap(symbols, sc)
	}
	return dst[:start+n]
}

// symbols appends one symbol per character of the piece; it follows BPE::merge_word of Hugging
// Face's tokenizers in what becomes of characters that are not in the vocabulary.
func (m *bpe) symbols(dst []int32, piece string, sc *scratch) []int32 {
	unknowns := 0 // unknown tokens seen but not yet appended: with byte fallback they may come late
	for i, r := range piece {
		size := utf8.RuneLen(r)
		if sc.done(size) {
			break
		}
		if id, ok := m.symbol(piece, i, size, r); ok {
			if unknowns > 0 {
				dst = append(dst, m.unknown)
				unknowns = 0
			}
			dst = append(dst, id)
			continue
		}
		if m.fallback != nil {
			var ok bool
			if dst, ok = m.appendFallback(dst, m.spelling(piece, i, size)); ok {
				continue
			}
		}
		if m.unknown < 0 {
			continue
		}
		if unknowns > 0 && !m.fuseUnknown {
			dst = append(dst, m.unknown)
		}
		unknowns = 1
	}
	if unknowns > 0 {
		dst = append(dst, m.unknown)
	}
	return dst
}

func (m *bpe) symbol(piece string, i, size int, r rune) (int32, bool) {
	if m.prefix == "" && m.suffix == "" {
		id, ok := m.charID[r]
		return id, ok
	}
	id, ok := m.vocab.id(m.spelling(piece, i, size))
	return id, ok
}

// spelling returns how the character at piece[i] is written in the vocabulary.
func (m *bpe) spelling(piece string, i, size int) string {
	s := piece[i : i+size]
	if i > 0 && m.prefix != "" {
		s = m.prefix + s
	}
	if i+size == len(piece) && m.suffix != "" {
		s += m.suffix
	}
	return s
}

// appendFallback appends the byte tokens of a character; it reports false when one is missing.
func (m *bpe) appendFallback(dst []int32, s string) ([]int32, bool) {
	start := len(dst)
	for i := range len(s) {
		id := m.fallback[s[i]]
		if id < 0 {
			return dst[:start], false
		}
		dst = append(dst, id)
	}
	return dst, true
}

// maxScanned is the number of symbols up to which looking at all pairs beats keeping them in a
// heap.
const maxScanned = 48

// mergeScan merges the symbols in place by looking for the first-ranking pair again and again, and
// returns how many are left. Of pairs with the same rank (pieces of SentencePiece with the same
// score) the leftmost comes first. Quadratic, but for the few symbols of a word the fastest way.
func (m *bpe) mergeScan(symbols []int32) int {
	var values [maxScanned]uint64
	n := len(symbols)
	for i := 0; i+1 < n; i++ {
		values[i] = m.merges.get(symbols[i], symbols[i+1])
	}
	for n > 1 {
		best, at := noMerge, 0
		for i, v := range values[:n-1] {
			if v < best && v>>32 != best>>32 {
				best, at = v, i
			}
		}
		if best == noMerge {
			break
		}
		symbols[at] = int32(uint32(best))
		copy(symbols[at+1:n-1], symbols[at+2:n])
		n--
		if at < n-1 {
			copy(values[at+1:n-1], values[at+2:n])
			values[at] = m.merges.get(symbols[at], symbols[at+1])
		}
		if at > 0 {
			values[at-1] = m.merges.get(symbols[at-1], symbols[at])
		}
	}
	return n
}

// linked is a symbol in the list that mergeHeap works on.
type linked struct {
	prev, next int32
	id         int32
	merged     int32  // what it becomes with its right neighbour
	rank       uint32 // rank of that merge, noRank when there is none
}

const noRank = ^uint32(0)

// mergeHeap merges the symbols in place and returns how many are left, in O(n log n). An entry of
// the heap is rank<<32 | position of the left symbol; it is stale when that symbol has another rank
// by now.
func (m *bpe) mergeHeap(symbols []int32, sc *scratch) int {
	// Memory that is new is not cleared by hand, and all of it is got at once: a word of megabytes
	// is not copied again and again.
	if cap(sc.list) < len(symbols) {
		sc.list = make([]linked, len(symbols))
		sc.heap = make([]uint64, 0, len(symbols))
	}
	list := sc.list[:len(symbols)]
	for i, id := range symbols {
		if sc.done(1) {
			return 0
		}
		list[i] = linked{prev: int32(i) - 1, next: int32(i) + 1, id: id}
	}
	list[len(list)-1].next = -1
	heap := sc.heap[:0]
	for i := range list {
		if sc.done(1) {
			return 0
		}
		if m.rankPair(list, int32(i)) {
			heap = append(heap, uint64(list[i].rank)<<32|uint64(i))
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		if sc.done(1) {
			return 0
		}
		heapDown(heap, i)
	}
	for len(heap) > 0 {
		if sc.done(1) {
			return 0
		}
		top := heap[0]
		at := int32(uint32(top))
		left := &list[at]
		if left.rank != uint32(top>>32) {
			heap = heapPop(heap)
			continue
		}
		right := &list[left.next]
		left.id = left.merged
		left.next = right.next
		right.rank = noRank
		if right.next >= 0 {
			list[right.next].prev = at
		}
		// Take the place of the top with one of the two new pairs: cheaper than a pop and a push.
		replaced := false
		if m.rankPair(list, at) {
			heap[0] = uint64(left.rank)<<32 | uint64(uint32(at))
			heapDown(heap, 0)
			replaced = true
		}
		if p := left.prev; p >= 0 && m.rankPair(list, p) {
			entry := uint64(list[p].rank)<<32 | uint64(uint32(p))
			if replaced {
				heap = heapPush(heap, entry)
			} else {
				heap[0] = entry
				heapDown(heap, 0)
				replaced = true
			}
		}
		if !replaced {
			heap = heapPop(heap)
		}
	}
	sc.heap = heap
	n := 0
	for i := int32(0); i >= 0; i = list[i].next {
		symbols[n] = list[i].id
		n++
	}
	return n
}

// rankPair looks up the merge of a symbol with its right neighbour and reports whether there is
// one.
func (m *bpe) rankPair(list []linked, i int32) bool {
	s := &list[i]
	s.rank = noRank
	if s.next < 0 {
		return false
	}
	v := m.merges.get(s.id, list[s.next].id)
	if v == noMerge {
		return false
	}
	s.rank = uint32(v >> 32)
	s.merged = int32(uint32(v))
	return true
}

// The heap is a binary min-heap of uint64.

func heapPush(h []uint64, x uint64) []uint64 {
	h = append(h, x)
	i := len(h) - 1
	for i > 0 {
		p := (i - 1) / 2
		if h[p] <= x {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = x
	return h
}

func heapPop(h []uint64) []uint64 {
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	if last > 0 {
		heapDown(h, 0)
	}
	return h
}

func heapDown(h []uint64, i int) {
	x := h[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if x <= h[c] {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = x
}
