package answer

// Format is how a family writes calls of tools.
type Format struct {
	// Names are those of vLLM's --tool-call-parser.
	Names []string
	// openers are the tags that begin calls within the content; none of them ends a call.
	openers []string
	// follows are what comes after an opener, and white space, where it is not only spoken of; nil
	// is anything.
	follows []string
	// closers are tags that end calls, dropped where one is left over after a call.
	closers []string
	// read reads what follows an opener.
	read func(r *reader, opener string) verdict
	// whole reads all of the content, for families without an opener.
	whole func(r *reader)
}

// body reads what follows the reasoning.
func (r *reader) body() {
	f := r.opt.Tools
	if f != nil && f.whole != nil {
		f.whole(r)
		return
	}
	var marks []string
	openers := 0
	if f != nil {
		marks = append(marks, f.openers...)
		openers = len(marks)
		marks = append(marks, f.closers...)
	}
	closers := len(marks)
	if t := r.opt.Reasoning; t != nil {
		marks = append(marks, t.End)
	}
	if len(marks) == 0 {
		for !r.ended() {
			text := r.buf[r.pos:]
			r.pos = len(r.buf)
			r.content(text)
		}
		return
	}
	for {
		i := r.until(marks, r.content)
		switch {
		case i < 0:
			return
		case i < openers:
			r.open(marks[i])
		case i < closers && (r.calls == 0 || !r.trim):
			r.content([]byte(marks[i]))
		}
	}
}

// open reads what follows a tag that begins a call. Where it is no call, all of it is content.
func (r *reader) open(tag string) {
	r.keep = r.pos - len(tag)
	v := r.opt.Tools.read(r, tag)
	from := r.keep
	r.keep = -1
	switch v {
	case refused:
		r.content(r.buf[from:r.pos])
	case cut:
		r.blank = r.blank[:0]
	}
}
