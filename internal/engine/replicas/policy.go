package replicas

// candidate has the properties of an engine by which choose compares engines. Load and work count
// tokens, prompts' and outputs' alike.
type candidate struct {
	// load is what the engine has to compute for the sequences it was given that are not over;
	// sequences is their number.
	load, sequences int
	// work is what it would have to compute for this one: less than others where the beginning of
	// the prompt is cached.
	work int
	// down says that the engine has failed, leaving that it is about to be removed, held that it
	// does not compute now: its requests wait until its ranks are replaced, or move again.
	down, leaving, held bool
}

// choose returns the number of the engine for a request, -1 when all are down or leaving.
//
// It is the one where the request causes the least delay: it waits itself for what is there and for
// its own work, and so do those that are there for its work. So the engine with the longest cached
// beginning is preferred until its load exceeds that of another one by what the cache saves, once
// for the request and once for each that would wait there: busy engines keep to what they have
// cached, one that is idle takes a copy. Among equals the least load goes first, and among those
// the first from turn on. An engine that holds its requests is chosen only if all do.
func choose(engines []candidate, turn int) int {
	best := -1
	for k := range engines {
		i := (turn + k) % len(engines)
		c := &engines[i]
		if c.down || c.leaving {
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
	if d, least := c.delay(), b.delay(); d != least {
		return d < least
	}
	return c.load < b.load
}

// delay is how long the request would make itself and others wait, in tokens.
func (c *candidate) delay() int { return c.load + c.work*(1+c.sequences) }
