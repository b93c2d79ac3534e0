package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// work asks its caller, now and then, whether the result is still wanted. The zero value never
// asks. Loops whose length a text decides call done as they go; once it returns true they may leave
// anything behind, and what called them drops it.
type work struct {
	stop func() error
	left int
	err  error
}

// workPart is how much is done between two questions, in bytes of text or steps of a loop: a few
// milliseconds at most.
const workPart = 1 << 16

// done counts n bytes or steps, and reports whether to stop.
func (w *work) done(n int) bool {
	w.left -= n
	return w.left < 0 && w.ask()
}

func (w *work) ask() bool {
	if w.err == nil {
		w.left = workPart
		if w.stop != nil {
			w.err = w.stop()
		}
	}
	if w.err != nil {
		w.left = -1
	}
	return w.err != nil
}

// inParts rewrites a text part by part. cut moves the end of a part, at the start of a character,
// to where a part may end.
func inParts(s string, w *work, cut func(s string, end int) int, f func(string) string) string {
	if len(s) <= workPart {
		return f(s)
	}
	var b strings.Builder
	b.Grow(len(s))
	for len(s) > 0 {
		end := len(s)
		if end > workPart {
			for end = workPart; !utf8.RuneStart(s[end]); {
				end--
			}
			end = cut(s, end)
		}
		b.WriteString(f(s[:end]))
		if w.done(end) {
			break
		}
		s = s[end:]
	}
	return b.String()
}

// anywhere is the cut of what rewrites each character by itself.
func anywhere(_ string, end int) int { return end }

// replaceAll is strings.ReplaceAll.
func replaceAll(s, old, content string, w *work) string {
	if !strings.Contains(s, old) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for {
		i := strings.Index(s, old)
		if i < 0 || w.done(i+len(old)) {
			break
		}
		b.WriteString(s[:i])
		b.WriteString(content)
		s = s[i+len(old):]
	}
	b.WriteString(s)
	return b.String()
}
