// Package draft guesses what tokens come next, so that one step can verify several (speculative
// decoding). A guess changes no result: at worst it is computed in vain. The package is pure, and
// the same texts give the same guesses.
package draft

// Most is how many tokens may be guessed at a time.
const Most = 32

// Config says how tokens are guessed. The names in brackets are vLLM's.
type Config struct {
	// Tokens is how many tokens are guessed at most at a time [num_speculative_tokens], 0 for none.
	Tokens int
	// Min and Max are how many tokens of the text's end are looked up in it, at least and at most
	// [prompt_lookup_min, prompt_lookup_max].
	Min, Max int
	// Rows is how many rows a step may have and yet verify guesses: as many as take little longer
	// than one. With more requests than that none is guessed.
	Rows int
}

// Drafter guesses for one request. The zero value has not begun.
type Drafter struct {
	pace   pace
	lookup *lookup
}

// Draft appends to dst, which is empty, a guess of at most n tokens that come after known ones of
// the request, and others that are not known yet.
func (d *Drafter) Draft(dst, tokens []int32, unknown, n int, c *Config) []int32 {
	if n = min(n, d.pace.allow(c.Tokens)); n < 1 {
		return dst
	}
	if d.lookup == nil {
		d.lookup = newLookup(c.Min, c.Max)
	}
	return d.lookup.draft(dst, tokens, unknown, n)
}

// Verified tells of a guess of so many tokens how many of them were right.
func (d *Drafter) Verified(drafted, accepted int) { d.pace.verified(drafted, accepted) }

// pace adapts how much is guessed to how good guesses were. A guess that is right as a whole
// doubles the next one, another cuts it to a little more than what was right of it. While nothing
// is right pauses of growing length come between guesses.
type pace struct {
	begun bool
	size  int // of the next guess
	pause int // in tokens, after a guess that is wrong
	wait  int // tokens until the next guess
}

const (
	firstGuess = 4
	// longestPause bounds what guesses in vain cost: one step in so many.
	longestPause = 127
)

// allow says how many tokens are guessed now, of most.
func (p *pace) allow(most int) int {
	if !p.begun {
		p.begun, p.size = true, min(firstGuess, most)
	}
	if p.wait > 0 {
		p.wait--
		return 0
	}
	return min(p.size, most)
}

func (p *pace) verified(drafted, accepted int) {
	switch {
	case accepted == drafted:
		p.size, p.pause = min(max(p.size, 2*drafted), Most), 0
	case accepted > 0:
		p.size, p.pause = accepted+1, p.pause/2
	default:
		p.size, p.pause = max(1, p.size/2), min(2*p.pause+1, longestPause)
		p.wait = p.pause
	}
}
