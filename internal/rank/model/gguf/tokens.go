package gguf

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// The types of a token (gguf-py/gguf/constants.py), which are SentencePiece's.
const (
	normalToken      = 1
	unknownToken     = 2
	controlToken     = 3
	userDefinedToken = 4
	unusedToken      = 5
	byteToken        = 6
)

// The models of tokenizers, tokenizer.ggml.model, that are known.
const (
	bytePairs = "gpt2"
	pieces    = "llama"
)

// TokenizerName is the file that the tokenizer would be in: tokenizer.json of byte pairs,
// tokenizer.model of SentencePiece.
func (f *File) TokenizerName() string {
	if name, _ := f.text("tokenizer.ggml.model"); name == pieces {
		return "tokenizer.model"
	}
	return "tokenizer.json"
}

// Tokenizer is the content of that file. A tokenizer, or a way to divide text, that is not known is
// an error that names it.
func (f *File) Tokenizer() ([]byte, error) {
	switch name, ok := f.text("tokenizer.ggml.model"); {
	case !ok:
		return nil, fmt.Errorf("tokenizer.ggml.model is missing: give --tokenizer")
	case name == bytePairs:
		return f.tokenizerJSON()
	case name == pieces:
		return f.sentencePieces()
	default:
		return nil, fmt.Errorf("%w: tokenizer.ggml.model %s (known: %s, %s): give --tokenizer",
			ErrUnsupported, short(name), bytePairs, pieces)
	}
}

// tokens are the texts of all tokens and their types.
func (f *File) tokens() (texts []string, kinds []int64, err error) {
	texts, ok := f.meta["tokenizer.ggml.tokens"].Texts()
	if !ok || len(texts) == 0 {
		return nil, nil, fmt.Errorf("tokenizer.ggml.tokens is missing, or no list of texts")
	}
	v, ok := f.meta["tokenizer.ggml.token_type"]
	if !ok {
		return texts, slices.Repeat([]int64{normalToken}, len(texts)), nil
	}
	kinds, ok = v.Integers()
	if !ok || len(kinds) != len(texts) {
		return nil, nil, fmt.Errorf("tokenizer.ggml.token_type is %v for %d tokens", v, len(texts))
	}
	return texts, kinds, nil
}

// tokenID is a token by its key, -1 for none.
func (f *File) tokenID(key string, texts []string) (int, error) {
	v, ok := f.meta["tokenizer.ggml."+key]
	if !ok {
		return -1, nil
	}
	n, ok := v.Integer()
	if n == math.MaxUint32 || ok && n == -1 {
		return -1, nil // llama.cpp's LLAMA_TOKEN_NULL
	}
	if !ok || n < 0 || n >= int64(len(texts)) {
		return -1, fmt.Errorf("tokenizer.ggml.%s is %v, none of %d tokens", key, v, len(texts))
	}
	return int(n), nil
}

// flag is a bool of the tokenizer.
func (f *File) flag(key string, def bool) bool {
	if on, ok := f.meta["tokenizer.ggml."+key].Flag(); ok {
		return on
	}
	return def
}

// The patterns of transformers' tokenizers that divide text.
const (
	cl100k = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	plain = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`
	qwen2 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen35 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|` +
		` ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	o200k = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` +
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` +
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|` +
		`\s+(?!\S)|\s+`
	tekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	deepseek3 = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" +
		`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// division is how a tokenizer.ggml.pre divides text.
type division struct {
	// patterns cut one after the other; none is GPT-2's.
	patterns []string
	// digits says that each digit is cut off first.
	digits bool
	// whole says that a piece that is a token is taken as it is, whatever the merges; begin that a
	// text begins with a token unless the file says otherwise.
	whole, begin bool
	// composed says that text is brought to NFC, as transformers' tokenizer does and llama.cpp's
	// does not.
	composed bool
}

// divisions are those of src/llama-vocab.cpp that are known, by name.
func divisions() map[string]division {
	gpt2, digits := division{}, division{digits: true}
	llama3 := division{patterns: []string{cl100k}, whole: true, begin: true}
	plainQwen := division{patterns: []string{qwen2}}
	glm := division{patterns: []string{cl100k}, whole: true}
	all := map[string]division{
		"falcon": {patterns: []string{"[\\p{P}$+<=>^~|`]+", plain, `\p{N}+`, `[0-9]{3}`}},
		"qwen2":  {patterns: []string{qwen2}, composed: true},
		"qwen35": {patterns: []string{qwen35}, composed: true},
		"gpt-4o": {patterns: []string{o200k}}, "llama4": {patterns: []string{o200k}},
		"minimax-m2":  {patterns: []string{o200k}},
		"tekken":      {patterns: []string{tekken}, whole: true, begin: true},
		"chatglm-bpe": {patterns: []string{cl100k}}, "glm4": glm, "glm5": glm,
		"dbrx": {patterns: []string{cl100k}}, "smaug-bpe": {patterns: []string{cl100k}},
		"deepseek-v3": {patterns: []string{`\p{N}{1,3}`, `[一-龥぀-ゟ゠-ヿ]+`, deepseek3}},
		"deepseek-coder": {patterns: []string{`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`,
			`[一-龥ࠀ-一가-퟿]+`, `\p{N}`}},
	}
	for d, names := range map[*division][]string{
		&gpt2: {"gpt-2", "phi-2", "mpt", "olmo", "exaone4", "gigachat", "mellum", "trillion"},
		&digits: {"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone",
			"minerva-7b"},
		&llama3: {"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"},
		&plainQwen: {"deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "solar-open", "kormo",
			"grok-2"},
	} {
		for _, name := range names {
			all[name] = *d
		}
	}
	return all
}

