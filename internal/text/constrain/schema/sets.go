package schema

import "github.com/eagleray/eagleray/internal/text/constrain/cfg"

import "github.com/eagleray/eagleray/internal/text/constrain/regex"

// sets are the values of a schema by their type, as unions. The zero sets have no value.
type sets struct {
	null, yes, no bool
	numbers       []*numberSet
	strings       *textSet // nil: none
	arrays        []*arrays
	objects       []*objects
}

func (s *sets) none() bool {
	return !s.null && !s.yes && !s.no && len(s.numbers) == 0 && s.strings == nil &&
		len(s.arrays) == 0 && len(s.objects) == 0
}

// listed says that the values are all listed, none of them an array or object.
func (s *sets) listed() bool {
	return (s.strings == nil || s.strings.listed) && len(s.arrays)+len(s.objects) == 0 &&
		all(s.numbers, func(n *numberSet) bool { return n.listed })
}

// values calls functions with the strings and the numbers that are listed.
func (s *sets) values(text func(string), number func(literal)) {
	if s.strings != nil {
		for _, x := range s.strings.among {
			text(x)
		}
	}
	for _, n := range s.numbers {
		for _, l := range n.among {
			number(l)
		}
	}
}

// size is how many values are listed.
func (s *sets) size() int {
	n := 0
	s.values(func(string) { n++ }, func(literal) { n++ })
	return n
}

func (c *compiler) everything() *sets {
	return &sets{null: true, yes: true, no: true, numbers: []*numberSet{{}},
		strings: c.text.all(), arrays: []*arrays{anyArray()}, objects: []*objects{c.anyObject()}}
}

// some is s, or nil if it is empty.
func (c *compiler) some(s *textSet) *textSet {
	if s == nil {
		return nil
	}
	dead := c.text.empty(s)
	if c.spend(0); dead {
		return nil
	}
	return s
}

// intersect is the values of both. Nothing comes of it after an error: one that went on would make
// alternatives of alternatives.
func (c *compiler) intersect(s, t *sets) *sets {
	if c.spend(0); c.bad() {
		return &sets{}
	}
	r := &sets{null: s.null && t.null, yes: s.yes && t.yes, no: s.no && t.no}
	if s.strings != nil && t.strings != nil {
		r.strings = c.some(c.text.and(s.strings, t.strings))
	}
	r.numbers = cross(c, s.numbers, t.numbers, c.andNumbers)
	r.arrays = cross(c, s.arrays, t.arrays, c.andArrays)
	r.objects = cross(c, s.objects, t.objects, c.andObjects)
	return r
}

// cross is what there is of the intersections of each with each. and returns nil for nothing.
func cross[T any](c *compiler, xs, ys []*T, and func(x, y *T) *T) []*T {
	var out []*T
	for _, x := range xs {
		for _, y := range ys {
			if z := and(x, y); z != nil {
				out = append(out, z)
			}
			if c.alternatives(len(out)); c.bad() {
				return out
			}
		}
	}
	return out
}

// andNumbers intersects two sets; nil says that the result is empty.
func (c *compiler) andNumbers(x, y *numberSet) *numberSet {
	c.spend(x.work(y))
	if z := x.and(y); !z.empty() {
		return z
	}
	return nil
}

func (c *compiler) bad() bool { return c.err != nil || c.unknown }

// bounded refuses more alternatives than the limit.
func (c *compiler) bounded(s *sets) {
	c.alternatives(max(len(s.numbers), len(s.arrays), len(s.objects)))
}

func (c *compiler) alternatives(n int) {
	if n > c.lim.Branches {
		c.tooComplex("branches", "the schema comes to more than %d alternatives", c.lim.Branches)
	}
}

// union is the values of any of several sets. It takes all of them at once: one after another costs
// the square of how many they are.
func (c *compiler) union(list ...*sets) *sets {
	r := &sets{}
	var only *sets
	many := false
	var strings []*textSet
	var numbers []*numberSet
	for _, s := range list {
		if s.none() {
			continue
		}
		only, many = s, only != nil
		r.null, r.yes, r.no = r.null || s.null, r.yes || s.yes, r.no || s.no
		if s.strings != nil {
			strings = append(strings, s.strings)
		}
		numbers = append(numbers, s.numbers...)
		r.arrays = append(r.arrays, s.arrays...)
		r.objects = append(r.objects, s.objects...)
	}
	switch {
	case only == nil:
		return r
	case !many:
		return only
	}
	if len(strings) > 0 {
		r.strings = c.text.or(strings...)
	}
	r.numbers = unionNumbers(numbers)
	c.bounded(r)
	return r
}

