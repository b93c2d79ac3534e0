package tokenizer

// Cut says how many tokens of a prompt there may be at most, and which stay.
type Cut struct {
	Most int
	// Right keeps the first tokens of a text; else the last stay.
	Right bool
}

// EncodePairUntil returns the token ids of two texts as one prompt, as the post-processor puts two
// together, with its special tokens or without. Of texts that are too long the longer one is cut,
// transformers' longest_first; cut is nil for texts that stay whole. There are no ids when not even
// the special tokens have room. second is where the second text begins. stop is that of
// EncodeUntil.
func (t *Tokenizer) EncodePairUntil(stop func() error, a, b string, addSpecial bool, cut *Cut) (
	ids []int32, second int, err error) {
	w := work{stop: stop}
	texts := [][]int32{
		t.appendText(make([]int32, 0, len(a)/4+8), t.valid(a), &w),
		t.appendText(make([]int32, 0, len(b)/4+8), t.valid(b), &w),
	}
	if w.err != nil {
		return nil, 0, w.err
	}
	if cut != nil {
		room := cut.Most
		for _, id := range t.template.pair {
			if id >= 0 && addSpecial {
				room--
			}
		}
		if room < 0 {
			return nil, 0, nil
		}
		n0, n1 := longestFirst(len(texts[0]), len(texts[1]), room)
		texts[0], texts[1] = cut.Truncate(texts[0], n0), cut.Truncate(texts[1], n1)
	}
	prompt := make([]int32, 0, len(t.template.pair)+len(texts[0])+len(texts[1]))
	for _, id := range t.template.pair {
		switch {
		case id < 0:
			if id != markA {
				second = len(prompt)
			}
			prompt = append(prompt, texts[markA-id]...)
		case addSpecial:
			prompt = append(prompt, id)
		}
	}
	return prompt, second, nil
}

// Truncate returns the n tokens of a text that the cut leaves: the first ones for a cut on the
// right, else the last ones.
func (c *Cut) Truncate(ids []int32, n int) []int32 {
	if c.Right {
		return ids[:n]
	}
	return ids[len(ids)-n:]
}

// longestFirst is how many tokens stay of two texts of a and b tokens in a room for so many: the
// longer one loses tokens until it is as short as the other, then both do.
func longestFirst(a, b, room int) (int, int) {
	if a+b <= room {
		return a, b
	}
	if a > b {
		b, a = longestFirst(b, a, room)
		return a, b
	}
	if 2*a <= room {
		return a, room - a
	}
	return room / 2, room/2 + room%2
}
