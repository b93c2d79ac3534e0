package generate

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/output"
)

// logprobBuffer has the log-probabilities of tokens, as they are written, until it is known whether
// their text is part of a message. Whose they are is said by where their text begins in the answer,
// never by which of them came together.
type logprobBuffer struct {
	buf []byte
	// offsets are where the text of each begins, ends where it ends itself in buf, after a comma.
	offsets, ends []int
	// out is what the caller has.
	out []byte
	// open says that the last part was content; other says that another part was.
	open, other bool
}

// add appends token i of a delta.
func (w *logprobBuffer) add(offsets []int, i int, logprob func([]byte) []byte) {
	at := 0
	if i < len(offsets) {
		at = offsets[i]
	}
	w.buf = append(logprob(w.buf), ',')
	w.offsets, w.ends = append(w.offsets, at), append(w.ends, len(w.buf))
}

// of takes out the tokens of a part, valid until the next call: those since the token in which the
// content begins, and before where the part ends.
func (w *logprobBuffer) of(p *output.Part) []byte {
	if p.Kind != output.Content {
		w.open, w.other = false, true
		return nil
	}
	if !w.open {
		w.open = true
		w.drop(w.buffered(p.From))
	}
	n, _ := slices.BinarySearch(w.offsets, p.To)
	return w.pop(n)
}

// tail takes out the tokens that follow the last text of an answer, which is so long. They belong
// to the message that ends it, or to one without a text.
func (w *logprobBuffer) tail(length int) []byte {
	if !w.open && w.other {
		return nil
	}
	n, _ := slices.BinarySearch(w.offsets, length)
	w.drop(n)
	return w.pop(len(w.offsets))
}

// discard drops tokens that cannot be of content that comes.
func (w *logprobBuffer) discard(c *Choice) {
	if c.Reader != nil && !w.open {
		w.drop(w.buffered(c.Reader.Decided()))
	}
}

// buffered is the first of the tokens from the one on whose text has the place at.
func (w *logprobBuffer) buffered(at int) int {
	n, exact := slices.BinarySearch(w.offsets, at)
	if !exact && n > 0 {
		n--
	}
	return n
}

// drop removes the first n tokens.
func (w *logprobBuffer) drop(n int) {
	if n == 0 {
		return
	}
	end := w.ends[n-1]
	w.buf = slices.Delete(w.buf, 0, end)
	w.offsets, w.ends = slices.Delete(w.offsets, 0, n), slices.Delete(w.ends, 0, n)
	for i := range w.ends {
		w.ends[i] -= end
	}
}

// pop removes the first n tokens, and returns them separated by commas.
func (w *logprobBuffer) pop(n int) []byte {
	if n == 0 {
		return nil
	}
	w.out = append(w.out[:0], w.buf[:w.ends[n-1]-1]...)
	w.drop(n)
	return w.out
}