// unionNumbers puts listed numbers together, and leaves out what all numbers contain.
func unionNumbers(sets []*numberSet) []*numberSet {
	var out []*numberSet
	var list *numberSet
	for _, x := range sets {
		switch {
		case x.universal():
			return []*numberSet{x}
		case !x.listed:
			out = append(out, x)
		case list == nil:
			list = &numberSet{listed: true, among: append([]literal(nil), x.among...)}
			out = append(out, list)
		default:
			list.among = append(list.among, x.among...)
		}
	}
	return out
}

// Bytes of what sets hold, about.
const (
	propBytes    = 80 // with its place in a map
	literalBytes = 64
	setBytes     = 160
)

// keep counts the memory of sets that are kept, but for what other sets that are kept hold too.
func (c *compiler) keep(s *sets) {
	bytes := setBytes
	if t := s.strings; t != nil && !t.held {
		t.held = true
		bytes += setBytes + literalBytes*len(t.among)
	}
	for _, x := range s.numbers {
		if !x.held {
			x.held = true
			bytes += setBytes + literalBytes*(len(x.among)+len(x.except))
		}
	}
	for _, x := range s.arrays {
		bytes += setBytes + 4*len(x.prefix)
	}
	for _, x := range s.objects {
		if !x.held {
			x.held = true
			bytes += setBytes + propBytes*cap(x.props) + 16*len(x.cells)
		}
	}
	c.hold(bytes)
}

func (s *numberSet) universal() bool {
	return s.lo == nil && s.hi == nil && s.whole == anyNumber && !s.listed &&
		len(s.multiple)+len(s.not)+len(s.except) == 0
}

// minus takes the values of t out of s.
func (c *compiler) minus(s, t *sets) *sets {
	if c.spend(0); c.bad() {
		return &sets{}
	}
	r := &sets{null: s.null && !t.null, yes: s.yes && !t.yes, no: s.no && !t.no,
		strings: s.strings}
	if s.strings != nil && t.strings != nil {
		r.strings = c.some(c.text.minus(s.strings, t.strings))
	}
	r.numbers = subtract(c, s.numbers, t.numbers,
		func(x, y *numberSet) bool { return c.andNumbers(x, y) == nil }, (*numberSet).complement,
		c.andNumbers)
	r.arrays = subtract(c, s.arrays, t.arrays, c.disjointArrays, c.notArrays, c.andArrays)
	r.objects = subtract(c, s.objects, t.objects, c.disjointObjects, c.notObjects, c.andObjects)
	return r
}

// subtract takes alternatives out of others: what is left of each is its intersections with the
// complement of what is taken, and all of it where the two are disjoint. and returns nil for
// nothing.
func subtract[T any](c *compiler, from, taken []*T, disjoint func(x, y *T) bool,
	not func(y *T) []*T, and func(x, n *T) *T) []*T {
	for _, y := range taken {
		var left, rest []*T
		for _, x := range from {
			if disjoint(x, y) {
				left = append(left, x)
				continue
			}
			if rest == nil {
				rest = not(y)
			}
			left = append(left, cross(c, []*T{x}, rest, and)...)
			if c.alternatives(len(left)); c.bad() {
				return left
			}
		}
		from = left
	}
	return from
}

// single is the sets of one value.
func (c *compiler) single(v *value) *sets {
	s := &sets{}
	switch v.kind {
	case kNull:
		s.null = true
	case kTrue:
		s.yes = true
	case kFalse:
		s.no = true
	case kNumber:
		d, ok := parseDecimal(v.text)
		if !ok {
			c.refuse(cfg.SchemaUnsupported, v, "number", "the number %s is out of range",
				clip(v.text))
			return s
		}
		s.numbers = []*numberSet{{listed: true, among: []literal{{d, v.text}}}}
	case kString:
		s.strings = c.text.list(v.text)
	case kArray:
		a := &arrays{rest: bottom, least: len(v.list), most: len(v.list)}
		for _, x := range v.list {
			a.prefix = append(a.prefix, c.literal(x))
		}
		s.arrays = []*arrays{a}
	case kObject:
		o := &objects{cells: []cell{{c.text.any(), bottom}}, most: regex.Inf}
		for i, x := range v.list {
			o.props = append(o.props, prop{v.names[i], c.literal(x), true, true})
		}
		s.objects = []*objects{o}
	}
	return s
}
