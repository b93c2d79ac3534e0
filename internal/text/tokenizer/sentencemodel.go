package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// sentenceClasses treat a model of SentencePiece as its own settings say, and so do we: as
// SentencePiece itself and transformers 4. (LlamaTokenizer of transformers 5 makes one word mark of
// that in front and a space of the text.) Unless they are told, they begin a text with a token.
var sentenceClasses = []string{"", "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer",
	"PreTrainedTokenizer", "TokenizersBackend"}

// parseModel reads tokenizer.model and its kin: a model of SentencePiece, or ranks of tiktoken,
// which Llama 3 has under the same name. A protocol buffer begins with its first piece, a tag that
// is a line break, and ranks do not.
func parseModel(name string, data []byte, c *Config) (p parts, err error) {
	if len(data) == 0 || data[0] != '\n' {
		return parseTiktoken(name, data, c)
	}
	f, err := readSentencePiece(data)
	if err != nil {
		return p, err
	}
	switch class := c.class(); class {
	case "T5Tokenizer":
		err = f.asT5(c)
	case "XLMRobertaTokenizer":
		err = f.asXLMRoberta()
	default:
		if name == "sentencepiece.bpe.model" && class == "" {
			err = f.asXLMRoberta()
		} else if !slices.Contains(sentenceClasses, class) {
			err = fmt.Errorf("tokenizer_class %q is not supported without tokenizer.json", class)
		}
	}
	if err != nil {
		return p, err
	}
	return f.parts(c)
}

// asXLMRoberta numbers the pieces as fairseq did: four tokens of its own in the place of the first
// three pieces, and <mask> behind all.
func (f *sentencePieceFile) asXLMRoberta() error {
	if !f.unigram || len(f.pieces) < 3 {
		return fmt.Errorf("XLMRobertaTokenizer needs a Unigram model, and %d pieces are too "+
			"few or of another", len(f.pieces))
	}
	pieces := []sentencePiece{{text: "<s>", kind: pieceControl},
		{text: "<pad>", kind: pieceControl}, {text: "</s>", kind: pieceControl},
		{text: "<unk>", kind: pieceUnknown}}
	pieces = append(pieces, f.pieces[3:]...)
	f.pieces = append(pieces, sentencePiece{text: "<mask>", kind: pieceControl})
	f.unknown = 3
	f.ends = func(*vocabulary) (*templates, error) {
		bos, eos := int32(0), int32(2)
		return &templates{single: []int32{bos, markA, eos},
			pair: []int32{bos, markA, eos, eos, markB, eos}}, nil
	}
	return nil
}

// maxExtraIDs bounds extra_ids; T5 has 100.
const maxExtraIDs = 1 << 16

// asT5 puts T5's sentinels behind the pieces, the last one first, and ends every text.
func (f *sentencePieceFile) asT5(c *Config) error {
	count := 100
	if raw := c.Fields["extra_ids"]; !isNull(raw) {
		if err := json.Unmarshal(raw, &count); err != nil {
			return fmt.Errorf("extra_ids: %w", err)
		}
	}
	if count < 0 || count > maxExtraIDs {
		return fmt.Errorf("extra_ids %d is not in [0, %d]", count, maxExtraIDs)
	}
	for i := count - 1; i >= 0; i-- {
		f.pieces = append(f.pieces, sentencePiece{text: fmt.Sprintf("<extra_id_%d>", i),
			kind: pieceControl})
	}
	f.ends = func(v *vocabulary) (*templates, error) { return ends(v, "", f.eos) }
	return nil
}

// parts builds the stages as SentencePiece and the configuration have them.
func (f *sentencePieceFile) parts(c *Config) (p parts, err error) {
	if p.vocab, err = f.vocabulary(); err != nil {
		return p, err
	}
	rules, err := parseCharsmap(f.charsmap)
	if err != nil {
		return p, err
	}
	build := f.ownStages
	if f.ends != nil {
		build = f.wordStages
	}
	if err = build(&p, rules, c); err != nil {
		return p, err
	}
	var added []addedToken
	for id, piece := range f.pieces {
		if piece.kind == pieceControl || piece.kind == pieceUnknown {
			added = append(added, addedToken{ID: int64(id), Content: piece.text, Special: true})
		}
	}
	for name, text := range map[string]string{"bos_token": f.bos, "eos_token": f.eos,
		"unk_token": f.pieces[f.unknown].text} {
		c.setDefault(p.vocab, name, text)
	}
	if p.added, err = f.extend(p.vocab, c, added); err != nil {
		return p, err
	}
	p.template, err = f.template(p.vocab, c)
	return p, err
}

// ownStages are SentencePiece's.
func (f *sentencePieceFile) ownStages(p *parts, rules *charsmap, c *Config) (err error) {
	var whole []addedToken
	for id, piece := range f.pieces {
		if piece.kind == pieceUserDefined {
			whole = append(whole, addedToken{ID: int64(id), Content: piece.text})
		}
	}
	matcher := newAddedMatcher(whole, func(t addedToken) string { return t.Content })
	if f.unigram {
		p.model, err = f.unigramModel(p.vocab)
	} else {
		p.model, err = f.bpeModel(p.vocab, whole)
	}
	if err != nil {
		return err
	}
	normal := &sentenceNormalizer{rules: rules, whole: matcher, trim: f.trimSpaces}
	p.normalizers = []normalizer{normal.normalize}
	p.anyBytes = true
	if f.dummyPrefix {
		legacy, err := c.flag("legacy", false)
		if err != nil {
			return err
		}
		p.steps = append(p.steps, dummyPrefix{always: legacy})
	}
	if matcher != nil && !f.unigram {
		p.steps = append(p.steps, wholePieces{matcher})
	}
	p.decoder, err = parseDecoder(f.decoder())
	return err
}

