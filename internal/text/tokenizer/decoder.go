package tokenizer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoderStep is one step of the decoder section.
type decoderStep struct {
	kind string
	// rewrite is set for a step that turns each token into another by itself (Replace, Strip).
	rewrite func(string) string
	pattern pattern // Replace
	content string
	strip   stripSpec
	space   *metaspace     // Metaspace
	words   *wordPieceStep // WordPiece
}

// stripSpec is the Strip step: up to start (stop) characters go from the front (end) of a token.
type stripSpec struct {
	char        rune
	start, stop int
}

func (s stripSpec) apply(token string) string {
	for range s.start {
		r, n := utf8.DecodeRuneInString(token)
		if n == 0 || r != s.char {
			break
		}
		token = token[n:]
	}
	for range s.stop {
		r, n := utf8.DecodeLastRuneInString(token)
		if n == 0 || r != s.char {
			break
		}
		token = token[:len(token)-n]
	}
	return token
}

func parseDecoder(data json.RawMessage) ([]decoderStep, error) {
	return flatten(data, "decoder", "decoders", 0, new(growth), parseDecoderStep)
}

func parseDecoderStep(kind string, data json.RawMessage, g *growth) (decoderStep, error) {
	step := decoderStep{kind: kind}
	switch kind {
	case "ByteLevel", "ByteFallback", "Fuse":
		return step, nil
	case "Replace":
		var spec struct {
			Pattern patternSpec `json:"pattern"`
			Content string      `json:"content"`
		}
		if err := json.Unmarshal(data, &spec); err != nil {
			return step, err
		}
		p, err := spec.Pattern.compile()
		if err != nil {
			return step, err
		}
		step.pattern, step.content = p, spec.Content
		replace := replacer(p, spec.Content)
		step.rewrite = func(token string) string { return replace(token, new(work)) }
		return step, g.by(growthOf(p, spec.Content))
	case "Strip":
		var spec struct {
			Content string `json:"content"`
			Start   uint32 `json:"start"`
			Stop    uint32 `json:"stop"`
		}
		if err := json.Unmarshal(data, &spec); err != nil {
			return step, err
		}
		chars := []rune(spec.Content)
		if len(chars) != 1 {
			return step, fmt.Errorf("content %q is not one character", spec.Content)
		}
		step.strip = stripSpec{char: chars[0], start: int(spec.Start), stop: int(spec.Stop)}
		step.rewrite = step.strip.apply
		return step, nil
	case "Metaspace":
		var spec metaspaceSpec
		if err := json.Unmarshal(data, &spec); err != nil {
			return step, err
		}
		var err error
		step.space, err = spec.compile()
		return step, err
	case "WordPiece":
		step.words = &wordPieceStep{Prefix: "##"}
		return step, json.Unmarshal(data, step.words)
	}
	return step, errUnsupported
}

// decoder turns token ids into text. The steps at the front that treat each token by itself are
// done once, at load, for the whole vocabulary.
type decoder struct {
	pieces []string // by id
	steps  []decoderStep
	joins  bool // without a decoder section tokens are joined by spaces
	plain  bool // the pieces are bytes that need only be put together
}

// newDecoder applies the front of steps to every token.
func newDecoder(steps []decoderStep, v *vocabulary) *decoder {
	d := &decoder{pieces: v.text, joins: len(steps) == 0}
	for len(steps) > 0 && steps[0].rewrite != nil {
		d.pieces = mapPieces(d.pieces, steps[0].rewrite)
		steps = steps[1:]
	}
	if len(steps) > 0 && steps[0].kind == "ByteLevel" {
		d.pieces = spellBytes(d.pieces)
		steps = append([]decoderStep{{kind: "bytes"}}, steps[1:]...)
		d.plain = len(steps) == 1
	}
	d.steps = steps
	return d
}

func mapPieces(pieces []string, f func(string) string) []string {
	out := make([]string, len(pieces))
	for i, p := range pieces {
		out[i] = f(p)
	}
	return out
}

// spellBytes turns pieces in the byte-level alphabet into bytes, all in one block of memory. Where
// all characters stand for themselves the piece is kept.
func spellBytes(pieces []string) []string {
	total := 0
	for _, p := range pieces {
		total += len(p)
	}
	var text strings.Builder
	text.Grow(total)
	out := make([]string, len(pieces))
	var spelled []byte
	for i, p := range pieces {
		if isASCII(p) {
			out[i] = p
			continue
		}
		spelled = appendFromByteAlphabet(spelled[:0], p)
		start := text.Len()
		text.Write(spelled)
		out[i] = text.String()[start:]
	}
	return out
}

// bytesOf returns what one token stands for in the middle of a text.
func (d *decoder) bytesOf(id int32) []byte {
	token := d.pieces[id]
	for _, s := range d.steps {
		switch s.kind {
		case "ByteFallback":
			if b, ok := fallbackByte(token); ok {
				return []byte{b}
			}
		case "Metaspace":
			token = strings.ReplaceAll(token, s.space.replacement, " ")
		case "WordPiece":
			token = s.words.apply(token, false)
		case "Fuse", "bytes":
			return []byte(token)
		case "Replace", "Strip":
			token = s.rewrite(token)
		}
	}
	return []byte(token)
}

// fallbackByte reads a token of the form <0x0A>.
func fallbackByte(token string) (byte, bool) {
	if len(token) != len("<0x00>") || !strings.HasPrefix(token, "<0x") || token[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(b), err == nil
}

// chain builds the stages for one text. They end in the buffer that it returns.
func (d *decoder) chain() (stage, *textBuffer) {
	buffer := &textBuffer{joins: d.joins}
	var next stage = buffer
	for i := len(d.steps) - 1; i >= 0; i-- {
		switch s := &d.steps[i]; s.kind {
		case "bytes":
			next = &bytesStage{next: next}
		case "ByteLevel":
			next = &wholeStage{rewrite: fromByteAlphabet, next: &bytesStage{next: next}}
		case "ByteFallback":
			next = &wholeStage{next: &fallbackStage{next: next}}
		case "Fuse":
			next = &fuseStage{next: next}
		case "Strip":
			next = &stripStage{spec: s.strip, next: next}
		case "Metaspace":
			next = &metaspaceStage{space: s.space, next: next}
		case "WordPiece":
			next = &wholeStage{next: &wordPieceStage{step: s.words, next: next}}
		case "Replace":
			if literal, ok := s.pattern.(literalPattern); ok {
				next = &replaceStage{pattern: string(literal), content: s.content, next: next}
			} else {
				next = &wholeStage{rewrite: s.rewrite, next: next}
			}
		}
	}
	return next, buffer
}

func fromByteAlphabet(s string) string {
	return string(appendFromByteAlphabet(nil, s))
}
