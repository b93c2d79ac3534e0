package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// stage is a step of the decoder at work on one text. Hugging Face runs each step over the list of
// all tokens; a stage gives the same result but passes on at once what later tokens cannot change.
type stage interface {
	// push takes the next part of the current token; last says that the token ends with it.
	push(s string, last bool)
	// flush says that no more tokens come.
	flush()
	// passes reports whether push(s, last) would bring out s at the end as it is and leave every
	// stage in the state it is in.
	passes(s string, last bool) bool
	// clone copies the stage and those after it; the copy ends in buffer.
	clone(buffer *textBuffer) stage
}

// textBuffer collects the text.
type textBuffer struct {
	text   []byte
	joins  bool
	joined bool
}

func (b *textBuffer) push(s string, last bool) {
	if b.joins && b.joined {
		b.text = append(b.text, ' ')
	}
	b.joined = last
	b.text = append(b.text, s...)
}

func (b *textBuffer) flush()                   {}
func (b *textBuffer) passes(string, bool) bool { return !b.joins }

func (b *textBuffer) clone(buffer *textBuffer) stage {
	buffer.joins, buffer.joined = b.joins, b.joined
	return buffer
}

// fuseStage makes one token of all.
type fuseStage struct{ next stage }

func (f *fuseStage) push(s string, last bool) { f.next.push(s, false) }

func (f *fuseStage) flush() {
	f.next.push("", true)
	f.next.flush()
}

func (f *fuseStage) passes(s string, last bool) bool { return f.next.passes(s, false) }
func (f *fuseStage) clone(buffer *textBuffer) stage  { return &fuseStage{f.next.clone(buffer)} }

// bytesStage reads all tokens together as UTF-8 and makes one token of them.
type bytesStage struct {
	pending string // the beginning of a character
	scratch []byte
	next    stage
}

func (b *bytesStage) push(s string, last bool) {
	if b.pending == "" && utf8.ValidString(s) {
		b.next.push(s, false)
		return
	}
	s = b.pending + s
	var rest int
	b.scratch, rest = appendLossy(b.scratch[:0], s, false)
	b.pending = s[rest:]
	b.next.push(string(b.scratch), false)
}

func (b *bytesStage) flush() {
	b.scratch, _ = appendLossy(b.scratch[:0], b.pending, true)
	b.pending = ""
	b.next.push(string(b.scratch), true)
	b.next.flush()
}

func (b *bytesStage) passes(s string, last bool) bool {
	return b.pending == "" && utf8.ValidString(s) && b.next.passes(s, false)
}

func (b *bytesStage) clone(buffer *textBuffer) stage {
	return &bytesStage{pending: b.pending, next: b.next.clone(buffer)}
}

// wholeStage puts tokens together before it passes them on, through rewrite where there is one.
type wholeStage struct {
	held    []byte
	rewrite func(string) string
	next    stage
}

func (w *wholeStage) push(s string, last bool) {
	if !last {
		w.held = append(w.held, s...)
		return
	}
	if len(w.held) > 0 {
		s = string(append(w.held, s...))
		w.held = w.held[:0]
	}
	if w.rewrite != nil {
		s = w.rewrite(s)
	}
	w.next.push(s, true)
}

func (w *wholeStage) flush() { w.next.flush() }

func (w *wholeStage) passes(s string, last bool) bool {
	return last && len(w.held) == 0 && w.rewrite == nil && w.next.passes(s, true)
}

func (w *wholeStage) clone(buffer *textBuffer) stage {
	return &wholeStage{held: append([]byte(nil), w.held...), rewrite: w.rewrite,
		next: w.next.clone(buffer)}
}

// fallbackStage turns runs of tokens like <0x0A> into text. It takes whole tokens. A run that is
// not UTF-8 as a whole becomes one U+FFFD per token, so nothing of a run is certain before its end.
type fallbackStage struct {
	run  []byte
	next stage
}

func (f *fallbackStage) push(s string, last bool) {
	if b, ok := fallbackByte(s); ok {
		f.run = append(f.run, b)
		return
	}
	f.end()
	f.next.push(s, true)
}

func (f *fallbackStage) end() {
	if len(f.run) == 0 {
		return
	}
	if utf8.Valid(f.run) {
		f.next.push(string(f.run), true)
	} else {
		for range f.run {
			f.next.push("\uFFFD", true)
		}
	}
	f.run = f.run[:0]
}

