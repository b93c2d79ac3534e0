package schema

import (
	"math/big"
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// bound is one end of an interval of numbers.
type bound struct {
	at   decimal
	open bool // the end itself is left out
}

// wholeness is what a numberSet asks of the fraction.
type wholeness uint8

const (
	anyNumber wholeness = iota
	integers
	fractions
)

// literal is one number of a finite set, with the spelling of the schema.
type literal struct {
	at   decimal
	text string
}

// numberSet is a set of numbers: an intersection of conditions.
type numberSet struct {
	lo, hi   *bound
	whole    wholeness
	multiple []decimal
	// not are numbers whose multiples are left out, except numbers that are.
	not, except []decimal
	// among, if listed, are the only numbers.
	among  []literal
	listed bool
	held   bool // its memory is counted
}

func (s *numberSet) has(d decimal) bool {
	if s.lo != nil {
		if c := d.cmp(s.lo.at); c < 0 || c == 0 && s.lo.open {
			return false
		}
	}
	if s.hi != nil {
		if c := d.cmp(s.hi.at); c > 0 || c == 0 && s.hi.open {
			return false
		}
	}
	is := func(e decimal) bool { return d.cmp(e) == 0 }
	switch {
	case s.whole == integers && !d.integer(), s.whole == fractions && d.integer(),
		!all(s.multiple, d.multipleOf), slices.ContainsFunc(s.not, d.multipleOf),
		slices.ContainsFunc(s.except, is):
		return false
	}
	return !s.listed || slices.ContainsFunc(s.among, func(l literal) bool { return is(l.at) })
}

func all[T any](list []T, ok func(T) bool) bool {
	return !slices.ContainsFunc(list, func(x T) bool { return !ok(x) })
}

// tighter returns the bound that leaves less; sign is 1 for lower ends, -1 for upper ones.
func tighter(a, b *bound, sign int) *bound {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	if c := sign * a.at.cmp(b.at); c > 0 || c == 0 && a.open {
		return a
	}
	return b
}

// work is how many operations it takes to intersect two sets, about.
func (s *numberSet) work(t *numberSet) int {
	n := len(s.among) + len(t.among)
	return n*(1+4*(len(s.multiple)+len(t.multiple)+len(s.not)+len(t.not))) +
		(len(s.except)+len(t.except))/8
}

// and intersects two sets.
func (s *numberSet) and(t *numberSet) *numberSet {
	r := &numberSet{lo: tighter(s.lo, t.lo, 1), hi: tighter(s.hi, t.hi, -1),
		whole:    max(s.whole, t.whole),
		multiple: slices.Concat(s.multiple, t.multiple), not: slices.Concat(s.not, t.not),
		except: slices.Concat(s.except, t.except)}
	if s.whole != anyNumber && t.whole != anyNumber && s.whole != t.whole {
		r.listed = true // of no number
		return r
	}
	switch {
	case s.listed:
		r.among, r.listed = slices.Clone(s.among), true
		if t.listed {
			in := make(map[decimal]bool, len(t.among))
			for _, l := range t.among {
				in[l.at] = true
			}
			r.among = slices.DeleteFunc(r.among, func(l literal) bool { return !in[l.at] })
		}
	case t.listed:
		r.among, r.listed = slices.Clone(t.among), true
	}
	return r.tidy()
}

// fewIntegers is up to how many integers of an interval are listed.
const fewIntegers = 64

// tidy lists the members of a set that has few of them.
func (s *numberSet) tidy() *numberSet {
	if s.listed {
		t := *s
		t.listed, t.except = false, nil
		except := make(map[decimal]bool, len(s.except))
		for _, d := range s.except {
			except[d] = true
		}
		list := slices.DeleteFunc(s.among, func(l literal) bool {
			return except[l.at] || !t.has(l.at)
		})
		return &numberSet{among: list, listed: true, whole: s.whole}
	}
	if s.lo == nil || s.hi == nil {
		return s
	}
	if c := s.lo.at.cmp(s.hi.at); c >= 0 {
		r := &numberSet{listed: true, whole: s.whole}
		if c == 0 && s.has(s.lo.at) {
			r.among = []literal{{s.lo.at, s.lo.at.String()}}
		}
		return r
	}
	if s.whole != integers {
		return s
	}
	lo, hi := s.lo.at.ceil(), s.hi.at.floor()
	if new(big.Int).Sub(hi, lo).Cmp(big.NewInt(fewIntegers)) > 0 {
		return s
	}
	r := &numberSet{listed: true, whole: s.whole}
	for one := big.NewInt(1); lo.Cmp(hi) <= 0; lo.Add(lo, one) {
		if d := whole(lo); s.has(d) {
			r.among = append(r.among, literal{d, d.String()})
		}
	}
	return r
}

// empty says that the set surely has no number.
func (s *numberSet) empty() bool { return s.listed && len(s.among) == 0 }

// complement lists sets whose union is what s leaves out.
func (s *numberSet) complement() []*numberSet {
	var out []*numberSet
	if s.listed {
		r := &numberSet{}
		for _, l := range s.among {
			r.except = append(r.except, l.at)
		}
		return append(out, r)
	}
	if s.lo != nil {
		out = append(out, &numberSet{hi: &bound{s.lo.at, !s.lo.open}})
	}
	if s.hi != nil {
		out = append(out, &numberSet{lo: &bound{s.hi.at, !s.hi.open}})
	}
	switch s.whole {
	case integers:
		out = append(out, &numberSet{whole: fractions})
	case fractions:
		out = append(out, &numberSet{whole: integers})
	}
	for _, m := range s.multiple {
		out = append(out, &numberSet{not: []decimal{m}})
	}
	for _, m := range s.not {
		out = append(out, &numberSet{multiple: []decimal{m}})
	}
	for _, d := range s.except {
		out = append(out, &numberSet{among: []literal{{d, d.String()}}, listed: true})
	}
	return out
}

// Digits of numbers are bounded, so that a model in a loop of digits comes to an end.
const (
	mostDigits   = 64
	mostExponent = 4
)

// numbers has the expressions of numbers' spellings.
type numbers struct {
	b                   *regex.Builder
	digit, nonzero, dot regex.Ex
	whole, fraction     regex.Ex
	exponent            regex.Ex
	// uncounted is set to a number whose multiples are too many to tell apart.
	uncounted *decimal
}

func (n *numbers) multiples(m decimal) regex.Ex {
	x, ok := n.b.Multiple(m.scaled(m.places()), m.places())
	if !ok {
		n.uncounted = &m
	}
	return x
}

func newNumbers(b *regex.Builder) numbers {
	n := numbers{b: b, digit: b.Bytes('0', '9'), nonzero: b.Bytes('1', '9'), dot: b.Lit(".")}
	n.whole = b.Or(b.Lit("0"), b.Cat(n.nonzero, b.Rep(n.digit, 0, mostDigits-1)))
	n.fraction = b.Opt(b.Cat(n.dot, b.Rep(n.digit, 1, mostDigits)))
	n.exponent = b.Opt(b.Cat(b.Or(b.Lit("e"), b.Lit("E")), b.Opt(b.Or(b.Lit("+"), b.Lit("-"))),
		b.Rep(n.digit, 1, mostExponent)))
	return n
}

// text is the expression of the spellings of a set.
func (n *numbers) text(s *numberSet) regex.Ex {
	b := n.b
	if s.listed {
		var texts []string
		for _, l := range s.among {
			texts = append(texts, l.text)
			if plain := l.at.String(); len(plain) <= mostDigits && l.at.digits != "" {
				texts = append(texts, plain)
			}
		}
		return b.Lits(texts)
	}
	free := s.whole == anyNumber && len(s.multiple)+len(s.not)+len(s.except) == 0
	signs := []bool{false, true}
	var alts []regex.Ex
	for _, neg := range signs {
		lo, hi := s.lo, s.hi
		if neg { // the absolute value lies between the other ends
			lo, hi = mirrored(s.hi), mirrored(s.lo)
		}
		if hi != nil && (hi.at.neg || hi.at.zero() && hi.open) {
			continue
		}
		sign := regex.Eps
		if neg {
			sign = b.Lit("-")
		}
		atZero := lo == nil || lo.at.neg || lo.at.zero() && !lo.open
		if free && hi == nil && (atZero || lo.at.zero()) {
			// Whether the value lies on this side of zero is seen without the exponent.
			x := b.Cat(n.whole, n.fraction)
			if !atZero {
				x = b.Minus(x, n.spellings(decimal{}))
			}
			alts = append(alts, b.Cat(sign, x, n.exponent))
			continue
		}
		x := b.Cat(n.whole, n.fraction)
		switch s.whole {
		case integers:
			x = n.whole
		case fractions:
			x = b.Cat(n.whole, n.dot, b.Rep(n.digit, 0, mostDigits), n.nonzero,
				b.Rep(n.digit, 0, mostDigits))
		}
		and := []regex.Ex{x}
		if !atZero {
			and = append(and, n.above(lo))
		}
		if hi != nil {
			and = append(and, n.below(hi))
		}
		for _, m := range s.multiple {
			and = append(and, n.multiples(m))
		}
		for _, m := range s.not {
			and = append(and, b.Not(n.multiples(m)))
		}
		for _, d := range s.except {
			if d.neg == neg || d.zero() {
				and = append(and, b.Not(n.spellings(d)))
			}
		}
		if neg { // no "-0" where something is asked of the value
			and = append(and, b.Not(n.spellings(decimal{})))
			if s.lo == nil && s.hi == nil && s.whole == integers && len(and) == 2 {
				and = and[:1]
			}
		}
		alts = append(alts, b.Cat(sign, b.And(and...)))
	}
	return b.Or(alts...)
}

func mirrored(b *bound) *bound {
	if b == nil {
		return nil
	}
	return &bound{b.at.minus(), b.open}
}

// zeros is a fraction of zeros only, or none.
func (n *numbers) zeros() regex.Ex {
	return n.b.Opt(n.b.Cat(n.dot, n.b.Star(n.b.Lit("0"))))
}

// spellings are the ways to write the absolute value without an exponent.
func (n *numbers) spellings(d decimal) regex.Ex {
	whole, fraction := d.parts()
	if fraction == "" {
		return n.b.Cat(n.b.Lit(whole), n.zeros())
	}
	return n.b.Cat(n.b.Lit(whole+"."+fraction), n.b.Star(n.b.Lit("0")))
}

// above matches spellings of numbers, from 0, that lie above a positive lower end; below those
// below an upper end. They match no other spelling of a number, but texts that are none.
func (n *numbers) above(lo *bound) regex.Ex {
	b := n.b
	whole, fraction := lo.at.parts()
	rest := b.Star(b.Or(n.digit, n.dot))
	digits := b.Star(n.digit)
	alts := []regex.Ex{b.Cat(n.nonzero, b.Rep(n.digit, len(whole), regex.Inf), rest)}
	if whole == "0" {
		alts[0] = b.Cat(n.nonzero, rest)
	}
	for i := range len(whole) {
		if whole != "0" && whole[i] < '9' {
			alts = append(alts, b.Cat(b.Lit(whole[:i]), b.Bytes(whole[i]+1, '9'),
				b.Rep(n.digit, len(whole)-i-1, len(whole)-i-1), b.Opt(b.Cat(n.dot, digits))))
		}
	}
	for i := range len(fraction) {
		if fraction[i] < '9' {
			alts = append(alts, b.Cat(b.Lit(whole+"."+fraction[:i]), b.Bytes(fraction[i]+1, '9'),
				digits))
		}
	}
	point := fraction
	if point != "" {
		point = "." + point
	}
	switch {
	case !lo.open && fraction == "":
		alts = append(alts, b.Cat(b.Lit(whole), b.Opt(b.Cat(n.dot, digits))))
	case !lo.open:
		alts = append(alts, b.Cat(b.Lit(whole+point), digits))
	case fraction == "":
		alts = append(alts, b.Cat(b.Lit(whole), n.dot, digits, n.nonzero, digits))
	default:
		alts = append(alts, b.Cat(b.Lit(whole+point), digits, n.nonzero, digits))
	}
	return b.Or(alts...)
}

func (n *numbers) below(hi *bound) regex.Ex {
	b := n.b
	whole, fraction := hi.at.parts()
	digits := b.Star(n.digit)
	tail := b.Opt(b.Cat(n.dot, digits))
	var alts []regex.Ex
	if len(whole) > 1 {
		alts = append(alts, b.Cat(b.Rep(n.digit, 1, len(whole)-1), tail))
	}
	for i := range len(whole) {
		if whole[i] > '0' {
			alts = append(alts, b.Cat(b.Lit(whole[:i]), b.Bytes('0', whole[i]-1),
				b.Rep(n.digit, len(whole)-i-1, len(whole)-i-1), tail))
		}
	}
	for i := range len(fraction) {
		early := whole // a spelling that ends before this digit
		if i > 0 {
			early += "." + fraction[:i]
		}
		alts = append(alts, b.Lit(early))
		if fraction[i] > '0' {
			alts = append(alts, b.Cat(b.Lit(whole+"."+fraction[:i]), b.Bytes('0', fraction[i]-1),
				digits))
		}
	}
	if !hi.open {
		alts = append(alts, n.spellings(hi.at))
	}
	return b.Or(alts...)
}
