package output

import "slices"

// Format is how a family writes calls of tools.
type Format struct {
	// Names are those of vLLM's --tool-call-parser.
	Names []string
	// ShortIDs says that the family's ids of calls are nine letters and digits.
	ShortIDs bool
	// start reads calls that begin the content without an opener; nil is for families that have
	// none.
	start func(r *reader) verdict
	// openers are the tags that begin calls within the content; none of them ends a call. The first
	// counts in the reasoning too.
	openers []string
	// loose openers are ordinary text, so that what does not become a call was none.
	loose bool
	// follows are what comes after an opener, and white space, in reasoning that it ends; nil is
	// anything. Where named is set the function's name comes before it.
	follows []string
	named   bool
	// closers are tags that end calls, dropped where one is left over after a call.
	closers []string
	// inner are further tags within calls.
	inner []string
	// layout is how the family marks the rest of an answer, nil for not at all.
	layout *layout
	// envelope is how calls are written, nil where only some texts between could say.
	envelope *envelope
	// read reads what follows an opener.
	read func(r *reader, opener string) verdict
}

// Tags are the texts that must reach the parser although they may be special tokens.
func (f *Format) Tags() []string {
	list := slices.Concat(f.openers, f.closers, f.inner)
	if f.layout != nil {
		list = append(list, f.layout.all()...)
	}
	return list
}

// body reads what follows the reasoning.
func (r *reader) body() {
	f := r.opt.Tools
	if f == nil {
		f = new(Format)
	}
	r.begin()
	marks := slices.Concat(f.openers, r.layout.headers, f.closers)
	openers, headers, closers := len(f.openers), len(f.openers)+len(r.layout.headers), len(marks)
	if t := r.opt.Reasoning; t != nil && len(t.End) == 1 {
		marks = append(marks, t.End[0])
	}
	marks = append(append(marks, r.layout.tags...), r.opt.Drop...)
	for {
		i := r.until(marks, r.content)
		switch {
		case i < 0:
			return
		case i < openers:
			r.keep = r.pos - len(marks[i])
			r.attempt(f.read(r, marks[i]), f.loose || f.start != nil)
		case i < headers:
			r.keep = r.pos - len(marks[i])
			r.attempt(r.layout.read(r, marks[i]), false)
			r.begin()
		case i < closers && (r.calls == 0 || !r.trim):
			r.content([]byte(marks[i]))
		case i >= closers:
			r.begin()
		}
	}
}

// begin reads calls without an opener, where nothing was said before and the content begins.
func (r *reader) begin() {
	f := r.opt.Tools
	if f == nil || f.start == nil || r.said || r.calls > 0 {
		return
	}
	r.keep = r.pos
	r.spaces()
	tagged := slices.ContainsFunc(r.layout.headers, r.starts) ||
		slices.ContainsFunc(r.layout.tags, r.starts)
	r.pos = r.keep
	if tagged {
		r.keep = -1
		return
	}
	r.attempt(f.start(r), true)
}

// attempt is done with a text, from keep on, that began like a call: where it is none, all of it is
// content. So it is with a loose one that the end of the text cut.
func (r *reader) attempt(v verdict, loose bool) {
	from := r.keep
	r.keep = -1
	switch {
	case v == refused, v == cut && loose:
		r.content(r.buf[from:r.pos])
	case v == cut:
		r.blank = r.blank[:0]
	}
}
