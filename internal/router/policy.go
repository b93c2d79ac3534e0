package router

// candidate is what is known of an engine when one is chosen for a request. Both figures count
// tokens, prompts' and outputs' alike.
type candidate struct {
	// load is what the engine has yet to compute for the requests it was given.
	load int
	// work is what it would have to compute for this one: less than others where the beginning of
	// the prompt is cached.
	work int
	// down says that the engine has failed, held that it does not compute now: what it is given waits
	// until its ranks have been replaced, or move again.
	down, held bool
}

// choose is the number of the engine that a request is given to, -1 when all are down.
//
// It is the one that is done with the request first if all are equally fast: the least sum of load
// and work. So the engine with the longest cached beginning is preferred for as long as its load
// exceeds that of the least loaded one by no more than the tokens that the cache saves: a long
// common beginning is worth waiting for, the few tokens that all prompts of a chat template share
// are not. Among equal sums the least load goes first, and among those the first from turn on. An
// engine that holds its requests is chosen only if all do.
func choose(engines []candidate, turn int) int {
	best := -1
	for k := range engines {
		i := (turn + k) % len(engines)
		c := &engines[i]
		if c.down {
			continue
		}
		if best < 0 || c.before(&engines[best]) {
			best = i
		}
	}
	return best
}

// before tells whether an engine is better than one that is found before it in turn.
func (c *candidate) before(b *candidate) bool {
	if c.held != b.held {
		return b.held
	}
	if sum, least := c.load+c.work, b.load+b.work; sum != least {
		return sum < least
	}
	return c.load < b.load
}
