package regex

// Alphabets: inText are the characters of UTF-8, inJSON those of JSON strings in their plain
// spelling. A text of whole characters of an alphabet is in the language of all texts, which takes
// in what else is said about it.
const (
	inJSON = uint8(1 << iota)
	inText
)

// whole are the alphabets of whose whole characters the texts of a node are made; none, if its
// shape does not say so.
func (b *Builder) whole(n *node) uint8 {
	switch n.kind {
	case kSet:
		w := inJSON | inText
		for c := range 256 {
			if !b.sets[n.set].Has(byte(c)) {
				continue
			}
			if c >= 0x80 {
				return 0
			}
			if c < 0x20 || c == '"' || c == '\\' {
				w = inText
			}
		}
		return w
	case kCat:
		return b.nodes[n.a].whole & b.nodes[n.b].whole
	case kRep:
		return b.nodes[n.a].whole
	case kMultiple:
		return inJSON | inText
	case kOr:
		w := inJSON | inText
		for _, a := range b.operands(n) {
			w &= b.nodes[a].whole
		}
		return w
	case kAnd:
		w := uint8(0)
		for _, a := range b.operands(n) {
			w |= b.nodes[a].whole
		}
		return w
	}
	return 0
}

// mark notes that x is made of whole characters where its shape does not say so.
func (b *Builder) mark(x Ex, whole uint8) Ex {
	b.nodes[x].whole |= whole
	return x
}

// all are the alphabets of which x matches all texts, as far as its shape says so.
func (b *Builder) all(x Ex) uint8 {
	n := &b.nodes[x]
	if n.kind == kOr {
		w := uint8(0)
		for _, a := range b.operands(n) {
			w |= b.all1(&b.nodes[a])
		}
		return w
	}
	return b.all1(n)
}

func (b *Builder) all1(n *node) uint8 {
	if n.kind != kRep || n.min > 0 || n.max >= 0 {
		return 0
	}
	switch n.a {
	case b.json:
		return inJSON
	case b.rune:
		return inText | inJSON
	}
	return 0
}
