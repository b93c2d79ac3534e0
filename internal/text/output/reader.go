package output

import (
	"bytes"
	"slices"
	"strings"
)

// reader is the state of a parser inside its coroutine: the text that was not read yet, and the
// parts that were not taken yet.
type reader struct {
	opt    Options
	layout *layout
	yield  func(struct{}) bool
	// buf[pos:] is unread. What is before it is forgotten, from keep on it is not (-1: all is).
	buf       []byte
	pos, keep int
	eof       bool
	// base is where buf begins in the answer.
	base int
	// thoughts are where reasoning is. Until settled is set there may be more.
	thoughts []Span
	settled  bool

	parts []Part
	// text is of the last part.
	text []byte
	// blank is white space after content, which is dropped if a call follows. It is at blankFrom,
	// and ends before blankTo.
	blank              []byte
	blankFrom, blankTo int
	// trim drops white space until content comes.
	trim bool
	// calls counts the calls that began, said is set when there was content, and muted when the
	// rest of the answer does not count.
	calls       int
	said, muted bool
}

// drain returns the parts since the last time.
func (r *reader) drain() []Part {
	r.seal()
	list := r.parts
	r.parts = nil
	return list
}

// seal gives the last part its text.
func (r *reader) seal() {
	if len(r.text) > 0 {
		r.parts[len(r.parts)-1].Text = string(r.text)
		r.text = r.text[:0]
	}
}

// emit adds to the parts.
func (r *reader) emit(kind Kind, text []byte) {
	if r.muted || len(text) == 0 || kind == Reasoning && r.opt.Single && r.calls > 0 {
		return
	}
	index := 0
	if kind == Arguments {
		index = r.calls - 1
	}
	if n := len(r.parts); n == 0 || r.parts[n-1].Kind != kind || r.parts[n-1].Index != index {
		r.seal()
		r.parts = append(r.parts, Part{Kind: kind, Index: index})
	}
	r.text = append(r.text, text...)
}

// call begins a call; id is "" where the model gave none.
func (r *reader) call(name, id string) {
	if r.opt.Single && r.calls > 0 {
		r.muted = true
	}
	r.blank = r.blank[:0]
	r.trim = true
	r.calls++
	if r.muted {
		return
	}
	if id == "" {
		id = r.opt.ID()
	}
	r.seal()
	r.parts = append(r.parts, Part{Kind: Call, Index: r.calls - 1, Name: name, ID: id})
}

// arguments adds to those of the last call.
func (r *reader) arguments(text []byte) { r.emit(Arguments, text) }

func (r *reader) argumentText(text string) { r.emit(Arguments, []byte(text)) }

// content adds text for the user, which was read last, without white space before a call or after
// one.
func (r *reader) content(text []byte) {
	if r.opt.Single && r.calls > 0 {
		return
	}
	if r.trim {
		if text = trimLeft(text); len(text) == 0 {
			return
		}
		r.trim = false
	}
	to := r.base + r.pos
	from, end := to-len(text), len(trimRight(text))
	if end > 0 {
		r.flush()
		r.emitContent(text[:end], from, from+end)
	}
	if end == len(text) {
		return
	}
	if len(r.blank) == 0 {
		r.blankFrom = from + end
	}
	r.blank, r.blankTo = append(r.blank, text[end:]...), to
}

// apart puts a line break between the content before and the content after a header, which began at
// a byte of the answer and was read last.
func (r *reader) apart(from int) {
	if !r.said || r.opt.Single && r.calls > 0 {
		return
	}
	if len(r.blank) == 0 {
		r.blankFrom = from
	}
	r.blank, r.blankTo = append(r.blank, '\n'), r.base+r.pos
}

// flush emits the white space that ends the content.
func (r *reader) flush() {
	r.emitContent(r.blank, r.blankFrom, r.blankTo)
	r.blank = r.blank[:0]
}

// emitContent adds content to the parts, with where it is in the answer.
func (r *reader) emitContent(text []byte, from, to int) {
	r.emit(Content, text)
	if r.muted || len(text) == 0 {
		return
	}
	r.said = true
	p := &r.parts[len(r.parts)-1]
	if p.To == 0 {
		p.From = from
	}
	p.To = to
}

const space = " \t\r\n"

