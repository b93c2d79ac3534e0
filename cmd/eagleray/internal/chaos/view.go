package chaos

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
)

// Event is something that a client received.
type Event struct {
	// Seconds is when, from the beginning of the run; Request is which one of the client's requests
	// it answers.
	Seconds float64 `json:"seconds"`
	Request int     `json:"request"`
	// Tokens is how many it brought, Total how many of the request have come with it.
	Tokens int `json:"tokens"`
	Total  int `json:"total"`
}

// View writes down what one client received around each fault: some events before it, and some from
// the first one after it that was kept waiting.
func View(r *Report) []byte {
	const around = 4
	shown := make([]bool, len(r.Client))
	first := func(from float64) int {
		i, _ := slices.BinarySearchFunc(r.Client, from, func(e Event, from float64) int {
			return cmp.Compare(e.Seconds, from)
		})
		return i
	}
	for n, m := range r.Marks {
		at, end := first(m.Seconds), len(r.Client)
		if n+1 < len(r.Marks) {
			end = first(r.Marks[n+1].Seconds)
		}
		// What was on its way still comes.
		longest := at
		for i := at; i < end; i++ {
			if gap(r.Client, i) > gap(r.Client, longest) {
				longest = i
			}
		}
		for i := max(0, at-around); i < min(len(r.Client), longest+around); i++ {
			shown[i] = true
		}
	}
	var b bytes.Buffer
	b.WriteString("      s  after ms  request  token\n")
	next, skipped := 0, 0
	for i, e := range r.Client {
		for next < len(r.Marks) && r.Marks[next].Seconds <= e.Seconds {
			fmt.Fprintf(&b, "%7.3f  ----- fault: %s\n", r.Marks[next].Seconds, r.Marks[next].Name)
			next++
		}
		if !shown[i] {
			skipped++
			continue
		}
		if skipped > 0 {
			fmt.Fprintf(&b, "         … %d events\n", skipped)
			skipped = 0
		}
		fmt.Fprintf(&b, "%7.3f  %8.1f  %7d  %5d\n",
			e.Seconds, 1000*gap(r.Client, i), e.Request, e.Total)
	}
	return b.Bytes()
}

// gap is the time from the event before one, in seconds.
func gap(events []Event, i int) float64 {
	if i == 0 || i >= len(events) {
		return 0
	}
	return events[i].Seconds - events[i-1].Seconds
}
