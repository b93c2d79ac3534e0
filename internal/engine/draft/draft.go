// Package draft guesses what tokens come next, so that one step can verify several (speculative
// decoding). A guess changes no result: at worst it is computed in vain. The package is pure, and
// the same texts give the same guesses.
package draft

import (
	"cmp"

	"github.com/eagleray/eagleray/internal/link/step"
)

// Config says how tokens are guessed. The names in brackets are vLLM's.
type Config struct {
	// Tokens is how many tokens are guessed at most at a time [num_speculative_tokens], 0 for none.
	Tokens int
	// Model says that ranks guess by a model, as many tokens as plans ask for, of texts of MaxLen
	// tokens at most; Head that it is a head, which has to see what the model computes of a text to
	// guess what comes next. All that follows but Rows is for guesses from texts.
	Model, Head bool
	MaxLen      int
	// Min and Max are how many tokens of the text's end are looked up, at least and at most
	// [prompt_lookup_min, prompt_lookup_max; suffix_decoding_max_tree_depth].
	Min, Max int
	// Votes is of how many places the next tokens count, each going by those that most of the
	// places have that agreed so far. One is the last place of prompt lookup.
	Votes int
	// Requests is how many outputs of others are looked at too
	// [suffix_decoding_max_cached_requests].
	Requests int
	// Factor, unless it is 0, bounds a guess by so many times the tokens that were found
	// [suffix_decoding_max_spec_factor].
	Factor float64
	// MinProb ends a guess before the token with which it is less probable, by the votes
	// [suffix_decoding_min_token_prob].
	MinProb float64
	// Rows is how many rows a step may have and yet verify guesses: as many as take little longer
	// than one. With more requests than that none is guessed.
	Rows int
}

// grams are how many tokens are looked up at once: several numbers, where there are votes, because
// of the places behind one token only the last are compared.
func (c *Config) grams() []int {
	grams := []int{c.Min}
	for n := 4 * c.Min; c.Votes > 1 && n <= min(c.Max, 16); n *= 4 {
		grams = append([]int{n}, grams...)
	}
	return grams
}

// Drafter guesses for one request. The zero value has not begun.
type Drafter struct {
	// pace is that of guesses, following that of what others have guessed; last is that of the last
	// one.
	pace, following pace
	last            *pace
	// tried says that a model was asked for a guess, judged that one was verified.
	tried, judged bool

	index *index
	found found
	votes []match
}

// Draft appends to dst, which is empty, a guess of at most n tokens that come after known ones of
// the request, and others that are not known yet. The history may be nil.
func (d *Drafter) Draft(dst, tokens []int32, unknown, n int, c *Config, h *History) []int32 {
	if n = min(n, d.pace.allow(c.Tokens)); n < 1 {
		return dst
	}
	d.last = &d.pace
	if d.index == nil {
		x := newIndex(c.grams())
		d.index = &x
	}
	d.index.learn(tokens)
	d.find(tokens, c, h)
	if c.Factor > 0 {
		n = min(n, int(c.Factor*float64(d.found.length))-unknown)
	}
	return d.vote(dst, unknown, n, c.MinProb)
}

// find finds the places with the most tokens of the text's end before them.
func (d *Drafter) find(tokens []int32, c *Config, h *History) {
	d.found.list, d.found.length = d.found.list[:0], 0
	for i := range d.index.levels {
		d.index.find(&d.found, i, tokens, tokens, c, true)
		if h != nil {
			for j := range h.parts {
				h.parts[j].index.find(&d.found, i, h.parts[j].text, tokens, c, false)
			}
		}
		if d.found.length > 0 {
			return
		}
	}
}

// vote appends the tokens that most of the places found have in common, but for those that come
// first and are unknown.
func (d *Drafter) vote(dst []int32, unknown, n int, least float64) []int32 {
	left, probability := append(d.votes[:0], d.found.list...), 1.0
	d.votes = left
	for i := range unknown + max(n, 0) {
		best, votes := int32(end), 0
		for j := range left {
			t, same := left[j].next(i, dst), 0
			for k := range left {
				if left[k].next(i, dst) == t {
					same++
				}
			}
			if t != end && same > votes {
				best, votes = t, same
			}
		}
		if best == end {
			break
		}
		if probability *= float64(votes) / float64(len(left)); probability < least {
			break
		}
		agree := left[:0]
		for j := range left {
			if left[j].next(i, dst) == best {
				agree = append(agree, left[j])
			}
		}
		left = agree
		dst = append(dst, best)
	}
	if len(dst) <= unknown {
		return dst[:0]
	}
	return dst[:copy(dst, dst[unknown:])]
}

// Verified tells of a guess of so many tokens how many of them were right.
func (d *Drafter) Verified(drafted, accepted int, t *Trials) {
	d.last.verified(drafted, accepted)
	if d.last == &d.pace && !d.judged {
		d.judged = true
		t.pace.verified(drafted, accepted)
	}
}

// Trials are the first guesses of a model about each request. While they are wrong, few requests
// have one: a model that knows nothing of what is asked costs next to nothing then. Before one it
// would compute the request's whole prompt. While they are right, the first ones grow too.
type Trials struct{ pace pace }

// NewTrials returns trials of which none has been.
func NewTrials() Trials { return Trials{pace{longest: 1023}} }

// Try says whether a model is to guess about the request, once and for all when it does. Until the
// first guess has been verified it is taken to be wrong, if others were.
func (d *Drafter) Try(t *Trials) bool {
	if d.tried || t.pace.allow(step.MaxDrafts) == 0 {
		return d.tried
	}
	t.pace.wait = t.pace.pause
	d.tried = true
	d.pace = pace{begun: true, size: t.pace.size, pause: min(t.pace.pause, longestPause)}
	return true
}

// Ask says how many tokens, at most so many, a model is to guess of a request that it tries.
func (d *Drafter) Ask(most int) int { return d.pace.allow(most) }

// Watches says whether a head is to see what the model computes now of a request that it tries: a
// guess will be asked for when so many tokens more are known. In a longer pause what it knew of the
// text is given up.
func (d *Drafter) Watches(near int) bool { return d.pace.wait < near }

// FollowModel appends to dst, which is empty, at most n tokens that a model has guessed.
func (d *Drafter) FollowModel(dst, guess []int32, n int) []int32 {
	if n = min(n, len(guess)); n < 1 || d.pace.wait > 0 {
		return dst
	}
	d.last = &d.pace
	return append(dst, guess[:n]...)
}

// Follow is Draft of what others have guessed.
func (d *Drafter) Follow(dst, guess []int32, n int) []int32 {
	if len(guess) == 0 || n < 1 {
		return dst
	}
	if n = min(n, len(guess), d.following.allow(step.MaxDrafts)); n > 0 {
		d.last = &d.following
	}
	return append(dst, guess[:n]...)
}

// pace adapts how much is guessed to how good guesses were. A guess that is right as a whole
// doubles the next one, another cuts it to a little more than what was right of it. While nothing
// is right pauses of growing length come between guesses.
type pace struct {
	begun bool
	size  int // of the next guess
	pause int // in tokens, after a guess that is wrong
	wait  int // tokens until the next guess
	// longest bounds pause; 0 is longestPause.
	longest int
}

const (
	firstGuess = 2
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
		p.size, p.pause, p.wait = min(max(p.size, 2*drafted), step.MaxDrafts), 0, 0
	case accepted > 0:
		p.size, p.pause, p.wait = accepted+1, p.pause/2, 0
	default:
		p.size, p.pause = max(1, p.size/2), min(4*p.pause+1, cmp.Or(p.longest, longestPause))
		p.wait = p.pause
	}
}