func trimLeft(b []byte) []byte  { return bytes.TrimLeft(b, space) }
func trimRight(b []byte) []byte { return bytes.TrimRight(b, space) }

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// more waits for text; false says that there is none to come.
func (r *reader) more() bool {
	if from := r.forgotten(); from > len(r.buf)/2 {
		r.buf = r.buf[:copy(r.buf, r.buf[from:])]
		r.pos -= from
		r.base += from
		if r.keep >= 0 {
			r.keep -= from
		}
	}
	for n := len(r.buf); len(r.buf) == n; {
		if r.eof {
			return false
		}
		if !r.yield(struct{}{}) {
			r.eof = true
		}
	}
	return true
}

// forgotten is where the bytes begin that are needed still.
func (r *reader) forgotten() int {
	if r.keep >= 0 {
		return min(r.keep, r.pos)
	}
	return r.pos
}

// peek returns the next byte; false says that the text has ended.
func (r *reader) peek() (byte, bool) {
	if r.pos == len(r.buf) && !r.more() {
		return 0, false
	}
	return r.buf[r.pos], true
}

// next is whether c is the next byte.
func (r *reader) next(c byte) bool {
	b, ok := r.peek()
	return ok && b == c
}

// ended is whether all of the text was read.
func (r *reader) ended() bool {
	_, ok := r.peek()
	return !ok
}

// starts is whether the text goes on with s.
func (r *reader) starts(s string) bool {
	for {
		n := min(len(s), len(r.buf)-r.pos)
		if string(r.buf[r.pos:r.pos+n]) != s[:n] {
			return false
		}
		if n == len(s) {
			return true
		}
		if !r.more() {
			return false
		}
	}
}

// accept reads over s where it comes next.
func (r *reader) accept(s string) bool {
	if !r.starts(s) {
		return false
	}
	r.pos += len(s)
	return true
}

// acceptAny reads over the first of the texts that comes next.
func (r *reader) acceptAny(list []string) bool { return slices.ContainsFunc(list, r.accept) }

// word reads what is before one of the marks, without white space around it, and the mark, and
// returns the index of that: -1 where the text ends first.
func (r *reader) word(marks ...string) (string, int) {
	var b []byte
	r.spaces()
	i := r.until(marks, func(text []byte) { b = append(b, text...) })
	return string(trimRight(b)), i
}

// name is word for the name of a function: called where it is one.
func (r *reader) name(marks ...string) (string, int, verdict) {
	name, at := r.word(marks...)
	switch {
	case at < 0:
		return "", at, cut
	case !isName(name):
		return "", at, refused
	}
	return name, at, called
}

// wordOf reads a word of such bytes.
func (r *reader) wordOf(of func(c byte) bool) string {
	n := 0
	for {
		if c, ok := r.ahead(n); !ok || !of(c) {
			break
		}
		n++
	}
	word := string(r.buf[r.pos : r.pos+n])
	r.pos += n
	return word
}

// spaces reads over white space.
func (r *reader) spaces() {
	for {
		for r.pos < len(r.buf) && isSpace(r.buf[r.pos]) {
			r.pos++
		}
		if r.pos < len(r.buf) || !r.more() {
			return
		}
	}
}

// until hands the text before the first of the marks to f, as it comes, reads over the mark, and
// returns its index: -1 where the text ends without one. Of marks that begin alike the longest
// counts. What may become a mark is held back.
func (r *reader) until(marks []string, f func([]byte)) int {
	var first [256]bool
	for _, m := range marks {
		first[m[0]] = true
	}
	for {
		i, mark, open := r.find(marks, &first)
		if i > r.pos {
			text := r.buf[r.pos:i]
			r.pos = i
			f(text)
		}
		if mark >= 0 && !open {
			r.pos += len(marks[mark])
			return mark
		}
		if !r.more() && r.pos == len(r.buf) {
			return -1
		}
	}
}

// find returns where the first mark begins, whole or cut by the end of what there is of the text:
// open says that more text may make it a mark, or a longer one. first are the bytes that marks
// begin with.
func (r *reader) find(marks []string, first *[256]bool) (at, mark int, open bool) {
	for at = r.pos; at < len(r.buf); at++ {
		if !first[r.buf[at]] {
			continue
		}
		rest := r.buf[at:]
		mark = -1
		for i, m := range marks {
			switch {
			case rest[0] != m[0]:
			case len(rest) >= len(m):
				if string(rest[:len(m)]) == m && (mark < 0 || len(m) > len(marks[mark])) {
					mark = i
				}
			case !r.eof && strings.HasPrefix(m, string(rest)):
				open = true
			}
		}
		if mark >= 0 || open {
			return at, mark, open
		}
	}
	return at, -1, true
}
