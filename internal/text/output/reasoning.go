package output

import (
	"math"
	"slices"
	"strings"
)

// Thinking is how a family writes what it thinks before its answer.
type Thinking struct {
	// Names are those of vLLM's --reasoning-parser.
	Names []string
	// Start and End are the tags around it, each in its spellings. The start is often in the
	// prompt.
	Start, End []string
	// Always says that an answer thinks although neither the prompt nor the answer has the start.
	Always bool
	// aloud says that what it thinks is content, with its tags.
	aloud bool
	// layout is how the family marks the rest of an answer, nil for not at all.
	layout *layout
}

// Tags are the texts that must reach the parser although they may be special tokens.
func (f *Thinking) Tags() []string {
	list := slices.Concat(f.Start, f.End)
	if f.layout != nil {
		list = append(list, f.layout.all()...)
	}
	return list
}

// StateAfter is what a prompt leaves of the reasoning: text is its end, as the template made it.
func (f *Thinking) StateAfter(text string) State {
	text = strings.TrimRight(text, space)
	for _, s := range f.Start {
		if strings.HasSuffix(text, strings.TrimRight(s, space)) {
			return Open
		}
	}
	for _, s := range f.End {
		if strings.HasSuffix(text, s) {
			return Closed
		}
	}
	return Unsaid
}

// StateWithin is what the beginning of an answer, which the prompt ends with, leaves of the
// reasoning.
func (f *Thinking) StateWithin(text string) State {
	last := func(tags []string) (at int) {
		at = -1
		for _, s := range tags {
			at = max(at, strings.LastIndex(text, s))
		}
		return at
	}
	start, end := last(f.Start), last(f.End)
	switch {
	case end > start:
		return Closed
	case start >= 0:
		return Open
	case f.layout != nil && f.layout.begin != "":
		return Closed // the template began the content
	}
	return Unsaid
}

// answer reads all of an answer.
func (r *reader) answer() {
	if r.opt.Reasoning != nil {
		r.think(r.opt.Reasoning)
	}
	// Parts that say what they are may reason again.
	r.settled = len(r.layout.headers) == 0
	r.body()
	r.settled = true
	r.flush()
}

// think reads the reasoning, if the answer begins with it.
func (r *reader) think(f *Thinking) {
	if r.opt.State == Closed {
		return
	}
	if f.aloud {
		r.thinkAloud(f)
		return
	}
	r.keep = r.pos
	r.spaces()
	found := r.acceptAny(f.Start)
	if !found && r.opt.State != Open && !f.Always {
		r.pos, r.keep = r.keep, -1
		return
	}
	r.keep = -1
	r.reason(f, 0)
}

// thinkAloud reads reasoning that is content, with the start that the prompt had.
func (r *reader) thinkAloud(f *Thinking) {
	if start := f.Start[0]; !r.starts(start) {
		r.emitContent([]byte(start), 0, 0)
	}
	if i := r.until(f.End, r.content); i >= 0 {
		r.content([]byte(f.End[i]))
	}
}

// reason reads reasoning up to what ends it. It began, with its tag, at a byte of the answer.
func (r *reader) reason(f *Thinking, from int) {
	var blank []byte
	if len(r.thoughts) > 0 {
		blank = []byte{'\n'}
	}
	r.thoughts = append(r.thoughts, Span{from, math.MaxInt})
	end := &r.thoughts[len(r.thoughts)-1].To
	r.trim = true
	marks, ends := slices.Clone(f.End), len(f.End)
	t := r.opt.Tools
	if t != nil && len(t.openers) > 0 && !t.loose {
		marks = append(marks, t.openers[0])
	}
	openers := len(marks)
	if r.ownReasoning() {
		marks = append(marks, r.layout.headers...)
	}
	headers := len(marks)
	marks = append(append(marks, r.layout.tags...), r.opt.Drop...)
	text := func(b []byte) {
		if r.trim {
			if b = trimLeft(b); len(b) == 0 {
				return
			}
			r.trim = false
		}
		end := len(trimRight(b))
		if end > 0 {
			r.emit(Reasoning, blank)
			blank = blank[:0]
			r.emit(Reasoning, b[:end])
		}
		blank = append(blank, b[end:]...)
	}
	for {
		i := r.until(marks, text)
		if i < 0 {
			break
		}
		if i < ends {
			*end = r.base + r.pos
			break
		}
		if i >= headers {
			continue
		}
		follows, named := r.layout.follows, false
		if i < openers {
			follows, named = t.follows, t.named
		}
		r.keep = r.pos - len(marks[i])
		opens := r.opens(follows, named)
		at := r.pos
		r.pos, r.keep = r.keep, -1
		if opens {
			*end = r.base + r.pos
			break
		}
		text(r.buf[r.pos:at])
		r.pos = at
	}
	r.trim = true
}

// opens is whether a tag inside the reasoning begins a call, or another part, rather than being
// spoken of: it ends the reasoning then. It leaves the position after the tag.
func (r *reader) opens(follows []string, named bool) bool {
	if follows == nil {
		return true
	}
	at := r.pos - r.keep
	r.spaces()
	found, nameless := false, named && r.wordOf(ofName) == ""
	r.spaces()
	for _, s := range follows {
		found = found || !nameless && r.starts(s)
	}
	r.pos = r.keep + at
	return found
}
