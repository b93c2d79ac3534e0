package tokenizer

import (
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"
)

// pieceMerges are the merges of a vocabulary without a list of them, as SentencePiece's and
// tiktoken's are: whatever two tokens make a third one merge, and the rank of the third is theirs.
type pieceMerges struct {
	table   *mergeTable
	wordEnd bool // as in modelFile
}

// rankedPiece is a token that others merge into.
type rankedPiece struct {
	text string // as ids has it
	id   int32
	rank int
}

// mergePieces finds the merges into each of the pieces, where ids are those of the parts. step says
// at which bytes of a piece it may divide.
func mergePieces(pieces []rankedPiece, ids map[string]int32, step func(s string) int) (
	*pieceMerges, error) {
	type merge struct {
		left, right int32
		of          rankedPiece
	}
	var found []merge
	m := &pieceMerges{}
	for _, p := range pieces {
		if len(p.text) > maxPiece {
			return nil, fmt.Errorf("token %d has %d bytes, more than %d", p.id, len(p.text),
				maxPiece)
		}
		for i := step(p.text); i < len(p.text); i += step(p.text[i:]) {
			left, ok := ids[p.text[:i]]
			if !ok {
				continue
			}
			right, ok := ids[p.text[i:]]
			if !ok {
				continue
			}
			m.wordEnd = m.wordEnd || joinsWords(p.text[:i], p.text[i:])
			found = append(found, merge{left, right, p})
		}
	}
	m.table = newMergeTable(len(found))
	for _, f := range found {
		m.table.put(f.left, f.right, f.of.rank, f.of.id)
	}
	return m, nil
}

// byByte and byChar are the steps of mergePieces over bytes and characters.
func byByte(string) int { return 1 }

func byChar(s string) int {
	_, n := utf8.DecodeRuneInString(s)
	return n
}

// rankByScore gives pieces their ranks: the best score comes first, and equal ones are equal.
func rankByScore(pieces []rankedPiece, scores []float64) {
	order := slices.Clone(pieces)
	slices.SortStableFunc(order, func(a, b rankedPiece) int {
		return cmp.Compare(scores[b.id], scores[a.id])
	})
	ranks := make(map[int32]int, len(order))
	rank := 0
	for i, p := range order {
		if i > 0 && scores[p.id] != scores[order[i-1].id] {
			rank++
		}
		ranks[p.id] = rank
	}
	for i := range pieces {
		pieces[i].rank = ranks[pieces[i].id]
	}
}
