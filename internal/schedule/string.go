package schedule

import (
	"fmt"
	"slices"
	"strings"
)

// String describes the state for people and for the transcripts of the tests: running requests in order, then
// waiting ones in order, then the blocks. A * marks a request that has run before.
func (s *Scheduler) String() string {
	var b strings.Builder
	for _, r := range s.running {
		fmt.Fprintf(&b, "running %d: slot %d, prompt %d, tokens %d, computed %d, blocks %v\n",
			r.key, r.slot, r.prompt, len(r.tokens), r.computed, r.seq.Blocks())
	}
	order := slices.Clone(s.waiting)
	slices.SortFunc(order, func(x, y *request) int {
		if x.before(y) {
			return -1
		}
		return 1
	})
	for _, r := range order {
		mark := ""
		if r.cached >= 0 {
			mark = "*"
		}
		fmt.Fprintf(&b, "waiting %d%s: prompt %d, tokens %d\n", r.key, mark, r.prompt, len(r.tokens))
	}
	c := s.cache.Stats()
	fmt.Fprintf(&b, "blocks: used %d, free %d, entries %d; queries %d, hits %d, evictions %d; preemptions %d\n",
		c.Used, c.Free, c.Entries, c.Queries, c.Hits, c.Evictions, s.preemptions)
	return b.String()
}
