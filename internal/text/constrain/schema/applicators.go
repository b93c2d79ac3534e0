package schema

import (
	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// applicator applies a keyword that holds schemas for the value itself; others change nothing.
func (c *compiler) applicator(v *value, name string, k *value, all *sets, track bool,
	draft draft) *sets {

	switch name {
	case "$ref":
		s := c.follow(k, track)
		if s == nil {
			return nil
		}
		return c.intersect(all, s)
	case "$dynamicRef", "$recursiveRef":
		if !draft.has(d2019) {
			return all
		}
		s := c.followDynamic(k, track)
		if s == nil {
			return nil
		}
		return c.intersect(all, s)
	case "allOf":
		for _, x := range c.listOf(k) {
			s := c.resolve(c.schemaOf(x, track))
			if s == nil {
				return nil
			}
			all = c.intersect(all, s)
		}
		return all
	case "anyOf":
		return c.anyOf(k, all, track)
	case "oneOf":
		return c.oneOf(k, all, track)
	case "not":
		s := c.resolve(c.schemaOf(k, false))
		if s == nil {
			return nil
		}
		return c.minus(all, s)
	case "if":
		if !draft.has(d7) {
			return all
		}
		return c.conditional(v, k, all, track)
	case "dependentRequired", "dependentSchemas":
		if !draft.has(d2019) {
			return all
		}
		return c.dependencies(k, all, track)
	case "dependencies":
		return c.dependencies(k, all, track)
	}
	return all
}

func (c *compiler) resolveAll(k *value, track bool) []*sets {
	var out []*sets
	for _, x := range c.listOf(k) {
		s := c.resolve(c.schemaOf(x, track))
		if s == nil {
			return nil
		}
		out = append(out, s)
	}
	return out
}

func (c *compiler) anyOf(k *value, all *sets, track bool) *sets {
	list := c.resolveAll(k, track)
	if c.bad() {
		return nil
	}
	if !track {
		alts := make([]*sets, len(list))
		objects := 0
		for i, s := range list {
			alts[i] = c.intersect(all, s)
			objects += len(alts[i].objects)
			if c.alternatives(objects); c.bad() {
				return nil
			}
		}
		return c.union(alts...)
	}
	r := &sets{}
	// Which of the schemas hold decides what has been looked at: all that do count.
	no := all
	for _, s := range list {
		with := c.union(c.intersect(r, s), c.intersect(no, s))
		r = c.union(with, c.minus(r, s))
		no = c.minus(no, s)
		if c.bad() {
			return nil
		}
	}
	return r
}

func (c *compiler) oneOf(k *value, all *sets, track bool) *sets {
	list := c.resolveAll(k, track)
	if c.bad() {
		return nil
	}
	list, alts := c.onlyOnce(all, list)
	objects := 0
	for i, s := range list {
		one := c.intersect(all, s)
		for j, t := range list {
			if c.bad() {
				return nil
			}
			if i != j {
				one = c.minus(one, t)
			}
		}
		alts = append(alts, one)
		objects += len(one.objects)
		c.alternatives(objects)
	}
	if c.bad() {
		return nil
	}
	return c.union(alts...)
}

// onlyOnce looks at all sets of listed values at once, for oneOf: alts are the values of one that
// are in no other set, and rest the other sets with one that has the values of all of them in their
// place, so that nothing is of it alone. With one such set, or none, it leaves the list as it is.
func (c *compiler) onlyOnce(all *sets, list []*sets) (rest, alts []*sets) {
	var flat []*sets
	for _, s := range list {
		if s.listed() {
			flat = append(flat, s)
		} else {
			rest = append(rest, s)
		}
	}
	if len(flat) < 2 {
		return list, nil
	}
	var null, yes, no int
	strings, numbers := tally[string]{}, tally[decimal]{}
	for i, s := range flat {
		c.spend(s.size())
		null, yes, no = null+count(s.null), yes+count(s.yes), no+count(s.no)
		s.values(func(x string) { strings.add(x, i) }, func(l literal) { numbers.add(l.at, i) })
	}
	once := &sets{null: null == 1, yes: yes == 1, no: no == 1}
	every := c.union(flat...)
	text, number := c.text.list(), &numberSet{listed: true}
	every.values(func(x string) {
		if strings[x].once {
			text.among = append(text.among, x)
		}
	}, func(l literal) {
		if numbers[l.at].once {
			number.among = append(number.among, l)
		}
	})
	if len(text.among) > 0 {
		once.strings = text
	}
	if len(number.among) > 0 {
		once.numbers = []*numberSet{number}
	}
	once = c.intersect(all, once)
	for _, s := range rest {
		once = c.minus(once, s)
	}
	return append(rest, every, every), []*sets{once}
}

// tally notes of values which set had them first, and that no other has.
type tally[T comparable] map[T]struct {
	first int
	once  bool
}

func (t tally[T]) add(x T, set int) {
	n, met := t[x]
	if !met {
		n.first = set
	}
	n.once = n.first == set && (n.once || !met)
	t[x] = n
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

func (c *compiler) conditional(v, k *value, all *sets, track bool) *sets {
	then, otherwise := v.get("then"), v.get("else")
	if then == nil && otherwise == nil && !track {
		return all
	}
	s := c.resolve(c.schemaOf(k, track))
	if s == nil {
		return nil
	}
	yes, no := c.intersect(all, s), c.minus(all, s)
	for _, branch := range []struct {
		schema *value
		sets   **sets
	}{{then, &yes}, {otherwise, &no}} {
		if branch.schema == nil {
			continue
		}
		s := c.resolve(c.schemaOf(branch.schema, track))
		if s == nil {
			return nil
		}
		*branch.sets = c.intersect(*branch.sets, s)
	}
	return c.union(yes, no)
}

// dependencies applies dependentRequired, dependentSchemas, and what they were before.
func (c *compiler) dependencies(k *value, all *sets, track bool) *sets {
	if k.kind != kObject {
		c.refuse(cfg.SchemaInvalid, k, k.token, "must be an object")
		return nil
	}
	for i, name := range k.names {
		without, with := c.anyObject(), c.anyObject()
		without.props = []prop{{name: name, node: bottom}}
		with.props = []prop{{name: name, required: true}}
		then := k.list[i]
		if then.kind == kString { // of draft 3
			with.props = append(with.props, prop{name: then.text, required: true})
			then = nil
		} else if then.kind == kArray {
			for _, x := range then.list {
				if x.kind != kString {
					c.refuse(cfg.SchemaInvalid, x, k.token, "must be a string")
				} else if with.find(x.text) < 0 {
					with.props = append(with.props, prop{name: x.text, required: true})
				}
			}
			then = nil
		}
		if then == nil {
			all = c.narrowObjects(all, without, with)
			continue
		}
		s := c.resolve(c.schemaOf(then, track))
		if s == nil {
			return nil
		}
		r := c.narrowObjects(all, without)
		r = c.withObjects(r, c.narrowObjects(all, with).objects, s.objects)
		all = r
		if c.bad() {
			return nil
		}
	}
	return all
}

// unevaluated applies the keywords of that name, which look at what no other keyword of the schema
// and of those applied to the same value has.
func (c *compiler) unevaluated(v *value, all *sets) *sets {
	r := *all
	if k := v.get("unevaluatedProperties"); k != nil {
		n := c.schemaOf(k, false)
		r.objects = nil
		for _, x := range all.objects {
			o := c.anyObject()
			o.cells = []cell{{c.text.any(), n}}
			if x.seen != regex.Empty {
				o.cells = []cell{{x.seen, top}}
				if left := c.without(c.text.any(), x.seen); !c.dead(left) {
					o.cells = append(o.cells, cell{left, n})
				}
			}
			o.seen = c.text.any()
			if z := c.andObjects(x, o); z != nil {
				r.objects = append(r.objects, z)
			}
		}
	}
	if k := v.get("unevaluatedItems"); k != nil {
		n := c.schemaOf(k, false)
		r.arrays = nil
		for _, x := range all.arrays {
			a := anyArray()
			a.rest = n
			if len(x.seenIf) > 0 {
				a.rest = c.or(slices.Concat(x.seenIf, []id{n})...)
			}
			const manyItems = 10_000
			if x.seen > manyItems {
				a.rest = top
			} else {
				for range x.seen {
					a.prefix = append(a.prefix, top)
				}
			}
			a.seen = 1<<31 - 1
			if z := c.andArrays(x, a); z != nil {
				r.arrays = append(r.arrays, z)
			}
		}
	}
	return &r
}
