package regex

import "math/big"

// MaxModulus bounds what Multiple counts to: as many expressions may come of one.
const MaxModulus = 100_000

// Multiple matches the multiples of modulus×10^-places among decimals: digits, and then, if there
// are any, a point and more digits. (Both runs may be empty: And it with the spelling of numbers.)
// It is Empty, and false, if modulus is no whole number from 1 to MaxModulus after factors of 10
// are taken out, or places is no count up to 64.
func (b *Builder) Multiple(modulus *big.Int, places int) (Ex, bool) {
	const mostPlaces = 64
	m, ten := new(big.Int).Set(modulus), big.NewInt(10)
	for rest := new(big.Int); m.Sign() > 0 && places > 0; places-- {
		q, r := new(big.Int).QuoRem(m, ten, rest)
		if r.Sign() != 0 {
			break
		}
		m = q
	}
	if m.Sign() <= 0 || m.Cmp(big.NewInt(MaxModulus)) > 0 || places > mostPlaces || places < 0 {
		return Empty, false
	}
	// The bytes that its derivatives tell apart are known from now on.
	for c := byte('0'); c <= '9'; c++ {
		b.Bytes(c, c)
	}
	b.Bytes('.', '.')
	return b.multiple(int32(m.Int64()), 0, int32(places), 0), true
}

// multiple is the node of a run of digits: rest is what has been read, in units of 10^-k of the
// place reached, modulo m; places are still to come behind the point; point says that it was read.
func (b *Builder) multiple(m, rest, places, point int32) Ex {
	short := int64(rest) // of a multiple, if zeros follow
	span := int64(1)     // of what the places can add
	for range places {
		short = short * 10 % int64(m)
		span = min(span*10, int64(m))
	}
	if point == 1 && (int64(m)-short)%int64(m) >= span {
		return Empty
	}
	return b.intern(node{kind: kMultiple, nullable: short == 0, plain: true, a: Ex(m), b: Ex(rest),
		min: places, max: point}, nil)
}

// multipleLeast is how many more digits a run of them, which has not come to its point and is no
// multiple of m, needs at least to be one: so many that what they add to rest, the remainder so
// far, may be what is missing.
func multipleLeast(m, rest int64, places int32) int32 {
	span := int64(1)
	for range places {
		rest, span = rest*10%m, min(span*10, m)
	}
	digits := int32(0)
	for ; (m-rest)%m >= span; digits++ {
		rest, span = rest*10%m, min(span*10, m)
	}
	return max(digits, 1)
}

// multipleBy is the derivative of a kMultiple.
func (b *Builder) multipleBy(n *node, c byte) Ex {
	m, rest := int32(n.a), int32(n.b)
	switch {
	case c == '.' && n.max == 0:
		return b.multiple(m, rest, n.min, 1)
	case c < '0' || c > '9':
		return Empty
	case n.max == 1 && n.min == 0:
		if c != '0' {
			return Empty
		}
		return b.multiple(m, rest, 0, 1)
	}
	rest = int32((int64(rest)*10 + int64(c-'0')) % int64(m))
	return b.multiple(m, rest, n.min-n.max, n.max)
}
