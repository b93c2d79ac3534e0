package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// slowest keeps the tests that took longest, which is where a suite that has become slow is looked
// at first.
type slowest []timed

// timed is a test with the seconds that it took, those in which it waited for its turn left out.
type timed struct {
	name    string
	seconds float64
}

// Few are looked at, and what takes less than a second is no place to save time.
const slowestShown, slowSeconds = 10, 1

// add counts a whole test; its parts are counted in it.
func (s *slowest) add(e *event) {
	if e.Test == "" || strings.Contains(e.Test, "/") || e.Elapsed < slowSeconds {
		return
	}
	*s = append(*s, timed{e.Package + "  " + e.Test, e.Elapsed})
}

func (s slowest) print(out io.Writer) {
	if len(s) == 0 {
		return
	}
	slices.SortStableFunc(s, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	fmt.Fprintln(out, "\nlongest:")
	for _, t := range s[:min(len(s), slowestShown)] {
		fmt.Fprintf(out, "  %6.1fs  %s\n", t.seconds, t.name)
	}
}
