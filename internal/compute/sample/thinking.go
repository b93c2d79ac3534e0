package sample

// thinking follows the reasoning of one output, whose tokens are bounded (Params.ThinkingBudget).
type thinking struct {
	start, end []int32
	budget     int32
	// open says that the output reasons now, tokens how many tokens of it there are; matched is how
	// much of the start, or of the end, the last tokens are.
	open    bool
	tokens  int32
	matched int
}

func newThinking(p *Params) *thinking {
	if len(p.ThinkingEnd) == 0 {
		return nil
	}
	// The params' lists are reused for another request only after its state.
	return &thinking{start: p.ThinkingStart, end: p.ThinkingEnd, budget: p.ThinkingBudget,
		open: len(p.ThinkingStart) == 0}
}

// add goes on by a token of the output.
func (t *thinking) add(token int32) {
	tag := t.start
	if t.open {
		tag = t.end
		t.tokens++
	}
	switch {
	case len(tag) == 0: // it was open from the beginning, and is closed
	case token == tag[t.matched]:
		t.matched++
	case token == tag[0]:
		t.matched = 1
	default:
		t.matched = 0
	}
	if len(tag) > 0 && t.matched == len(tag) {
		t.open, t.tokens, t.matched = !t.open, 0, 0
	}
}

// forced is the only token that may come next, -1 for any.
func (t *thinking) forced() int32 {
	if !t.open || t.tokens < t.budget {
		return -1
	}
	return t.end[t.matched]
}
