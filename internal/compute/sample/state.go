package sample

// State is what the logits processors of one request remember of its tokens. It keeps only what the
// request's Params need: a request without penalties, bad words and min_tokens costs a counter.
type State struct {
	outputs int32
	// seen counts tokens when a penalty is on, those of the prompt only for the repetition penalty.
	seen *tokenCounts
	// tail holds the last output tokens, as many as the longest bad word needs before its last
	// token.
	tail []int32
	// thinking is nil where reasoning has no bound.
	thinking *thinking
}

// NewState returns the state of a request with these prompt and output tokens (output is what was
// generated before a preemption, usually nothing). Neither slice is kept. p must be the Params
// later given to Sample.
func NewState(p *Params, prompt, output []int32) *State {
	s := &State{thinking: newThinking(p)}
	withPrompt := p.RepetitionPenalty != 1
	if withPrompt || p.PresencePenalty != 0 || p.FrequencyPenalty != 0 {
		// Room for what is known and a while of output; a long one grows it by doubling.
		room := len(output) + min(max(int(p.MaxTokens), 0), 512)
		if withPrompt {
			room += len(prompt)
		}
		s.seen = newTokenCounts(room)
	}
	if withPrompt {
		for _, t := range prompt {
			s.seen.add(t, 0)
		}
	}
	longest := 0
	for _, w := range p.BadWords {
		longest = max(longest, len(w)-1)
	}
	if longest > 0 {
		s.tail = make([]int32, 0, longest)
	}
	for _, t := range output {
		s.Append(t)
	}
	return s
}

// Append adds an output token.
func (s *State) Append(token int32) {
	s.outputs++
	if s.thinking != nil {
		s.thinking.add(token)
	}
	if s.seen != nil {
		s.seen.add(token, 1)
	}
	if cap(s.tail) == 0 {
		return
	}
	if len(s.tail) == cap(s.tail) {
		copy(s.tail, s.tail[1:])
		s.tail[len(s.tail)-1] = token
		return
	}
	s.tail = append(s.tail, token)
}

// Outputs returns the number of output tokens so far.
func (s *State) Outputs() int { return int(s.outputs) }

// tokenCounts counts tokens: a list of distinct ids in order of first sight, so that penalties
// touch only those, and an open-addressing index into it.
type tokenCounts struct {
	ids    []int32
	counts []int32
	index  []int32 // position in ids plus one; zero is empty; the length is a power of two
}

func newTokenCounts(room int) *tokenCounts {
	n := 16
	for n < 2*room {
		n *= 2
	}
	return &tokenCounts{ids: make([]int32, 0, n/2), counts: make([]int32, 0, n/2),
		index: make([]int32, n)}
}

// add raises a token's count by n; with n = 0 it is only known.
func (c *tokenCounts) add(token, n int32) {
	slot := c.find(token)
	if at := c.index[slot]; at != 0 {
		c.counts[at-1] += n
		return
	}
	if 2*(len(c.ids)+1) > len(c.index) {
		c.grow()
		slot = c.find(token)
	}
	c.ids = append(c.ids, token)
	c.counts = append(c.counts, n)
	c.index[slot] = int32(len(c.ids))
}

// find returns the slot of the token, or the empty one where it belongs.
func (c *tokenCounts) find(token int32) int {
	mask := len(c.index) - 1
	i := int(uint32(token)*0x9E3779B1>>7) & mask
	for at := c.index[i]; at != 0 && c.ids[at-1] != token; at = c.index[i] {
		i = (i + 1) & mask
	}
	return i
}

func (c *tokenCounts) grow() {
	c.index = make([]int32, 2*len(c.index))
	for i, id := range c.ids {
		c.index[c.find(id)] = int32(i + 1)
	}
}