// wordStages are those that transformers gives its classes for Unigram models of words, which are
// nearly SentencePiece's: its form of the rules, and words found before the model sees them.
func (f *sentencePieceFile) wordStages(p *parts, rules *charsmap, _ *Config) (err error) {
	model := &modelFile{vocab: p.vocab}
	for _, piece := range f.pieces {
		model.scores = append(model.scores, float64(piece.score))
	}
	unknown := int64(f.unknown)
	if p.model, err = newUnigram(model, modelSpec{UnkID: &unknown}); err != nil {
		return err
	}
	p.normalizers = []normalizer{rules.byGraphemes}
	space := `{"type":"Metaspace","replacement":"▁","prepend_scheme":"always"}`
	p.steps, err = parsePreTokenizer(json.RawMessage(`{"type":"Sequence","pretokenizers":[` +
		`{"type":"WhitespaceSplit"},` + space + `]}`))
	if err != nil {
		return err
	}
	p.decoder, err = parseDecoder(json.RawMessage(space))
	return err
}

// vocabulary enters the pieces.
func (f *sentencePieceFile) vocabulary() (*vocabulary, error) {
	var (
		block []byte
		ends  []uint32
		ids   []int32
	)
	for id, p := range f.pieces {
		block = append(block, p.text...)
		ends = append(ends, uint32(len(block)))
		ids = append(ids, int32(id))
	}
	return newVocabulary(string(block), ends, ids)
}

func (f *sentencePieceFile) unigramModel(v *vocabulary) (*unigram, error) {
	m := &unigram{vocab: v, scores: make([]float64, len(f.pieces)), unknown: int32(f.unknown),
		single: true, whole: map[int32]bool{}}
	worst, best := math.Inf(1), math.Inf(-1)
	var ids []int32
	for id, p := range f.pieces {
		score := float64(p.score)
		m.scores[id] = score
		switch p.kind {
		case pieceNormal:
			worst, best = min(worst, score), max(best, score)
		case pieceUserDefined:
			m.whole[int32(id)] = true
		default:
			continue
		}
		ids = append(ids, int32(id))
	}
	if worst > best {
		return nil, fmt.Errorf("none of %d pieces is a normal one", len(f.pieces))
	}
	m.best, m.unknownScore = best, float64(float32(worst)-unknownPenalty)
	if f.byteFallback {
		m.fallback = byteTokens(v)
	}
	var err error
	m.trie, err = newPieceTrie(v, ids)
	return m, err
}

func (f *sentencePieceFile) bpeModel(v *vocabulary, whole []addedToken) (*bpe, error) {
	m := &bpe{vocab: v, unknown: int32(f.unknown), fuseUnknown: true, whole: map[string]int32{}}
	for _, t := range whole {
		m.whole[t.Content] = int32(t.ID)
	}
	var pieces []rankedPiece
	normal := map[string]int32{}
	scores := make([]float64, len(f.pieces))
	for id, p := range f.pieces {
		scores[id] = float64(p.score)
		switch p.kind {
		case pieceNormal:
			pieces = append(pieces, rankedPiece{text: p.text, id: int32(id)})
			normal[p.text] = int32(id)
		case pieceUnused:
			return nil, fmt.Errorf("piece %q is unused, which a BPE model is not supported with",
				p.text)
		}
	}
	rankByScore(pieces, scores)
	merges, err := mergePieces(pieces, normal, byChar)
	if err != nil {
		return nil, err
	}
	m.merges = merges.table
	m.index(f.byteFallback, merges.wordEnd)
	return m, nil
}

// decoder is what transformers decodes with, in the form of tokenizer.json.
func (f *sentencePieceFile) decoder() json.RawMessage {
	steps := `{"type":"Replace","pattern":{"String":"▁"},"content":" "}`
	if f.byteFallback {
		steps += `,{"type":"ByteFallback"}`
	}
	steps += `,{"type":"Fuse"}`
	if f.dummyPrefix {
		steps += `,{"type":"Strip","content":" ","start":1,"stop":0}`
	}
	return json.RawMessage(`{"type":"Sequence","decoders":[` + steps + `]}`)
}

// extend adds the configuration's tokens to the model's. They are found in the text as it is
// written: transformers' classes for these models normalize only what is between them.
func (f *sentencePieceFile) extend(v *vocabulary, c *Config, base []addedToken) ([]addedToken,
	error) {
	added, err := c.extend(v, base)
	for i := range added {
		added[i].Normalized = false
	}
	return added, err
}

// template puts tokens around a text as add_bos_token and add_eos_token say. Classes of a family
// begin texts with a token unless told otherwise; generic ones do not.
func (f *sentencePieceFile) template(v *vocabulary, c *Config) (*templates, error) {
	if f.ends != nil {
		return f.ends(v)
	}
	class := c.class()
	generic := class == "PreTrainedTokenizer" || class == "TokenizersBackend"
	texts := []string{c.BOSToken, c.EOSToken}
	for i, name := range []string{"add_bos_token", "add_eos_token"} {
		add, err := c.flag(name, i == 0 && !generic)
		if err != nil {
			return nil, err
		}
		if !add {
			texts[i] = ""
		}
	}
	return ends(v, texts[0], texts[1])
}
