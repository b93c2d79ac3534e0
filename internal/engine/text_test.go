package engine

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// TestStopFinder feeds text in random pieces and compares with a search of the whole. The first
// ones may be those of min_tokens, in which none ends.
func TestStopFinder(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	letters := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "ab"[rng.IntN(2)]
		}
		return string(b)
	}
	for range 20000 {
		text := letters(rng.IntN(12))
		f := stopFinder{include: rng.IntN(2) == 0}
		for range rng.IntN(3) {
			f.stops = append(f.stops, letters(1+rng.IntN(4)))
		}
		passed := max(0, rng.IntN(2*len(text)+1)-len(text))
		want, wantStop := wholeSearch(text, f.stops, f.include, passed)
		var got strings.Builder
		stopped := ""
		for rest := text; rest != "" && stopped == ""; {
			n := 1 + rng.IntN(len(rest))
			var out, stop string
			if left := passed - (len(text) - len(rest)); left > 0 {
				n = min(n, left)
				out = f.pass(rest[:n])
			} else {
				out, stop = f.push(rest[:n])
			}
			got.WriteString(out)
			rest, stopped = rest[n:], stop
			// What was given out must not be the beginning of a stop string that may still come.
			if stop == "" && len(f.stops) > 0 && f.pendingStop(got.String()+f.held) != len(f.held) {
				t.Fatalf("%q in pieces, stops %q: %q given out, %q held", text, f.stops,
					got.String(), f.held)
			}
		}
		if stopped == "" {
			got.WriteString(f.flush())
		}
		// Pieces longer than one token may hold several stop strings; the earliest wins either way.
		if (stopped == "") != (wantStop == "") || (stopped == wantStop && got.String() != want) {
			t.Fatalf("%q, stops %q, include %v: %q stopped by %q, not %q by %q", text, f.stops,
				f.include, got.String(), stopped, want, wantStop)
		}
	}
}

// wholeSearch finds the first of the stop strings that end behind the first passed bytes.
func wholeSearch(text string, stops []string, include bool, passed int) (string, string) {
	at, by := -1, ""
	for _, s := range stops {
		from := max(0, passed-len(s)+1)
		if from > len(text) {
			continue
		}
		if i := strings.Index(text[from:], s); i >= 0 && (at < 0 || from+i < at) {
			at, by = from+i, s
		}
	}
	if at < 0 {
		return text, ""
	}
	if include {
		at += len(by)
	}
	return text[:at], by
}
