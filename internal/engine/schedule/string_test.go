package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// String describes the state for people and for the transcripts of the tests: running requests in
// order, then waiting ones in order, those that wait for keys and values from elsewhere or have
// fetched them, what is kept for others, then the plans in flight if there are several, then the
// blocks. A * marks a request that has run before; tokens 5+1 are five known ones and one that a
// plan in flight samples.
func (s *Scheduler) String() string {
	var b strings.Builder
	for _, r := range s.running {
		fmt.Fprintf(&b, "running %d: slot %d, prompt %d, tokens %s, computed %d, blocks %v\n",
			r.Key, r.slot, r.prompt, r.count(), r.computed, r.seq.Blocks())
	}
	order := slices.Concat(s.waiting.firsts, s.waiting.rest)
	slices.SortFunc(order, func(x, y *Request) int {
		if x.before(y) {
			return -1
		}
		return 1
	})
	for _, r := range order {
		mark := ""
		if r.ran {
			mark = "*"
		}
		fmt.Fprintf(&b, "waiting %d%s: prompt %d, tokens %s\n", r.Key, mark, r.prompt, r.count())
	}
	for _, r := range s.fetching {
		fmt.Fprintf(&b, "receiving %d: prompt %d, computed %d, blocks %v\n",
			r.Key, r.prompt, r.computed, r.seq.Blocks())
	}
	for _, r := range s.fetched {
		fmt.Fprintf(&b, "received %d: prompt %d, computed %d, blocks %v\n",
			r.Key, r.prompt, r.computed, r.seq.Blocks())
	}
	for _, key := range slices.Sorted(maps.Keys(s.pinned)) {
		fmt.Fprintf(&b, "kept %d: blocks %v\n", key, s.pinned[key].seq.Blocks())
	}
	for _, id := range slices.Sorted(maps.Keys(s.holds)) {
		fmt.Fprintf(&b, "storing %d: blocks %v\n", s.holds[id].request.Key,
			s.holds[id].seq.Blocks())
	}
	if s.owed > 1 {
		b.WriteString("in flight:")
		for i := range s.owed {
			fmt.Fprintf(&b, " %d", s.flights[(s.first+i)%len(s.flights)].plan)
		}
		b.WriteByte('\n')
	}
	c := s.cache.Stats()
	fmt.Fprintf(&b, "blocks: used %d, free %d, entries %d; queries %d, hits %d, evictions %d; "+
		"preemptions %d\n", c.Used, c.Free, c.Entries, c.Queries, c.Hits, c.Evictions,
		s.preemptions)
	return b.String()
}

// count is the number of tokens, and of those in flight.
func (r *Request) count() string {
	if r.pending == 0 {
		return fmt.Sprint(len(r.tokens))
	}
	return fmt.Sprintf("%d+%d", len(r.tokens), r.pending)
}