// tokenizerJSON is tokenizer.json of byte pairs.
func (f *File) tokenizerJSON() ([]byte, error) {
	pre, _ := f.text("tokenizer.ggml.pre")
	all := divisions()
	how, ok := all[pre]
	if !ok {
		return nil, fmt.Errorf("%w: tokenizer.ggml.pre %s, which says how text is divided (known: "+
			"%s): give --tokenizer", ErrUnsupported, short(pre),
			strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	texts, kinds, err := f.tokens()
	if err != nil {
		return nil, err
	}
	merges, ok := f.meta["tokenizer.ggml.merges"].Texts()
	if !ok {
		return nil, fmt.Errorf("tokenizer.ggml.merges is missing, or no list of texts")
	}
	vocab := make(map[string]int, len(texts))
	added := []any{}
	for id, text := range texts {
		if kinds[id] == unusedToken { // a row of the table without a token
			continue
		}
		if _, twice := vocab[text]; twice {
			return nil, fmt.Errorf("tokenizer.ggml.tokens has %s twice", short(text))
		}
		vocab[text] = id
		if k := kinds[id]; k == controlToken || k == userDefinedToken || k == unknownToken {
			added = append(added, map[string]any{"id": id, "content": text,
				"special": k != userDefinedToken, "normalized": false, "single_word": false,
				"lstrip": false, "rstrip": false})
		}
	}
	ends, err := f.ends(texts, how.begin)
	if err != nil {
		return nil, err
	}
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
		"use_regex": len(how.patterns) == 0}
	t := map[string]any{"version": "1.0", "added_tokens": added, "post_processor": ends,
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": how.steps(level)},
		"decoder":       map[string]any{"type": "ByteLevel"},
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": merges,
			"ignore_merges": how.whole}}
	if how.composed {
		t["normalizer"] = map[string]any{"type": "NFC"}
	}
	return json.Marshal(t)
}

// steps cut a text, before its bytes are spelled.
func (d *division) steps(level any) (list []any) {
	if d.digits {
		list = append(list, map[string]any{"type": "Digits", "individual_digits": true})
	}
	for _, p := range d.patterns {
		list = append(list, map[string]any{"type": "Split", "behavior": "Isolated",
			"invert": false, "pattern": map[string]any{"Regex": p}})
	}
	return append(list, level)
}

// ends puts tokens around a text, as the file says; nil for none.
func (f *File) ends(texts []string, begin bool) (any, error) {
	var before, after []any
	tokens := map[string]any{}
	for _, x := range []struct {
		flag, key string
		def       bool
		to        *[]any
	}{{"add_bos_token", "bos_token_id", begin, &before},
		{"add_eos_token", "eos_token_id", false, &after}} {
		if !f.flag(x.flag, x.def) {
			continue
		}
		id, err := f.tokenID(x.key, texts)
		if err != nil {
			return nil, err
		}
		if id < 0 {
			continue
		}
		text := texts[id]
		*x.to = append(*x.to, map[string]any{"SpecialToken": map[string]any{"id": text,
			"type_id": 0}})
		tokens[text] = map[string]any{"id": text, "ids": []int{id}, "tokens": []string{text}}
	}
	if len(tokens) == 0 {
		return nil, nil
	}
	sequence := func(id string, kind int) any {
		return map[string]any{"Sequence": map[string]any{"id": id, "type_id": kind}}
	}
	single := append(append(slices.Clone(before), sequence("A", 0)), after...)
	pair := append(append(slices.Clone(single), before...), sequence("B", 0))
	return map[string]any{"type": "TemplateProcessing", "single": single,
		"pair": append(pair, after...), "special_tokens": tokens}, nil
}

