// Package tokenizer reads the tokenizers of model folders and turns text into token ids and back,
// id for id as the library does that each kind of file was written by: Hugging Face's tokenizers
// for tokenizer.json and vocab.txt, SentencePiece for its models, tiktoken for files of ranks and
// tekken.json. See Open for the files, and for which of several counts.
//
// It knows byte-pair encoding, WordPiece and Unigram with all that published language models put
// around them: byte-level alphabets (GPT-2, Llama 3, Qwen) and byte fallback (Llama 2, Mistral,
// Gemma), normalizers, pre-tokenizers, added tokens, post-processors and decoders. A component that
// it does not know is an error that names it. The semantics of tokenizer.json are those of
// github.com/huggingface/tokenizers (0.22).
package tokenizer

import (
	"fmt"
	"sync"
)

// Tokenizer turns text into token ids and back. It does not change after loading and is safe for
// concurrent use.
type Tokenizer struct {
	vocab       *vocabulary
	special     []bool // by id
	isAdded     []bool // by id
	added       *addedMatcher
	addedNormal *addedMatcher // those to be found in the normalized text
	normalizers []normalizer
	steps       []preTokenizer
	// direct is set when the pre-tokenizer is one scanner over raw bytes; see directScanner.
	direct      *scanner
	prefixSpace bool
	model       encoder
	template    *templates
	decoder     *decoder
	// anyBytes says that the normalizer takes text that is no UTF-8.
	anyBytes bool
	config   Config
	scratch  sync.Pool
}

// Parse builds a tokenizer from the text of tokenizer.json and of tokenizer_config.json, which may
// be nil. tokenizer.json decides how text is encoded, whatever tokenizer class the other one names.
func Parse(tokenizerJSON, tokenizerConfig []byte) (*Tokenizer, error) {
	p, err := parse(tokenizerJSON)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	config, err := parseConfig(tokenizerConfig)
	if err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	return newTokenizer(p, config), nil
}

// parts are the stages of a tokenizer, whatever file they were read from.
type parts struct {
	vocab       *vocabulary
	model       encoder
	normalizers []normalizer
	added       []addedToken
	steps       []preTokenizer
	template    *templates
	decoder     []decoderStep
	anyBytes    bool // see Tokenizer
}

// encoder is a model: it turns a piece of text into tokens, by byte-pair encoding, WordPiece or
// Unigram.
type encoder interface {
	// encode appends the tokens of one piece, which is not empty.
	encode(dst []int32, piece string, sc *scratch) []int32
}

// newTokenizer puts the stages together.
func newTokenizer(p parts, config Config) *Tokenizer {
	t := &Tokenizer{vocab: p.vocab, model: p.model, normalizers: p.normalizers, steps: p.steps,
		template: p.template, anyBytes: p.anyBytes, config: config}
	t.indexAdded(p.added)
	t.chooseSymbols()
	t.decoder = newDecoder(p.decoder, t.vocab)
	t.scratch.New = func() any { return new(scratch) }
	return t
}

// parse reads the stages out of tokenizer.json.
func parse(data []byte) (p parts, err error) {
	f, err := parseFile(data)
	if err != nil {
		return p, err
	}
	if p.model, err = newModel(f.model); err != nil {
		return p, err
	}
	p.vocab = f.model.vocab
	if p.normalizers, err = parseNormalizer(f.sections["normalizer"]); err != nil {
		return p, err
	}
	if p.added, err = parseAdded(f.sections["added_tokens"], p.vocab); err != nil {
		return p, err
	}
	if p.steps, err = parsePreTokenizer(f.sections["pre_tokenizer"]); err != nil {
		return p, err
	}
	if p.template, err = parsePostProcessor(f.sections["post_processor"], p.vocab); err != nil {
		return p, err
	}
	p.decoder, err = parseDecoder(f.sections["decoder"])
	return p, err
}

// indexAdded sorts the added tokens by where they are to be found.
func (t *Tokenizer) indexAdded(tokens []addedToken) {
	t.special = make([]bool, len(t.vocab.text))
	t.isAdded = make([]bool, len(t.vocab.text))
	var raw, normal []addedToken
	for _, a := range tokens {
		t.special[a.ID] = t.special[a.ID] || a.Special
		t.isAdded[a.ID] = true
		if a.Normalized {
			normal = append(normal, a)
		} else {
			raw = append(raw, a)
		}
	}
	t.added = newAddedMatcher(raw, func(a addedToken) string { return a.Content })
	t.addedNormal = newAddedMatcher(normal,
		func(a addedToken) string { return normalize(t.normalizers, a.Content, new(work)) })
}

// chooseSymbols decides whether a byte-pair model sees raw bytes instead of their alphabet.
func (t *Tokenizer) chooseSymbols() {
	m, ok := t.model.(*bpe)
	if !ok {
		return
	}
	byteLevels := 0
	for _, step := range t.steps {
		if _, ok := step.(*byteLevel); ok {
			byteLevels++
		}
	}
	if n := len(t.steps); n > 0 && byteLevels == 1 && m.rawBytes {
		if last, ok := t.steps[n-1].(*byteLevel); ok {
			last.rewrite = false
			t.direct, t.prefixSpace, _ = directScanner(t.steps)
			m.cutWords = false
			return
		}
	}
	m.rawBytes = false
}

// VocabSize returns the highest token id plus one.
func (t *Tokenizer) VocabSize() int { return len(t.vocab.text) }

// Token returns the token of an id as Hugging Face's convert_ids_to_tokens gives it: in the
// alphabet of the file, where a byte-level model spells a space as "Ġ". It reports false when the
// id names no token.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if !t.vocab.has(id) {
		return "", false
	}
	return t.vocab.text[id], true
}

// TokenBytes returns the bytes that a token stands for in the middle of a text, or nil when the id
// names no token. They need not be UTF-8 by themselves. The caller owns the slice.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.vocab.has(id) {
		return nil
	}
	return t.decoder.bytesOf(id)
}

// ID returns the id of a token, spelled as Token returns it.
func (t *Tokenizer) ID(token string) (int32, bool) {
	if id, ok := t.vocab.id(token); ok {
		return id, true
	}
	return 0, false
}

// IsSpecial reports whether the id is that of a special token, which decoding can skip.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return t.vocab.has(id) && t.special[id]
}

// IsAdded reports whether the id is that of an added token, special or not: it is found in a text
// as a whole, before the model divides the rest.
func (t *Tokenizer) IsAdded(id int32) bool {
	return t.vocab.has(id) && t.isAdded[id]
}

// Config returns what tokenizer_config.json said. The caller must not change its maps and slices.
func (t *Tokenizer) Config() Config { return t.config }
