package tokenizer

// Cut says how many tokens of a prompt there may be at most, and which stay.
type Cut struct {
	Most int
	// Right keeps the first tokens of a text; else the last stay.
	Right bool
}

// Encoding is a prompt of one text or two.
type Encoding struct {
	// IDs are its tokens; none when not even the special tokens have room.
	IDs []int32
	// Second is where the second text begins.
	Second int
	// Short says that a text was cut.
	Short bool
}

// EncodeTexts makes one prompt of a text or of two, as the post-processor puts them together, with
// its special tokens or without. As in transformers a cut leaves the special tokens and takes from
// the texts, of two from the longer one (longest_first); it is nil for texts that stay whole. stop
// is that of EncodeUntil.
func (t *Tokenizer) EncodeTexts(stop func() error, texts []string, addSpecial bool, cut *Cut) (
	e Encoding, err error) {
	w := work{stop: stop}
	var parts [2][]int32
	for i, text := range texts {
		parts[i] = t.appendText(make([]int32, 0, len(text)/4+8), t.valid(text), &w)
	}
	template := t.template.single
	if len(texts) == 2 {
		template = t.template.pair
	}
	if cut != nil && w.err == nil {
		room := cut.Most
		for _, id := range template {
			if id >= 0 && addSpecial {
				room--
			}
		}
		if room < 0 {
			return Encoding{Short: true}, nil
		}
		n0, n1 := longestFirst(len(parts[0]), len(parts[1]), room)
		e.Short = n0+n1 < len(parts[0])+len(parts[1])
		parts[0], parts[1] = cut.Truncate(parts[0], n0), cut.Truncate(parts[1], n1)
	}
	e.IDs = make([]int32, 0, len(template)+len(parts[0])+len(parts[1]))
	for _, id := range template {
		switch {
		case id < 0:
			if id != markA {
				e.Second = len(e.IDs)
			}
			e.IDs = append(e.IDs, parts[markA-id]...)
		case addSpecial:
			e.IDs = append(e.IDs, id)
		}
	}
	return e, w.err
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
