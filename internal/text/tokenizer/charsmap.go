package tokenizer

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/clipperhouse/uax29/v2/graphemes"
)

// charsmap is a precompiled map of SentencePiece: rules that put one text in the place of another,
// as nmt_nfkc does for all of Unicode. The file holds a double-array trie (github.com/s-yata/darts-
// clone) whose values are places in a block of texts that end in a zero byte.
type charsmap struct {
	units []uint32
	block string
}

// maxRule bounds both sides of a rule, in bytes, and so the work for a character and what comes of
// it. Those of nmt_nfkc have some 40 at most.
const maxRule = 1 << 8

// parseCharsmap reads the map; nil stands for one without rules.
func parseCharsmap(data []byte) (*charsmap, error) {
	if len(data) == 0 {
		return &charsmap{}, nil
	}
	if len(data) < 4 {
		return nil, fmt.Errorf("precompiled_charsmap of %d bytes is cut off", len(data))
	}
	size := binary.LittleEndian.Uint32(data)
	data = data[4:]
	if size%4 != 0 || uint64(size) > uint64(len(data)) {
		return nil, fmt.Errorf("precompiled_charsmap has a trie of %d bytes in %d", size, len(data))
	}
	m := &charsmap{units: make([]uint32, size/4), block: string(data[size:])}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	if !utf8.ValidString(m.block) {
		return nil, fmt.Errorf("precompiled_charsmap has a text that is not UTF-8")
	}
	for text := range strings.SplitSeq(m.block, "\x00") {
		if len(text) > maxRule {
			return nil, fmt.Errorf("precompiled_charsmap has a text of %d bytes, more than %d",
				len(text), maxRule)
		}
	}
	return m, nil
}

// charsmapMatch is a rule for the first size bytes of a text; none when size is 0.
type charsmapMatch struct {
	text string
	size int
}

// find returns the shortest and the longest rule that s begins with. A trie that leads out of the
// file has no rules there.
func (m *charsmap) find(s string) (shortest, longest charsmapMatch) {
	at := uint32(0)
	unit := m.unit(at)
	at ^= unitOffset(unit)
	for i := range min(len(s), maxRule) {
		at ^= uint32(s[i])
		// The label of a value has bit 31 set, so that it is that of no byte.
		if unit = m.unit(at); s[i] == 0 || unit&(1<<31|0xff) != uint32(s[i]) {
			break
		}
		at ^= unitOffset(unit)
		if unit>>8&1 == 0 {
			continue
		}
		if text, ok := m.text(m.unit(at) &^ (1 << 31)); ok {
			longest = charsmapMatch{text, i + 1}
			if shortest.size == 0 {
				shortest = longest
			}
		}
	}
	return shortest, longest
}

func (m *charsmap) unit(at uint32) uint32 {
	if uint64(at) >= uint64(len(m.units)) {
		return 0
	}
	return m.units[at]
}

func unitOffset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

func (m *charsmap) text(at uint32) (string, bool) {
	if uint64(at) >= uint64(len(m.block)) || !utf8.RuneStart(m.block[at]) {
		return "", false
	}
	text, _, ok := strings.Cut(m.block[at:], "\x00")
	return text, ok
}

// byGraphemes is the Precompiled normalizer of tokenizer.json. It follows Hugging Face's in what
// its authors call weird: a short grapheme is replaced as a whole by the shortest rule for its
// beginning, and only without one its characters are.
func (m *charsmap) byGraphemes(s string, w *work) string {
	if len(m.units) == 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for g := graphemes.FromString(s); g.Next(); {
		part := g.Value()
		if w.done(len(part)) {
			break
		}
		if len(part) < 6 {
			if rule, _ := m.find(part); rule.size > 0 {
				b.WriteString(rule.text)
				continue
			}
		}
		for i, r := range part {
			char := part[i : i+utf8.RuneLen(r)]
			if rule, _ := m.find(char); rule.size > 0 {
				char = rule.text
			}
			b.WriteString(char)
		}
	}
	return b.String()
}