func (f *fallbackStage) flush() {
	f.end()
	f.next.flush()
}

func (f *fallbackStage) passes(s string, last bool) bool {
	if len(f.run) > 0 {
		return false
	}
	_, isByte := fallbackByte(s)
	return !isByte && f.next.passes(s, true)
}

func (f *fallbackStage) clone(buffer *textBuffer) stage {
	return &fallbackStage{run: append([]byte(nil), f.run...), next: f.next.clone(buffer)}
}

// stripStage is the Strip step.
type stripStage struct {
	spec    stripSpec
	cut     int  // characters cut from the front of the token so far
	started bool // the front is done
	held    int  // characters at the end of the token so far that may have to go
	next    stage
}

func (t *stripStage) push(s string, last bool) {
	for !t.started && s != "" {
		r, n := utf8.DecodeRuneInString(s)
		if r != t.spec.char || t.cut == t.spec.start {
			t.started = true
			break
		}
		s = s[n:]
		t.cut++
	}
	end, run := len(s), 0
	for end > 0 && run < t.spec.stop {
		r, n := utf8.DecodeLastRuneInString(s[:end])
		if r != t.spec.char {
			break
		}
		end -= n
		run++
	}
	if end > 0 {
		t.release(t.held)
		t.held = run
	} else {
		t.held += run
		if over := t.held - t.spec.stop; over > 0 {
			t.release(over)
			t.held = t.spec.stop
		}
	}
	if !last {
		if end > 0 {
			t.next.push(s[:end], false)
		}
		return
	}
	t.next.push(s[:end], true)
	t.started, t.cut, t.held = false, 0, 0
}

// release passes on n characters that were held back.
func (t *stripStage) release(n int) {
	for range n {
		t.next.push(string(t.spec.char), false)
	}
}

func (t *stripStage) flush() { t.next.flush() }

func (t *stripStage) passes(s string, last bool) bool {
	return t.started && t.spec.stop == 0 && !last && t.next.passes(s, false)
}

func (t *stripStage) clone(buffer *textBuffer) stage {
	c := *t
	c.next = t.next.clone(buffer)
	return &c
}

// replaceStage is the Replace step with a fixed pattern.
type replaceStage struct {
	pattern, content string
	held             string // the end of the token so far, where the pattern may have begun
	next             stage
}

func (r *replaceStage) push(s string, last bool) {
	s = r.held + s
	r.held = ""
	for {
		i := strings.Index(s, r.pattern)
		if i < 0 {
			break
		}
		r.next.push(s[:i]+r.content, false)
		s = s[i+len(r.pattern):]
	}
	if last {
		r.next.push(s, true)
		return
	}
	n := min(len(s), len(r.pattern)-1)
	for ; n > 0 && !strings.HasPrefix(r.pattern, s[len(s)-n:]); n-- {
	}
	r.held = s[len(s)-n:]
	if n < len(s) {
		r.next.push(s[:len(s)-n], false)
	}
}

func (r *replaceStage) flush() { r.next.flush() }

func (r *replaceStage) passes(s string, last bool) bool {
	return r.held == "" && strings.IndexByte(s, r.pattern[0]) < 0 && r.next.passes(s, last)
}

func (r *replaceStage) clone(buffer *textBuffer) stage {
	c := *r
	c.next = r.next.clone(buffer)
	return &c
}

// metaspaceStage is the Metaspace step: its character becomes a space, or nothing in the first
// token when encoding may have put one there.
type metaspaceStage struct {
	space *metaspace
	later bool // the first token is over
	next  stage
}

func (m *metaspaceStage) push(s string, last bool) {
	with := " "
	if !m.later && m.space.prepend != prependNever {
		with = ""
	}
	m.next.push(strings.ReplaceAll(s, m.space.replacement, with), last)
	m.later = m.later || last
}

func (m *metaspaceStage) flush() { m.next.flush() }

func (m *metaspaceStage) passes(s string, last bool) bool {
	return m.later && !strings.Contains(s, m.space.replacement) && m.next.passes(s, last)
}

func (m *metaspaceStage) clone(buffer *textBuffer) stage {
	return &metaspaceStage{space: m.space, later: m.later, next: m.next.clone(buffer)}
}
