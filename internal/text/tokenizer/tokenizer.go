// Package tokenizer reads Hugging Face's tokenizer.json and turns text into token ids and back, id
// for id as Hugging Face's tokenizers library does.
//
// It knows byte-pair encoding with all that published language models put around it: byte-level
// alphabets (GPT-2, Llama 3, Qwen) and byte fallback (Llama 2, Mistral, Gemma), normalizers,
// pre-tokenizers, added tokens, post-processors and decoders. A component that it does not know is
// an error that names it. The semantics are those of github.com/huggingface/tokenizers (0.22).
package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// ErrNotFound says that a model folder has no tokenizer.json.
var ErrNotFound = errors.New("no tokenizer.json in the model folder")

// maxFileSize bounds the files that Load reads; the largest published tokenizer.json is some 40 MB.
const maxFileSize = 256 << 20

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
	model       *bpe
	template    *templates
	decoder     *decoder
	config      Config
	scratch     sync.Pool
}

// Load reads tokenizer.json in the folder dir, with tokenizer_config.json and chat_template.jinja
// if they are there. The error is ErrNotFound when there is no tokenizer.json.
func Load(dir string) (*Tokenizer, error) {
	path := filepath.Join(dir, "tokenizer.json")
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	config, err := readOptional(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	t, err := Parse(data, config)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer from %s: %w", dir, err)
	}
	// Newer checkpoints keep the chat template in a file of its own, which then takes precedence.
	text, err := readOptional(filepath.Join(dir, "chat_template.jinja"))
	if err != nil {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	if text != nil {
		t.config.ChatTemplates["default"] = string(text)
	}
	return t, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFileSize {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), maxFileSize)
	}
	return os.ReadFile(path)
}

// readOptional returns nil for a file that is not there.
func readOptional(path string) ([]byte, error) {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// Parse builds a tokenizer from the text of tokenizer.json and of tokenizer_config.json, which may
// be nil. tokenizer.json decides how text is encoded, whatever tokenizer class the other one names.
func Parse(tokenizerJSON, tokenizerConfig []byte) (*Tokenizer, error) {
	t := &Tokenizer{}
	if err := t.parse(tokenizerJSON); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	config, err := parseConfig(tokenizerConfig)
	if err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	t.config = config
	t.scratch.New = func() any { return new(scratch) }
	return t, nil
}

func (t *Tokenizer) parse(data []byte) error {
	f, err := parseFile(data)
	if err != nil {
		return err
	}
	if t.model, err = newBPE(f.model); err != nil {
		return err
	}
	t.vocab = t.model.vocab
	if t.normalizers, err = parseNormalizer(f.sections["normalizer"]); err != nil {
		return err
	}
	added, err := parseAdded(f.sections["added_tokens"], t.vocab)
	if err != nil {
		return err
	}
	t.indexAdded(added)
	if err := t.parseSteps(f); err != nil {
		return err
	}
	if t.template, err = parsePostProcessor(f.sections["post_processor"], t.vocab); err != nil {
		return err
	}
	decoderSteps, err := parseDecoder(f.sections["decoder"])
	if err != nil {
		return err
	}
	t.decoder = newDecoder(decoderSteps, t.vocab)
	return nil
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

// parseSteps compiles the pre-tokenizer and decides whether the model takes raw bytes.
func (t *Tokenizer) parseSteps(f *file) error {
	var err error
	if t.steps, err = parsePreTokenizer(f.sections["pre_tokenizer"]); err != nil {
		return err
	}
	byteLevels := 0
	for _, step := range t.steps {
		if _, ok := step.(*byteLevel); ok {
			byteLevels++
		}
	}
	if n := len(t.steps); n > 0 && byteLevels == 1 && t.model.rawBytes {
		if last, ok := t.steps[n-1].(*byteLevel); ok {
			last.rewrite = false
			t.direct, t.prefixSpace, _ = directScanner(t.steps)
			t.model.cutWords = false
			return nil
		}
	}
	t.model.rawBytes = false
	return nil
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
	id, ok := t.vocab.ids[token]
	return id, ok
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
