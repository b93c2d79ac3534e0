package engine

import "strings"

// stopFinder releases text that can no longer become part of a stop string.
type stopFinder struct {
	stops   []string
	include bool
	// held is text that may be the beginning of a stop string.
	held string
}

// push adds text. It returns what is certain and, when a stop string was found, which: then out
// ends before it (or after it, when it is included) and nothing is held.
func (f *stopFinder) push(text string) (out, stop string) {
	if len(f.stops) == 0 {
		return text, ""
	}
	if f.held != "" {
		text = f.held + text
		f.held = ""
	}
	at := -1
	for _, s := range f.stops {
		if i := strings.Index(text, s); i >= 0 && (at < 0 || i < at) {
			at, stop = i, s
		}
	}
	if at >= 0 {
		if f.include {
			at += len(stop)
		}
		return text[:at], stop
	}
	n := f.pendingStop(text)
	f.held = text[len(text)-n:]
	return text[:len(text)-n], ""
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
