package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Decode returns the text of the ids as Hugging Face's decode gives it, without cleaning up spaces.
// With skipSpecial special tokens are left out. Ids that name no token are left out always; bytes
// that are no UTF-8 become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	if t.decoder.plain {
		size := 0
		for _, id := range ids {
			if t.decodes(id, skipSpecial) {
				size += len(t.decoder.pieces[id])
			}
		}
		var b strings.Builder
		b.Grow(size)
		for _, id := range ids {
			if t.decodes(id, skipSpecial) {
				b.WriteString(t.decoder.pieces[id])
			}
		}
		return validText(b.String())
	}
	head, buffer := t.decoder.chain()
	for _, id := range ids {
		if t.decodes(id, skipSpecial) {
			head.push(t.decoder.pieces[id], true)
		}
	}
	head.flush()
	return string(buffer.text)
}

// decodes reports whether a token contributes to the text.
func (t *Tokenizer) decodes(id int32, skipSpecial bool) bool {
	return t.vocab.has(id) && !(skipSpecial && t.special[id])
}

// Stream turns tokens into text one at a time. It is not safe for concurrent use.
type Stream struct {
	tokenizer   *Tokenizer
	skipSpecial bool
	head        stage
	buffer      *textBuffer
	// prompt is text of the prompt's last tokens that the next ones could still have changed; it is
	// taken off the front of what comes out.
	prompt string
	done   bool
}

// NewStream returns a Stream for the tokens that follow prompt. What its Push and Flush return, put
// together, is Decode of prompt and tokens without the front that it shares with Decode of prompt
// alone; that is, the continuation of the prompt's text. The prompt is only read.
func (t *Tokenizer) NewStream(prompt []int32, skipSpecial bool) *Stream {
	s := &Stream{tokenizer: t, skipSpecial: skipSpecial}
	s.head, s.buffer = t.decoder.chain()
	if t.decoder.plain {
		prompt = t.lastBytes(prompt, skipSpecial)
	}
	for _, id := range prompt {
		if t.decodes(id, skipSpecial) {
			s.head.push(t.decoder.pieces[id], true)
			s.buffer.text = s.buffer.text[:0]
		}
	}
	end := new(textBuffer)
	s.head.clone(end).flush()
	s.prompt = string(end.text)
	return s
}

// lastBytes returns the end of ids that decides which character is incomplete after them: UTF-8 is
// self-synchronizing, so the last three bytes are enough.
func (t *Tokenizer) lastBytes(ids []int32, skipSpecial bool) []int32 {
	size := 0
	for i := len(ids) - 1; i >= 0; i-- {
		if t.decodes(ids[i], skipSpecial) {
			size += len(t.decoder.pieces[ids[i]])
		}
		if size >= utf8.UTFMax-1 {
			return ids[i:]
		}
	}
	return ids
}

// Push takes the next token and returns the text that became certain by it, which may be empty. It
// never returns part of a character.
func (s *Stream) Push(id int32) string {
	if s.done || !s.tokenizer.decodes(id, s.skipSpecial) {
		return ""
	}
	piece := s.tokenizer.decoder.pieces[id]
	if s.prompt == "" && s.head.passes(piece, true) {
		return piece
	}
	s.head.push(piece, true)
	return s.drain()
}

// Flush ends the stream and returns the text that was still held back. A character that never
// became complete comes out as U+FFFD. After Flush the stream returns no more text.
func (s *Stream) Flush() string {
	if s.done {
		return ""
	}
	s.done = true
	s.head.flush()
	return s.drain()
}

// drain empties the buffer.
func (s *Stream) drain() string {
	text := string(s.buffer.text)
	s.buffer.text = s.buffer.text[:0]
	for s.prompt != "" && text != "" {
		want, n := utf8.DecodeRuneInString(s.prompt)
		got, m := utf8.DecodeRuneInString(text)
		if want != got {
			s.prompt = ""
			break
		}
		s.prompt = s.prompt[n:]
		text = text[m:]
	}
	return text
}
