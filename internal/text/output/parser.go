package output

import "iter"

// Parser reads one answer. It is for one goroutine.
type Parser struct {
	r      *reader
	resume func() (struct{}, bool)
	stop   func()
}

// New returns a parser. The caller closes it, also where the answer is given up.
func New(o Options) *Parser {
	r := &reader{opt: o, layout: o.layout(), keep: -1}
	p := &Parser{r: r}
	// The readers of formats are written as if all of the text were there: they stop inside the
	// coroutine where it is not, and go on with the next Push.
	p.resume, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		r.yield = yield
		r.answer()
	})
	return p
}

// Push adds text and returns the parts that are certain now. A text that may begin a tag is held
// back until it is decided.
func (p *Parser) Push(text string) []Part {
	if text == "" || p.r.eof {
		return nil
	}
	p.r.buf = append(p.r.buf, text...)
	p.resume()
	return p.r.drain()
}

// Thoughts are where the answer reasons. Once they are settled they stay.
func (p *Parser) Thoughts() (list []Span, settled bool) { return p.r.thoughts, p.r.settled }

// Decided is where the text begins, in bytes of the answer, of which no part is known: content that
// comes is not before it.
func (p *Parser) Decided() int {
	at := p.r.base + p.r.forgotten()
	if len(p.r.blank) > 0 {
		at = min(at, p.r.blankFrom)
	}
	return at
}

// Close ends the answer as the model did and returns what was held back. More calls return nothing.
func (p *Parser) Close() []Part {
	if p.r.eof {
		return nil
	}
	p.r.eof = true
	p.resume()
	p.stop()
	return p.r.drain()
}

// Cut ends an answer within: at a length, or a text that the model did not mean as its end. What
// may have become a tag or a call is none of its parts, so that these are the beginning of what
// the parts of any longer answer would be.
func (p *Parser) Cut() []Part {
	r := p.r
	if r.eof {
		return nil
	}
	r.eof, r.settled = true, true
	if r.forgotten() == len(r.buf) {
		r.flush()
	}
	list := r.drain()
	p.stop()
	r.drain() // what the end of the text made of what was held back
	return list
}
