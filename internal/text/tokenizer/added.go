package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// addedToken is one entry of added_tokens: a token that is cut out of the text before the model
// sees it.
type addedToken struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// parseAdded reads the added_tokens section and enters the tokens into the vocabulary. A token that
// the model's vocabulary holds keeps its id there, as with Hugging Face; the others have the id
// that the file gives. (Hugging Face numbers those from the size of the vocabulary up in file
// order, which is the same thing for every file that it wrote.)
func parseAdded(data json.RawMessage, v *vocabulary) ([]addedToken, error) {
	if isNull(data) {
		return nil, nil
	}
	var list []addedToken
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	limit := int64(maxID(v.size() + len(list)))
	claimed := make(map[int64]string, len(list))
	seen := make(map[string]bool, len(list))
	tokens := list[:0]
	for _, t := range list {
		if t.Content == "" || seen[t.Content] {
			continue
		}
		seen[t.Content] = true
		if t.ID < 0 || t.ID >= limit {
			return nil, fmt.Errorf("added token %q has id %d, which is not in [0, %d)", t.Content,
				t.ID, limit)
		}
		if other, taken := claimed[t.ID]; taken {
			return nil, fmt.Errorf("added tokens %q and %q have the same id %d", other, t.Content,
				t.ID)
		}
		claimed[t.ID] = t.Content
		if id, ok := v.id(t.Content); ok {
			t.ID = int64(id)
		} else if err := v.add(int32(t.ID), t.Content); err != nil {
			return nil, fmt.Errorf("added_tokens: %w", err)
		}
		tokens = append(tokens, t)
	}
	return tokens, nil
}

// addedMatcher finds added tokens in a text, leftmost first and longest among those, with a trie.
type addedMatcher struct {
	nodes  []trieNode
	tokens []addedToken
	root   [256]int32
	// only is the one byte with which every token begins, or -1.
	only int
}

type trieNode struct {
	next  map[byte]int32
	token int32 // index into tokens, or -1
}

// newAddedMatcher builds the trie over the text under which each token is to be found. It returns
// nil when there are no tokens.
func newAddedMatcher(tokens []addedToken, textOf func(addedToken) string) *addedMatcher {
	m := &addedMatcher{tokens: tokens, only: -1, nodes: []trieNode{{token: -1}}}
	for i, t := range tokens {
		text := textOf(t)
		if text == "" {
			continue
		}
		at := m.root[text[0]]
		if at == 0 {
			at = m.grow()
			m.root[text[0]] = at
		}
		for _, c := range []byte(text[1:]) {
			next, ok := m.nodes[at].next[c]
			if !ok {
				next = m.grow()
				if m.nodes[at].next == nil {
					m.nodes[at].next = make(map[byte]int32, 1)
				}
				m.nodes[at].next[c] = next
			}
			at = next
		}
		m.nodes[at].token = int32(i)
	}
	if len(m.nodes) == 1 {
		return nil
	}
	starts := 0
	for c, at := range m.root {
		if at != 0 {
			starts++
			m.only = c
		}
	}
	if starts > 1 {
		m.only = -1
	}
	return m
}

func (m *addedMatcher) grow() int32 {
	m.nodes = append(m.nodes, trieNode{token: -1})
	return int32(len(m.nodes) - 1)
}

// longest returns the token found at s[i] and its end.
func (m *addedMatcher) longest(s string, i int) (token int32, end int) {
	token = -1
	at := m.root[s[i]]
	for i++; at != 0; i++ {
		if m.nodes[at].token >= 0 {
			token, end = m.nodes[at].token, i
		}
		if i == len(s) {
			break
		}
		at = m.nodes[at].next[s[i]]
	}
	return token, end
}

// addedMatch is an added token found in a text: where it begins and ends with the white space it
// takes along, and where the search for the next one goes on.
type addedMatch struct {
	id                 int32
	start, end, resume int
}

// find returns the first added token at or after from. What lies before done belongs to the match
// before. It follows AddedVocabulary::find_matches of Hugging Face's tokenizers, also in that a
// match which is turned down for not being a single word hides shorter ones in it.
func (m *addedMatcher) find(s string, from, done int) (addedMatch, bool) {
	for i := from; i < len(s); i++ {
		if m.only >= 0 {
			skip := strings.IndexByte(s[i:], byte(m.only))
			if skip < 0 {
				break
			}
			i += skip
		}
		if m.root[s[i]] == 0 {
			continue
		}
		index, end := m.longest(s, i)
		if index < 0 {
			continue
		}
		t := &m.tokens[index]
		if t.SingleWord && (endsInWord(s[:i]) || startsWithWord(s[end:])) {
			i = end - 1
			continue
		}
		match := addedMatch{id: int32(t.ID), start: i, end: end, resume: end}
		if t.LStrip {
			for match.start > done {
				r, n := utf8.DecodeLastRuneInString(s[:match.start])
				if !isSpace(r) {
					break
				}
				match.start -= n
			}
			match.start = max(match.start, done)
		}
		if t.RStrip {
			for match.end < len(s) {
				r, n := utf8.DecodeRuneInString(s[match.end:])
				if !isSpace(r) {
					break
				}
				match.end += n
			}
		}
		return match, true
	}
	return addedMatch{}, false
}

func endsInWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWordChar(r)
}

func startsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWordChar(r)
}
