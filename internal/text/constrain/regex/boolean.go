package regex

import "slices"

// Or matches what any of the expressions matches; without any it is Empty.
func (b *Builder) Or(xs ...Ex) Ex {
	l := b.buf[:0]
	defer func() { b.buf = l[:0] }()
	var set ByteSet
	eps := false
	all := uint8(0)
	for _, x := range xs {
		all |= b.all(x)
	}
	contained := func(x Ex) bool { return b.nodes[x].whole&all != 0 && b.all(x) == 0 }
	one := func(x Ex) {
		n := &b.nodes[x]
		switch {
		case n.kind == kEmpty || contained(x):
		case n.kind == kSet:
			for i, w := range b.sets[n.set] {
				set[i] |= w
			}
		case n.kind == kEps:
			eps = true
		default:
			l = append(l, x)
		}
	}
	for _, x := range xs {
		if n := &b.nodes[x]; n.kind == kOr && !contained(x) {
			for _, a := range b.operands(n) {
				one(a)
			}
			continue
		}
		one(x)
	}
	// Alternatives of alternatives are looked at each time, though what comes of it may be known.
	if !b.spendN(len(l) / perUnit) {
		return Empty
	}
	if set != (ByteSet{}) {
		l = append(l, b.Set(set))
	}
	if eps && !slices.ContainsFunc(l, b.Nullable) {
		l = append(l, Eps)
	}
	l = b.absorb(l)
	slices.Sort(l)
	l = slices.Compact(l)
	switch {
	case len(l) == 0:
		return Empty
	case len(l) == 1:
		return l[0]
	}
	n := node{kind: kOr, plain: true}
	for _, x := range l {
		if b.isAll(x) {
			return x
		}
		n.nullable = n.nullable || b.nodes[x].nullable
		n.plain = n.plain && b.nodes[x].plain
	}
	return b.intern(n, l)
}

// isAll says whether x is written as every text at all.
func (b *Builder) isAll(x Ex) bool {
	n := &b.nodes[x]
	return n.kind == kNot && n.a == Empty
}

// And matches what all of the expressions match; without any it is every sequence of bytes.
func (b *Builder) And(xs ...Ex) Ex {
	var l []Ex
	for _, x := range xs {
		if n := &b.nodes[x]; n.kind == kAnd {
			l = append(l, b.operands(n)...)
		} else if !b.isAll(x) {
			l = append(l, x)
		}
	}
	if !b.spendN(len(l) / perUnit) {
		return Empty
	}
	slices.Sort(l)
	l = slices.Compact(l)
	whole := uint8(0)
	for _, x := range l {
		whole |= b.nodes[x].whole
	}
	if len(l) == 0 {
		return b.Not(Empty)
	}
	if l[0] == Empty {
		return Empty
	}
	n := node{kind: kAnd, nullable: true}
	set, sets := ByteSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}, 0
	for _, x := range l {
		n.nullable = n.nullable && b.nodes[x].nullable
		if o := &b.nodes[x]; o.kind == kSet {
			sets++
			for i, w := range b.sets[o.set] {
				set[i] &= w
			}
		}
		if o := &b.nodes[x]; o.kind == kNot {
			if _, found := slices.BinarySearch(l, o.a); found || b.all(o.a)&whole != 0 {
				return Empty
			}
		}
	}
	switch {
	case len(l) == 1:
		return l[0]
	case l[0] == Eps && n.nullable:
		return Eps
	case l[0] == Eps:
		return Empty
	case sets > 1:
		l = slices.DeleteFunc(l, func(x Ex) bool { return b.nodes[x].kind == kSet })
		return b.And(append(l, b.Set(set))...)
	}
	return b.intern(n, l)
}

// Not matches every sequence of bytes that x does not match, also those that are no UTF-8: And it
// with a language of texts.
func (b *Builder) Not(x Ex) Ex {
	if b.nodes[x].kind == kNot {
		return b.nodes[x].a
	}
	return b.intern(node{kind: kNot, a: x, nullable: !b.nodes[x].nullable}, nil)
}

// Minus matches what x matches and y does not.
func (b *Builder) Minus(x, y Ex) Ex { return b.And(x, b.Not(y)) }
