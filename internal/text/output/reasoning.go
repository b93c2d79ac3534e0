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
}

// StateAfter is what a prompt leaves of the reasoning: text is its end, as the template made it.
func (f *Thinking) StateAfter(text string) State {
	text = strings.TrimRight(text, space)
	for _, s := range f.Start {
		if strings.HasSuffix(text, s) {
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
	}
	return Unsaid
}

// answer reads all of an answer.
func (r *reader) answer() {
	if r.opt.Reasoning != nil {
		r.think(r.opt.Reasoning)
	}
	r.settled = true
	r.body()
	r.flush()
}

// think reads the reasoning, if the answer begins with it.
func (r *reader) think(f *Thinking) {
	if r.opt.State == Closed {
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
	r.trim = true
	r.thought = math.MaxInt
	marks, ends := slices.Clone(f.End), len(f.End)
	if t := r.opt.Tools; t != nil && len(t.openers) > 0 && !t.loose {
		marks = append(marks, t.openers[0])
	}
	openers := len(marks)
	marks = append(marks, r.opt.Drop...)
	var blank []byte
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
			r.thought = r.base + r.pos
			break
		}
		if i >= openers {
			continue
		}
		r.keep = r.pos - len(marks[i])
		opens := r.opens(marks[i])
		at := r.pos
		r.pos, r.keep = r.keep, -1
		if opens {
			r.thought = r.base + r.pos
			break
		}
		text(r.buf[r.pos:at])
		r.pos = at
	}
	r.trim = true
}

// opens is whether a tag of calls inside the reasoning begins one, rather than being spoken of: it
// ends the reasoning then. It leaves the position after the tag.
func (r *reader) opens(tag string) bool {
	follows := r.opt.Tools.follows
	if follows == nil {
		return true
	}
	at := r.pos - r.keep
	r.spaces()
	found := false
	for _, s := range follows {
		found = found || r.starts(s)
	}
	r.pos = r.keep + at
	return found
}