// sentencePieces is tokenizer.model: SentencePiece's protocol buffer of a BPE model
// (sentencepiece_model.proto).
func (f *File) sentencePieces() ([]byte, error) {
	texts, kinds, err := f.tokens()
	if err != nil {
		return nil, err
	}
	scores, ok := f.meta["tokenizer.ggml.scores"].Floats()
	if !ok || len(scores) != len(texts) {
		return nil, fmt.Errorf("tokenizer.ggml.scores is %v for %d tokens",
			f.meta["tokenizer.ggml.scores"], len(texts))
	}
	var all []byte
	bytes := false
	unknown := slices.Index(kinds, unknownToken)
	for id, text := range texts {
		kind := kinds[id]
		if kind == unusedToken { // which llama.cpp takes as any other, with its low score
			kind = normalToken
		}
		bytes = bytes || kind == byteToken
		piece := protowire.AppendTag(nil, 1, protowire.BytesType)
		piece = protowire.AppendString(piece, text)
		piece = protowire.AppendTag(piece, 2, protowire.Fixed32Type)
		piece = protowire.AppendFixed32(piece, math.Float32bits(float32(scores[id])))
		piece = number32(piece, 3, uint64(kind))
		all = message(all, 1, piece)
	}
	if id, err := f.tokenID("unknown_token_id", texts); err != nil || id >= 0 {
		unknown = id
	}
	spec := number32(nil, 3, 2) // BPE
	spec = number32(spec, 35, boolean(bytes))
	spec = number32(spec, 40, uint64(max(unknown, 0)))
	for number, key := range map[protowire.Number]string{46: "bos_token_id", 47: "eos_token_id"} {
		id, err := f.tokenID(key, texts)
		if err != nil {
			return nil, err
		}
		text := ""
		if id >= 0 {
			text = texts[id]
		}
		spec = message(spec, number, []byte(text))
	}
	all = message(all, 2, spec)
	normal := number32(nil, 3, boolean(f.flag("add_space_prefix", true)))
	normal = number32(normal, 4, boolean(f.flag("remove_extra_whitespaces", false)))
	return message(all, 3, normal), nil
}

func boolean(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}

// number32 appends a whole number of a protocol buffer, message one of its texts or messages.
func number32(to []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, field, protowire.VarintType), v)
}

func message(to []byte, field protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), m)
}

// TokenizerConfig is tokenizer_config.json.
func (f *File) TokenizerConfig() ([]byte, error) {
	// SentencePiece's models put a space in front of all that follows a special token, as llama.cpp
	// does: transformers' "legacy".
	begin := f.TokenizerName() == "tokenizer.model"
	if pre, ok := f.text("tokenizer.ggml.pre"); ok && !begin {
		begin = divisions()[pre].begin
	}
	c := map[string]any{"add_bos_token": f.flag("add_bos_token", begin),
		"add_eos_token": f.flag("add_eos_token", false), "legacy": true}
	if texts, _, err := f.tokens(); err == nil {
		for field, key := range map[string]string{"bos_token": "bos_token_id",
			"eos_token": "eos_token_id", "pad_token": "padding_token_id",
			"unk_token": "unknown_token_id"} {
			id, err := f.tokenID(key, texts)
			if err != nil {
				return nil, err
			}
			if id >= 0 {
				c[field] = texts[id]
			}
		}
	}
	const key = "tokenizer.chat_template"
	templates := []any{}
	for _, name := range slices.Sorted(maps.Keys(f.meta)) {
		if other, ok := strings.CutPrefix(name, key+"."); ok {
			if text, ok := f.text(name); ok {
				templates = append(templates, map[string]any{"name": other, "template": text})
			}
		}
	}
	if text, ok := f.text(key); ok {
		templates = append(templates, map[string]any{"name": "default", "template": text})
	}
	if len(templates) > 0 {
		c["chat_template"] = templates
	}
	return json.Marshal(c)
}

// endTexts are the tokens that end an answer wherever a vocabulary has them, as llama.cpp finds
// them (special_eog_ids of src/llama-vocab.cpp).
var endTexts = []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>",
	"<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>",
	"_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
	"<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["}

// GenerationConfig is generation_config.json: what ends an answer, and how it is sampled where the
// file says so.
func (f *File) GenerationConfig() ([]byte, error) {
	c := map[string]any{}
	if texts, _, err := f.tokens(); err == nil {
		var ends []int
		for _, key := range []string{"eos_token_id", "eot_token_id", "eom_token_id"} {
			id, err := f.tokenID(key, texts)
			if err != nil {
				return nil, err
			}
			if id >= 0 && !slices.Contains(ends, id) {
				ends = append(ends, id)
			}
		}
		for id, text := range texts {
			if slices.Contains(endTexts, text) && !slices.Contains(ends, id) {
				ends = append(ends, id)
			}
		}
		c["eos_token_id"] = ends
	}
	for field, key := range map[string]string{"temperature": "temp", "top_k": "top_k",
		"top_p": "top_p", "min_p": "min_p", "repetition_penalty": "penalty_repeat"} {
		if v, ok := f.meta["general.sampling."+key]; ok {
			if n, ok := number(v); ok {
				c[field] = n
			}
		}
	}
	return json.Marshal(c)
}
