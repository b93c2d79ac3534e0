package engine

import "strings"

// stopFinder releases text that can no longer become part of a stop string.
type stopFinder struct {
	stops   []string
	include bool
	// held is text that may be the beginning of a stop string.
	held string
}

// push adds text. It returns what is certain and, when a stop string was found that ends in text,
// which: then out ends before it (or after it, when it is included) and nothing is held.
func (f *stopFinder) push(text string) (out, stop string) {
	seen, whole := len(f.held), f.held+text
	at := -1
	for _, s := range f.stops {
		from := max(0, seen-len(s)+1)
		if i := strings.Index(whole[from:], s); i >= 0 && (at < 0 || from+i < at) {
			at, stop = from+i, s
		}
	}
	if at < 0 {
		return f.split(whole), ""
	}
	f.held = ""
	if f.include {
		at += len(stop)
	}
	return whole[:at], stop
}

// pass adds text in which no stop string may end, and returns what is certain.
func (f *stopFinder) pass(text string) string { return f.split(f.held + text) }

// split keeps the end of text that may begin a stop string, and returns the rest.
func (f *stopFinder) split(text string) string {
	n := f.pendingStop(text)
	f.held = text[len(text)-n:]
	return text[:len(text)-n]
}

// pendingStop is the length of the longest end of text that begins a stop string.
func (f *stopFinder) pendingStop(text string) int {
	longest := 0
	for _, s := range f.stops {
		for n := min(len(s)-1, len(text)); n > longest; n-- {
			if text[len(text)-n:] == s[:n] {
				longest = n
				break
			}
		}
	}
	return longest
}

// flush returns what was held: the output ended without completing a stop string.
func (f *stopFinder) flush() string {
	held := f.held
	f.held = ""
	return held
}
