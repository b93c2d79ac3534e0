package constrain

import (
	"math/bits"
	"slices"
	"unicode/utf8"
)

// maxToken is the longest token, in bytes, that an answer under a constraint can have.
const maxToken = 1000

// noToken stands in a trie's node that ends no token.
const noToken = 1<<24 - 1

// trieNode is one byte of a token: token<<8 | byte, and size<<10 | pops. size counts the nodes of
// the subtree, itself included; pops, at a node that the walk leaves by going on after its subtree,
// is how many levels up the next node's parent is from a child of this one.
type trieNode struct{ word, span uint32 }

func (n trieNode) byte() byte    { return byte(n.word) }
func (n trieNode) token() uint32 { return n.word >> 8 }
func (n trieNode) size() int     { return int(n.span >> 10) }
func (n trieNode) pops() int     { return int(n.span & 1023) }

// trie is the bytes of tokens in pre-order. Its first node is the root, of no byte.
type trie []trieNode

// slice is a set of tokens that are all inside whatever a string of JSON may hold, and the rest. A
// lexer state that can take any of those texts needs to look at the rest only.
type slice struct {
	runes int // of the longest token; Inf: of any length
	mask  []uint32
	rest  trie
}

// Vocabulary is the tokens of a model, laid out for masks. It does not change: grammars on several
// goroutines share one.
type Vocabulary struct {
	tokens  [][]byte
	special map[string]int32
	texts   []int32 // special tokens by id, sorted
	stop    []int32
	tries   []trie // of all tokens, then the rests of the slices
	slices  []slice
	twins   [][]int32 // tokens with equal bytes: the first is in the tries
	words   int
	longest int
}

// NewVocabulary lays out a vocabulary. tokens are the bytes of ordinary tokens by id, empty for ids
// that stand for none; special are the tokens that stand for no bytes, by their text; stop are
// those that end an answer, which no constraint has. Tokens longer than 1000 bytes never come
// under a constraint.
func NewVocabulary(tokens [][]byte, special map[string]int32, stop ...int32) *Vocabulary {
	v := &Vocabulary{tokens: tokens, special: special, stop: slices.Sorted(slices.Values(stop))}
	size := len(tokens)
	for _, id := range special {
		v.texts = append(v.texts, id)
		size = max(size, int(id)+1)
	}
	slices.Sort(v.texts)
	v.words = (size + 31) / 32
	ids := make([]int32, 0, len(tokens))
	for id, t := range tokens {
		if v.ordinary(int32(id)) && id < noToken {
			ids = append(ids, int32(id))
			v.longest = max(v.longest, len(t))
		}
	}
	slices.SortFunc(ids, func(a, b int32) int {
		if c := slices.Compare(tokens[a], tokens[b]); c != 0 {
			return c
		}
		return int(a - b)
	})
	ids = v.unique(ids)
	v.tries = append(v.tries, newTrie(tokens, ids))
	for _, runes := range []int{regexInf, 30, 10} {
		s := slice{runes: runes, mask: make([]uint32, v.words)}
		var rest []int32
		for _, id := range ids {
			if n, safe := safeRunes(tokens[id]); safe && (runes == regexInf || n <= runes) {
				s.mask[id>>5] |= 1 << (id & 31)
			} else {
				rest = append(rest, id)
			}
		}
		s.rest = newTrie(tokens, rest)
		v.tries = append(v.tries, s.rest)
		v.slices = append(v.slices, s)
	}
	return v
}

// Words is how many words of 32 tokens a mask has.
func (v *Vocabulary) Words() int { return v.words }

// Special is the id of the special token with a text.
func (v *Vocabulary) Special(text string) (id int32, ok bool) {
	id, ok = v.special[text]
	return id, ok
}

// unique leaves the first of several tokens with equal bytes, and remembers the others.
func (v *Vocabulary) unique(ids []int32) []int32 {
	out := ids[:0]
	for i, id := range ids {
		if i == 0 || string(v.tokens[id]) != string(v.tokens[out[len(out)-1]]) {
			out = append(out, id)
			continue
		}
		if n := len(v.twins); n > 0 && v.twins[n-1][0] == out[len(out)-1] {
			v.twins[n-1] = append(v.twins[n-1], id)
		} else {
			v.twins = append(v.twins, []int32{out[len(out)-1], id})
		}
	}
	return out
}

// safeRunes counts the characters of a token, and says whether all of them are safe: those that a
// JSON string holds as they are, without a few that patterns tell apart.
func safeRunes(t []byte) (n int, safe bool) {
	if !utf8.Valid(t) {
		return 0, false
	}
	for _, r := range string(t) {
		if !isSafe(r) {
			return 0, false
		}
		n++
	}
	return n, true
}

// safeRanges are the characters of isSafe.
var safeRanges = []rune{0x20, '!', '#', '[', ']', 0x7E, 0x80, 0x84, 0x86, 0x2027, 0x202A,
	utf8.MaxRune}

func isSafe(r rune) bool {
	for i := 0; i < len(safeRanges); i += 2 {
		if r >= safeRanges[i] && r <= safeRanges[i+1] {
			return true
		}
	}
	return false
}

// newTrie lays out tokens; ids are sorted by the bytes of their tokens.
func newTrie(tokens [][]byte, ids []int32) trie {
	t := trie{{word: noToken << 8}}
	depth := []uint16{0}
	var open [maxToken + 1]int // the node of each level on the way to the last one
	level := 0
	closeTo := func(to int) {
		for ; level > to; level-- {
			t[open[level]].span = uint32(len(t)-open[level]) << 10
		}
	}
	var last []byte
	for _, id := range ids {
		bytes := tokens[id]
		same := 0
		for same < len(last) && same < len(bytes) && last[same] == bytes[same] {
			same++
		}
		closeTo(same)
		if len(t)+len(bytes) >= 1<<22 { // more than a span counts
			break
		}
		for i := same; i < len(bytes); i++ {
			level++
			open[level] = len(t)
			t = append(t, trieNode{word: noToken<<8 | uint32(bytes[i])})
			depth = append(depth, uint16(level))
		}
		n := &t[len(t)-1]
		n.word = uint32(id)<<8 | n.word&255
		last = bytes
	}
	closeTo(0)
	t[0].span = uint32(len(t)) << 10
	for i := range t {
		next := 1
		if end := i + t[i].size(); end < len(t) {
			next = int(depth[end])
		}
		t[i].span |= uint32(int(depth[i]) - next + 1)
	}
	return t
}

// setTwins gives the tokens with equal bytes equal bits.
func (v *Vocabulary) setTwins(mask []uint32) {
	for _, twins := range v.twins {
		if first := twins[0]; mask[first>>5]>>(first&31)&1 == 1 {
			for _, id := range twins[1:] {
				mask[id>>5] |= 1 << (id & 31)
			}
		}
	}
}

// count is the number of bits set, and the lowest of them.
func count(mask []uint32) (n int, first int32) {
	first = -1
	for i, w := range mask {
		if w != 0 && first < 0 {
			first = int32(i*32 + bits.TrailingZeros32(w))
		}
		n += bits.OnesCount32(w)
	}
	return n, first
}

// ordinary says whether a token stands for bytes that the tries have.
func (v *Vocabulary) ordinary(id int32) bool {
	n := len(v.tokens[id])
	_, isSpecial := slices.BinarySearch(v.texts, id)
	_, stops := slices.BinarySearch(v.stop, id)
	return n > 0 && n <= maxToken && !isSpecial && !stops
}
