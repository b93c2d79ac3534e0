package tokenizer

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
)

// parseTiktoken reads ranks of tiktoken, "<base64 of the token> <rank>" in every line, where the
// rank is the id. The file has neither the pattern that cuts text nor the special tokens: both are
// a family's, which must be known (see rankFamily).
func parseTiktoken(name string, data []byte, c *Config) (p parts, err error) {
	ranks, err := readRanks(data)
	if err != nil {
		return p, err
	}
	family, err := familyOfRanks(name, len(ranks), c)
	if err != nil {
		return p, err
	}
	p, err = rankParts(ranks, 0, family.pattern)
	if err != nil {
		return p, err
	}
	added, err := numberSpecial(p.vocab, len(ranks), family.special(len(ranks), c))
	if err != nil {
		return p, err
	}
	if p.added, err = c.extend(p.vocab, added); err != nil {
		return p, err
	}
	c.setDefault(p.vocab, "bos_token", family.bos)
	p.template, err = ends(p.vocab, family.bos, "")
	return p, err
}

// readRanks returns the tokens by rank.
func readRanks(data []byte) ([]string, error) {
	var tokens []string
	seen := map[string]bool{}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		text, rank, ok := bytes.Cut(line, []byte(" "))
		if !ok {
			return nil, fmt.Errorf("line %d is not a token and its rank: %.50q", number, line)
		}
		token, err := base64.StdEncoding.AppendDecode(nil, text)
		if err != nil {
			return nil, fmt.Errorf("line %d: token %.50q: %w", number, text, err)
		}
		// tiktoken counts on nothing, but every published file lists its ranks in order from 0.
		if n, err := strconv.Atoi(string(rank)); err != nil || n != len(tokens) {
			return nil, fmt.Errorf("line %d has rank %.50q, not %d", number, rank, len(tokens))
		}
		if seen[string(token)] || len(token) == 0 {
			return nil, fmt.Errorf("line %d: token %.50q is empty or listed twice", number, token)
		}
		if len(tokens) == maxVocabulary {
			return nil, fmt.Errorf("more than %d tokens", maxVocabulary)
		}
		seen[string(token)] = true
		tokens = append(tokens, string(token))
	}
	return tokens, nil
}

// rankParts builds the stages of a tokenizer over bytes from its tokens by rank; ids count from
// first. A piece of text that is a token stays one, as in tiktoken.
func rankParts(tokens []string, first int, pattern string) (p parts, err error) {
	var (
		block  []byte
		ends   []uint32
		ids    []int32
		byText = make(map[string]int32, len(tokens))
		pieces = make([]rankedPiece, len(tokens))
	)
	for rank, token := range tokens {
		id := int32(first + rank)
		block = appendByteAlphabet(block, token)
		ends = append(ends, uint32(len(block)))
		ids = append(ids, id)
		byText[token] = id
		pieces[rank] = rankedPiece{token, id, rank}
	}
	if p.vocab, err = newVocabulary(string(block), ends, ids); err != nil {
		return p, err
	}
	merges, err := mergePieces(pieces, byText, byByte)
	if err != nil {
		return p, err
	}
	m := &bpe{vocab: p.vocab, merges: merges.table, unknown: -1, ignoreMerges: true}
	m.index(false, false)
	if !m.rawBytes {
		return p, fmt.Errorf("not every byte is a token")
	}
	p.model = m
	split, err := patternSpec{Regex: &pattern}.compile()
	if err != nil {
		return p, err
	}
	p.steps = []preTokenizer{&splitter{pattern: split, behavior: isolated},
		&byteLevel{rewrite: true}}
	p.decoder = []decoderStep{{kind: "ByteLevel"}}
	return p, nil
}

// numberSpecial enters special tokens into the vocabulary, with ids from first up; "" is none.
func numberSpecial(v *vocabulary, first int, texts []string) ([]addedToken, error) {
	var added []addedToken
	for i, text := range texts {
		if text == "" {
			continue
		}
		id := int32(first + i)
		if err := v.add(id, text); err != nil {
			return nil, err
		}
		added = append(added, addedToken{ID: int64(id), Content: text, Special: true})
	}
	return added, nil
}
