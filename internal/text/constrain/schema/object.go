package schema

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// prop is a key that an object may, must or must not have: not, where node is bottom.
type prop struct {
	name     string
	node     id
	required bool
	// named says that properties lists the key: it has a place in the order. Other keys stand
	// behind those that have.
	named bool
}

// cell is a set of keys whose values are of one schema.
type cell struct {
	keys regex.Ex // as texts spells them
	node id
}

// exist asks for at least one key of a set with a value of a schema.
type exist cell

// objects is a set of objects. Cells are disjoint, and hold every key that is no prop.
type objects struct {
	props  []prop
	at     map[string]int // of props, where there are many
	cells  []cell
	exists []exist
	// least and most bound the number of keys; most may be regex.Inf.
	least, most int
	// open says that something was said about other keys.
	open bool
	// seen are the keys that an unevaluatedProperties beside the schema does not look at.
	seen regex.Ex
	held bool // its memory is counted
}

func (c *compiler) anyObject() *objects {
	return &objects{cells: []cell{{c.text.any(), top}}, most: regex.Inf}
}

// fewProps is up to how many keys are searched one by one.
const fewProps = 12

func (o *objects) find(name string) int {
	if len(o.props) <= fewProps {
		return slices.IndexFunc(o.props, func(p prop) bool { return p.name == name })
	}
	if o.at == nil {
		o.at = make(map[string]int, len(o.props))
		for i, p := range o.props {
			o.at[p.name] = i
		}
	}
	if i, ok := o.at[name]; ok {
		return i
	}
	return -1
}

// rest is the schema of a key that is no prop.
func (c *compiler) rest(o *objects, name string) id {
	spelled := ""
	for _, x := range o.cells {
		if x.keys == c.text.any() {
			return x.node
		}
		if spelled == "" {
			spelled = c.text.spell(name)
		}
		c.spend(len(name))
		if c.text.b.Match(x.keys, spelled) {
			return x.node
		}
	}
	return bottom
}

// andObjects intersects two sets; nil says that the result is surely empty.
func (c *compiler) andObjects(x, y *objects) *objects {
	c.spend(len(x.props) + len(y.props))
	r := &objects{least: max(x.least, y.least),
		exists: slices.Concat(x.exists, y.exists), open: x.open || y.open}
	r.most = fewer(x.most, y.most)
	r.props = make([]prop, 0, len(x.props)+len(y.props))
	for _, p := range x.props {
		i := y.find(p.name)
		switch {
		case i < 0:
			p.node = c.and(p.node, c.rest(y, p.name))
		case !p.named && y.props[i].named:
			continue // its place is there
		default:
			p = c.andProp(p, y.props[i], p.named)
		}
		r.props = append(r.props, p)
	}
	for _, p := range y.props {
		i := x.find(p.name)
		switch {
		case i < 0:
			p.node = c.and(c.rest(x, p.name), p.node)
		case x.props[i].named || !p.named:
			continue
		default:
			p = c.andProp(x.props[i], p, true)
		}
		r.props = append(r.props, p)
	}
	r.cells = c.andCells(x.cells, y.cells)
	switch {
	case x.seen == 0 || y.seen == x.seen:
		r.seen = y.seen
	case y.seen == 0:
		r.seen = x.seen
	default:
		r.seen = c.text.b.Or(x.seen, y.seen)
	}
	if !c.trim(r) {
		return nil
	}
	return r
}

func (c *compiler) andProp(p, q prop, named bool) prop {
	return prop{p.name, c.and(p.node, q.node), p.required || q.required, named}
}

func (c *compiler) andCells(x, y []cell) []cell {
	b := c.text.b
	all := c.text.any()
	var out []cell
	for _, p := range x {
		for _, q := range y {
			if c.bad() {
				return out
			}
			keys := p.keys
			switch {
			case p.keys == q.keys || q.keys == all:
			case p.keys == all:
				keys = q.keys
			default:
				keys = b.And(p.keys, q.keys)
				if c.dead(keys) {
					continue
				}
			}
			out = c.addCell(out, cell{keys, c.and(p.node, q.node)})
		}
	}
	return out
}

// mostCells bounds how many classes of keys the patterns of an object make.
const mostCells = 64

// addCell appends a cell, to one of the same schema if there is one.
func (c *compiler) addCell(cells []cell, x cell) []cell {
	for i := range cells {
		if cells[i].node == x.node {
			cells[i].keys = c.text.b.Or(cells[i].keys, x.keys)
			return cells
		}
	}
	if len(cells) >= mostCells {
		c.tooComplex("patternProperties", "keys fall into more than %d classes", mostCells)
		return cells
	}
	return append(cells, x)
}

