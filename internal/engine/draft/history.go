package draft

// History is outputs of requests that have ended. It keeps the last ones, in two parts: when one is
// full, the other is forgotten.
type History struct {
	requests, tokens int // of a part, at most
	parts            [2]part
}

type part struct {
	index    index
	text     []int32
	requests int
}

// historyTokens is how many tokens of outputs a History keeps, at most: with what finds them they
// take 32 MiB.
const historyTokens = 1 << 19

// NewHistory is one that keeps no more outputs than a configuration says.
func NewHistory(c *Config) *History {
	h := &History{requests: (c.Requests + 1) / 2, tokens: historyTokens / 2}
	for i := range h.parts {
		h.parts[i].index = newIndex(c.grams())
	}
	return h
}

// Add adds the output of a request.
func (h *History) Add(output []int32) {
	if h.requests == 0 {
		return
	}
	output = output[max(0, len(output)-h.tokens+1):]
	p := &h.parts[0]
	if p.requests >= h.requests || len(p.text)+len(output)+1 > h.tokens {
		h.parts[0], h.parts[1] = h.parts[1], h.parts[0]
		p.index.clear()
		p.text, p.requests = p.text[:0], 0
	}
	p.text = append(append(p.text, output...), end)
	p.requests++
	p.index.learn(p.text)
}

func (x *index) clear() {
	for i := range x.levels {
		l := &x.levels[i]
		clear(l.heads)
		l.before = l.before[:0]
	}
}
