package tokenizer

// scratch holds the buffers of one call of AppendEncode.
type scratch struct {
	work
	list         []linked
	heap         []uint64
	bytes        []byte
	spans        []span
	paths        []path
	pieces, next []piece
}

// maxKeptScratch bounds the buffers that are kept for later calls, in elements.
const maxKeptScratch = 1 << 14

// Encode returns the token ids of text. With addSpecial the post-processor puts its special tokens
// (a begin-of-sequence token, say) around them. Text that is not UTF-8 is read with U+FFFD in its
// place: one for each maximal part of a character, and for each byte where SentencePiece does so.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 {
	return t.AppendEncode(make([]int32, 0, len(text)/4+8), text, addSpecial)
}

// EncodeUntil is Encode for a result that may cease to be wanted: stop is asked every few
// milliseconds, and its first error ends the work.
func (t *Tokenizer) EncodeUntil(stop func() error, text string, addSpecial bool) ([]int32, error) {
	w := work{stop: stop}
	return t.appendEncode(make([]int32, 0, len(text)/4+8), text, addSpecial, &w), w.err
}

// AppendEncode is Encode appending to dst.
func (t *Tokenizer) AppendEncode(dst []int32, text string, addSpecial bool) []int32 {
	return t.appendEncode(dst, text, addSpecial, new(work))
}

func (t *Tokenizer) appendEncode(dst []int32, text string, addSpecial bool, w *work) []int32 {
	text = t.valid(text)
	for _, id := range t.template.single {
		switch {
		case id == markA:
			dst = t.appendText(dst, text, w)
		case addSpecial:
			dst = append(dst, id)
		}
	}
	return dst
}

// valid returns text as the normalizer takes it: its lossy reading when it is not UTF-8.
func (t *Tokenizer) valid(text string) string {
	if t.anyBytes {
		return text
	}
	return validText(text)
}

// appendText cuts out the added tokens and encodes what is between them.
func (t *Tokenizer) appendText(dst []int32, text string, w *work) []int32 {
	sc := t.scratch.Get().(*scratch)
	sc.work = *w
	done := 0
	if t.added != nil {
		for from := 0; ; {
			match, ok := t.added.find(text, from, done)
			if !ok || sc.done(match.end-done) {
				break
			}
			if done < match.start {
				dst = t.appendSegment(dst, text[done:match.start], done == 0, sc)
			}
			dst = append(dst, match.id)
			done, from = match.end, match.resume
		}
	}
	if done < len(text) {
		dst = t.appendSegment(dst, text[done:], done == 0, sc)
	}
	*w, sc.work = sc.work, work{}
	sc.trim()
	t.scratch.Put(sc)
	return dst
}

// trim lets go of buffers that one long text made large.
func (sc *scratch) trim() {
	if cap(sc.list) > maxKeptScratch {
		sc.list, sc.heap = nil, nil
	}
	if cap(sc.spans) > maxKeptScratch {
		sc.spans = nil
	}
	if cap(sc.paths) > maxKeptScratch {
		sc.paths = nil
	}
	if cap(sc.bytes) > maxKeptScratch {
		sc.bytes = nil
	}
	if cap(sc.pieces) > maxKeptScratch || cap(sc.next) > maxKeptScratch {
		sc.pieces, sc.next = nil, nil
	}
}

// appendSegment normalizes text between added tokens and cuts out those to be found afterwards.
func (t *Tokenizer) appendSegment(dst []int32, text string, atStart bool, sc *scratch) []int32 {
	text = normalize(t.normalizers, text, &sc.work)
	done := 0
	if t.addedNormal != nil {
		for from := 0; ; {
			match, ok := t.addedNormal.find(text, from, done)
			if !ok || sc.done(match.end-done) {
				break
			}
			if done < match.start {
				dst = t.appendPieces(dst, text[done:match.start], atStart && done == 0, sc)
			}
			dst = append(dst, match.id)
			done, from = match.end, match.resume
		}
	}
	if done < len(text) {
		dst = t.appendPieces(dst, text[done:], atStart && done == 0, sc)
	}
	return dst
}

// appendPieces runs the pre-tokenizer and the model.
func (t *Tokenizer) appendPieces(dst []int32, text string, atStart bool, sc *scratch) []int32 {
	if t.direct != nil {
		if t.prefixSpace && text[0] != ' ' {
			text = " " + text
		}
		for i := 0; i < len(text); {
			end := t.direct.next(text, i)
			if sc.done(end - i) {
				break
			}
			dst = t.model.encode(dst, text[i:end], sc)
			i = end
		}
		return dst
	}
	pieces, next := append(sc.pieces[:0], piece{text, atStart}), sc.next
	for _, step := range t.steps {
		next = next[:0]
		for _, p := range pieces {
			if sc.done(len(p.text)) {
				break
			}
			next = step.split(p, next, sc)
		}
		pieces, next = next, pieces
	}
	for _, p := range pieces {
		if sc.done(len(p.text)) {
			break
		}
		dst = t.model.encode(dst, p.text, sc)
	}
	sc.pieces, sc.next = pieces, next
	return dst
}