// trim takes out what cannot be, and says whether anything can.
func (c *compiler) trim(o *objects) bool {
	must := 0
	may := 0
	for i := range o.props {
		p := &o.props[i]
		if p.node != top && p.node != bottom && c.empty(p.node) {
			p.node = bottom
		}
		if p.node == bottom && p.required {
			return false
		}
		if p.required {
			must++
		}
		if p.node != bottom {
			may++
		}
	}
	open := false
	if !c.satisfied(o) {
		return false
	}
	for i := range o.cells {
		if n := o.cells[i].node; n != top && n != bottom && c.empty(n) {
			o.cells[i].node = bottom
		}
		open = open || o.cells[i].node != bottom
	}
	if !open {
		if o.most == regex.Inf || o.most > may {
			o.most = may
		}
	}
	if o.least > 0 && o.least <= must {
		o.least = 0
	}
	if !open && o.most >= may {
		o.most = regex.Inf
	}
	if o.most != regex.Inf && (o.most < o.least || o.most < must) {
		return false
	}
	return open || o.least <= may
}

// fits is what the value of a key must be so that it is the one that has to exist, bottom if it
// cannot be.
func (c *compiler) fits(p prop, x exist) id {
	c.spend(len(p.name))
	if p.node == bottom || !c.text.b.Match(x.keys, c.text.spell(p.name)) {
		return bottom
	}
	if n := c.and(p.node, x.node); !c.empty(n) {
		return n
	}
	return bottom
}

// both is a key that two ask for, and whether there can be one.
func (c *compiler) both(x, y exist) (exist, bool) {
	z := exist{c.text.b.And(x.keys, y.keys), c.and(x.node, y.node)}
	return z, z.node != bottom && !c.dead(z.keys) && !c.empty(z.node)
}

// satisfied takes out keys that must exist where a key with a name is all that can be one, and
// says whether each can exist.
func (c *compiler) satisfied(o *objects) bool {
	var left []exist
	for _, x := range o.exists {
		if slices.Contains(left, x) {
			continue
		}
		can, at, met := 0, 0, false
		for i, p := range o.props {
			n := c.fits(p, x)
			if n == bottom {
				continue
			}
			can, at = can+1, i
			met = met || p.required && n == p.node
		}
		for _, y := range o.cells {
			if can > 1 || met {
				break
			}
			if _, ok := c.both(exist(y), x); ok {
				can += 2
			}
		}
		switch {
		case met:
		case can == 0:
			return false
		case can == 1:
			p := &o.props[at]
			p.node, p.required = c.and(p.node, x.node), true
		default:
			left = append(left, x)
		}
	}
	o.exists = left
	return true
}

// disjointObjects says that no object is in both sets, where that is easily seen.
func (c *compiler) disjointObjects(x, y *objects) bool {
	c.spend(len(x.props) + len(y.props))
	clash := func(x, y *objects) bool {
		for _, p := range x.props {
			if !p.required {
				continue
			}
			q := id(top)
			if i := y.find(p.name); i >= 0 {
				q = y.props[i].node
			} else {
				q = c.rest(y, p.name)
			}
			if n := c.and(p.node, q); n == bottom || n != p.node && n != top && c.empty(n) {
				return true
			}
		}
		return x.most != regex.Inf && x.most < y.least
	}
	return clash(x, y) || clash(y, x)
}

// notObjects lists sets whose union is what o leaves out.
func (c *compiler) notObjects(o *objects) []*objects {
	b := c.text.b
	var out []*objects
	add := func(change func(r *objects)) {
		r := c.anyObject()
		change(r)
		out = append(out, r)
	}
	var names []string
	for _, p := range o.props {
		names = append(names, c.text.spell(p.name))
		switch {
		case p.required: // without the key, or with another value
			add(func(r *objects) { r.props = []prop{{name: p.name, node: c.not(p.node)}} })
		case p.node != top:
			add(func(r *objects) {
				r.props = []prop{{name: p.name, node: c.not(p.node), required: true}}
			})
		}
	}
	for _, x := range o.cells {
		if x.node != top {
			keys := x.keys
			if len(names) > 0 {
				keys = b.Minus(keys, b.Lits(names))
			}
			add(func(r *objects) { r.exists = []exist{{keys, c.not(x.node)}} })
		}
	}
	if o.least > 0 {
		add(func(r *objects) { r.most = o.least - 1 })
	}
	if o.most != regex.Inf {
		add(func(r *objects) { r.least = o.most + 1 })
	}
	for _, e := range o.exists {
		add(func(r *objects) {
			r.cells = []cell{{e.keys, c.not(e.node)}, {b.Minus(c.text.any(), e.keys), top}}
		})
	}
	return out
}
