package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// unknownPenalty is how much worse a character without a piece is than the worst piece
// (kUnkPenalty of SentencePiece's unigram_model.cc).
const unknownPenalty = 10

// unigram is SentencePiece's model of that name: of all ways to divide a piece of text into pieces
// it finds the one with the largest sum of scores, from left to right (Viterbi).
type unigram struct {
	vocab        *vocabulary
	trie         *pieceTrie
	scores       []float64 // by id
	unknown      int32
	unknownScore float64
	// ids of <0x00> … <0xFF> for text without pieces; nil without byte_fallback
	fallback *[256]int32
	// single says that sums are rounded to single precision, as SentencePiece's are and those of
	// Hugging Face's tokenizers are not: where two ways are about as good, that decides.
	single bool
	// whole are user-defined pieces: longer ones always win (scoreOf).
	whole map[int32]bool
	// best is the best score of a piece that is not user-defined.
	best float64
}

// path is the best way to divide a text up to some place.
type path struct {
	score float64
	start int32 // where its last piece begins; -1 when the place is not reached
	id    int32 // of its last piece
}

// newUnigram builds the model from the section of tokenizer.json.
func newUnigram(f *modelFile, spec modelSpec) (*unigram, error) {
	m := &unigram{vocab: f.vocab, scores: f.scores}
	if spec.UnkID == nil {
		return nil, fmt.Errorf("model of type Unigram has no unk_id")
	}
	if *spec.UnkID < 0 || *spec.UnkID >= int64(len(f.scores)) {
		return nil, fmt.Errorf("model unk_id %d is not in the vocabulary of %d tokens", *spec.UnkID,
			len(f.scores))
	}
	m.unknown = int32(*spec.UnkID)
	ids := make([]int32, 0, len(f.scores))
	worst := math.Inf(1)
	for id, score := range f.scores {
		worst = min(worst, score)
		if f.vocab.text[id] != "" {
			ids = append(ids, int32(id))
		}
	}
	m.unknownScore = worst - unknownPenalty
	if spec.ByteFallback {
		m.fallback = byteTokens(f.vocab)
	}
	var err error
	if m.trie, err = newPieceTrie(f.vocab, ids); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return m, nil
}

// encode follows Model::EncodeOptimized of SentencePiece, which Hugging Face's Unigram follows too.
func (m *unigram) encode(dst []int32, piece string, sc *scratch) []int32 {
	paths := slices.Grow(sc.paths[:0], len(piece)+1)[:len(piece)+1]
	sc.paths = paths
	for i := range paths {
		paths[i].start = -1
		if sc.done(1) {
			return dst
		}
	}
	paths[0].score = 0
	for i := 0; i < len(piece); {
		_, size := utf8.DecodeRuneInString(piece[i:])
		if !m.extend(paths, piece, i, size, sc) {
			return dst
		}
		i += size
	}
	// The tokens are found from the end; those that are unknown are put together.
	start := len(dst)
	for end := len(piece); end > 0; {
		from := int(paths[end].start)
		if paths[end].id != m.unknown {
			dst = append(dst, paths[end].id)
			end = from
			continue
		}
		for from > 0 && paths[from].id == m.unknown {
			from = int(paths[from].start)
		}
		dst = m.appendUnknown(dst, piece[from:end])
		end = from
		if sc.done(1) {
			return dst[:start]
		}
	}
	slices.Reverse(dst[start:])
	return dst
}

// extend goes on from the best way to piece[i:], where a character of size bytes begins, with every
// piece. It reports false when the result is not wanted any more.
func (m *unigram) extend(paths []path, piece string, i, size int, sc *scratch) bool {
	here := paths[i].score
	known := false // there is a piece of this one character
	for at, end := int32(0), i; end < len(piece); {
		if at = m.trie.next(at, piece[end]); at == 0 {
			break
		}
		if end++; sc.done(1) {
			return false
		}
		id := m.trie.nodes[at].id
		if id < 0 {
			continue
		}
		m.improve(&paths[end], m.scoreOf(id, end-i)+here, i, id)
		known = known || end-i == size
	}
	if !known {
		m.improve(&paths[i+size], m.round(m.unknownScore+here), i, m.unknown)
	}
	return true
}

// improve records a way to a place if it is better than the one known.
func (m *unigram) improve(p *path, score float64, from int, id int32) {
	if p.start < 0 || score > p.score {
		*p = path{score: m.round(score), start: int32(from), id: id}
	}
}

func (m *unigram) round(score float64) float64 {
	if m.single {
		return float64(float32(score))
	}
	return score
}

// scoreOf returns the score of a piece of size bytes.
func (m *unigram) scoreOf(id int32, size int) float64 {
	if m.whole[id] {
		return float64(float32(size)*float32(m.best)) - 0.1
	}
	return m.scores[id]
}

// appendUnknown appends what stands for a text without pieces, last token first.
func (m *unigram) appendUnknown(dst []int32, text string) []int32 {
	if !m.single {
		// Hugging Face looks the whole run up again.
		if id, ok := m.vocab.id(text); ok && m.vocab.origin[id] == fromModel {
			return append(dst, id)
		}
	}
	if m.fallback == nil {
		return append(dst, m.unknown)
	}
	start := len(dst)
	for i := len(text) - 1; i >= 0; i-- {
		id := m.fallback[text[i]]
		if id < 0 {
			return append(dst[:start], m.unknown)
		}
		dst = append(dst, id)
	}
	return dst
}
