package output

import "slices"

// layout is how a family marks the parts of an answer beside its calls and its first reasoning:
// content between tags of its own, or messages that say what they are. Its format and its reasoning
// share it, so that either is read without the other.
type layout struct {
	// tags stand around content, and are no part of it.
	tags []string
	// headers begin parts that say what they are; inner are further tags within headers. In
	// reasoning a header counts where one of follows comes next.
	headers, inner, follows []string
	// read reads what follows a header, and the reasoning or the call that it begins: called where
	// the header is one, refused where it is text.
	read func(r *reader, header string) verdict
	// begin and end surround content where an answer is constrained, aside and asideEnd content
	// that another part may follow. Before such a part, and after reasoning, next stands.
	begin, end, aside, asideEnd, next string
}

// plain is the layout of families whose content has no marks.
var plain = new(layout)

// all are the tags of a layout.
func (l *layout) all() []string { return slices.Concat(l.tags, l.headers, l.inner) }

// layout is that of the family, as its reasoning or its calls have it.
func (o *Options) layout() *layout {
	switch {
	case o.Reasoning != nil && o.Reasoning.layout != nil:
		return o.Reasoning.layout
	case o.Tools != nil && o.Tools.layout != nil:
		return o.Tools.layout
	}
	return plain
}

// ownReasoning is whether the reasoning that the layout has is read as such.
func (r *reader) ownReasoning() bool {
	t := r.opt.Reasoning
	return t != nil && t.layout == r.layout
}

// ownCalls is whether the calls that the layout has are read as such.
func (r *reader) ownCalls() bool {
	f := r.opt.Tools
	return f != nil && f.layout == r.layout
}
