package schema

import (
	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"strconv"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// schemaOf reads a member that must be a schema.
func (c *compiler) schemaOf(v *value, track bool) id {
	if v.kind != kObject && v.kind != kTrue && v.kind != kFalse {
		c.refuse(cfg.SchemaInvalid, v, v.token, "a schema must be an object or a boolean")
		return top
	}
	return c.schema(v, track)
}

// listOf reads a member that must be a list.
func (c *compiler) listOf(v *value) []*value {
	if v.kind != kArray {
		c.refuse(cfg.SchemaInvalid, v, v.token, "must be an array")
	}
	return v.list
}

// count reads a member that must be a number from 0 on; larger ones than 2³¹ count as that.
func (c *compiler) count(v *value) int {
	const most = 1<<31 - 1
	d, ok := decimal{}, false
	if v.kind == kNumber {
		d, ok = parseDecimal(v.text)
	}
	if !ok || d.neg || !d.integer() {
		c.refuse(cfg.SchemaInvalid, v, v.token, "must be a whole number from 0 on")
		return 0
	}
	if n, err := strconv.Atoi(d.String()); err == nil {
		return min(n, most)
	}
	return most
}

// keywords is the sets of a schema object. Keywords count in the order of the text, as far as that
// is where keys get their places from; keys that are only required come last.
func (c *compiler) keywords(v *value, track bool) *sets {
	if v.kind != kObject {
		c.refuse(cfg.SchemaInvalid, v, v.token, "a schema must be an object or a boolean")
		return nil
	}
	draft := c.docs.draft(v)
	all := c.everything()
	if track {
		all.objects[0].seen, all.arrays[0].seen = regex.Empty, 0
	}
	ref := v.get("$ref")
	if ref != nil && draft.refAlone() {
		return c.follow(ref, track)
	}
	unevaluated := draft.has(d2019) &&
		(v.get("unevaluatedProperties") != nil || v.get("unevaluatedItems") != nil)
	if unevaluated {
		track = true
	}
	// What makes the sets smallest goes first.
	for _, name := range []string{"type", "const", "enum"} {
		if k := v.get(name); k != nil && (name != "const" || draft.has(d6)) {
			all = c.intersect(all, c.plainKeyword(name, k))
		}
	}
	all = c.scalars(v, all, draft)
	objectsDone, arraysDone := false, false
	for i, name := range v.names {
		if c.bad() {
			return nil
		}
		k := v.list[i]
		switch name {
		case "properties", "patternProperties", "additionalProperties":
			if !objectsDone && len(all.objects) > 0 {
				all = c.narrowObjects(all, c.properties(v, track))
			}
			objectsDone = true
		case "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems",
			"contains":
			if !arraysDone && len(all.arrays) > 0 {
				all = c.items(v, all, track, draft)
			}
			arraysDone = true
		case "propertyNames":
			if draft.has(d6) {
				all = c.propertyNames(k, all)
			}
		case "minProperties", "maxProperties":
			o := c.anyObject()
			if name == "minProperties" {
				o.least = c.count(k)
			} else {
				o.most = c.count(k)
			}
			all = c.narrowObjects(all, o)
		default:
			s := c.applicator(v, name, k, all, track, draft)
			if s == nil {
				return nil
			}
			all = s
		}
	}
	if k := v.get("required"); k != nil && !c.bad() {
		all = c.required(k, all)
	}
	if unevaluated && !c.bad() {
		all = c.unevaluated(v, all)
	}
	return all
}

// narrowObjects intersects the objects of s with those of o, and leaves other types.
func (c *compiler) narrowObjects(s *sets, o ...*objects) *sets {
	r := *s
	r.objects = nil
	return c.withObjects(&r, s.objects, o)
}

func (c *compiler) withObjects(r *sets, xs, ys []*objects) *sets {
	r.objects = append(r.objects, cross(c, xs, ys, c.andObjects)...)
	c.bounded(r)
	return r
}

func (c *compiler) narrowArrays(s *sets, a *arrays) *sets {
	r := *s
	r.arrays = nil
	for _, x := range s.arrays {
		if z := c.andArrays(x, a); z != nil {
			r.arrays = append(r.arrays, z)
		}
	}
	return &r
}

// properties is what properties, patternProperties and additionalProperties say together.
func (c *compiler) properties(v *value, track bool) *objects {
	b := c.text.b
	o := c.anyObject()
	rest := id(top)
	if k := v.get("additionalProperties"); k != nil {
		rest, o.open = c.schemaOf(k, false), true
	}
	o.cells = []cell{{c.text.any(), rest}}
	seen := regex.Empty
	if k := v.get("patternProperties"); k != nil {
		if k.kind != kObject {
			c.refuse(cfg.SchemaInvalid, k, "patternProperties", "must be an object")
			return o
		}
		o.open = true
		// Each pattern cuts every cell in two. The rest is for keys that no pattern has.
		o.cells = []cell{{c.text.any(), top}}
		none := c.text.any()
		for i, p := range k.names {
			x := c.pattern(k.list[i], "patternProperties", p)
			n := c.schemaOf(k.list[i], false)
			if c.bad() {
				return o
			}
			seen = b.Or(seen, x)
			none = c.without(none, x)
			out := c.without(c.text.any(), x)
			cells := []cell{{x, n}}
			if !c.dead(out) {
				cells = append(cells, cell{out, top})
			}
			o.cells = c.andCells(o.cells, cells)
		}
		if rest != top && !c.dead(none) {
			cells := []cell{{none, rest}}
			if with := b.Minus(c.text.any(), none); !c.dead(with) {
				cells = append(cells, cell{with, top})
			}
			o.cells = c.andCells(o.cells, cells)
		}
	}
	if k := v.get("properties"); k != nil {
		if k.kind != kObject {
			c.refuse(cfg.SchemaInvalid, k, "properties", "must be an object")
			return o
		}
		names := make([]string, 0, len(k.names))
		patterns := v.get("patternProperties")
		for i, name := range k.names {
			n := c.schemaOf(k.list[i], false)
			if patterns != nil {
				for j, p := range patterns.names {
					c.spend(len(name))
					if b.Match(c.pattern(patterns.list[j], "patternProperties", p),
						c.text.spell(name)) {
						n = c.and(n, c.schemaOf(patterns.list[j], false))
					}
				}
			}
			names = append(names, c.text.spell(name))
			o.props = append(o.props, prop{name: name, node: n, named: true})
			if c.bad() {
				return o
			}
		}
		if track {
			seen = b.Or(seen, b.Lits(names))
		}
	}
	if track {
		if v.get("additionalProperties") != nil {
			seen = c.text.any()
		}
		o.seen = seen
	}
	return o
}

func (c *compiler) without(x, y regex.Ex) regex.Ex {
	if x == y {
		return regex.Empty
	}
	return c.text.b.Minus(x, y)
}

// propertyNames applies a schema to every key.
func (c *compiler) propertyNames(k *value, all *sets) *sets {
	s := c.resolve(c.schemaOf(k, false))
	if s == nil {
		return nil
	}
	o := c.anyObject()
	switch {
	case s.strings == nil:
		o.cells[0].node = bottom
	case !c.text.isAll(s.strings):
		keys := c.text.of(s.strings)
		o.cells = []cell{{keys, top}, {c.without(c.text.any(), keys), bottom}}
	}
	return c.narrowObjects(all, o)
}

// required applies the keyword of that name; draft 3's booleans are refused.
func (c *compiler) required(k *value, all *sets) *sets {
	o := c.anyObject()
	seen := map[string]bool{}
	for _, x := range c.listOf(k) {
		if x.kind != kString {
			c.refuse(cfg.SchemaInvalid, x, "required", "must be a string")
			return all
		}
		if !seen[x.text] {
			seen[x.text] = true
			o.props = append(o.props, prop{name: x.text, required: true})
		}
	}
	if len(o.props) == 0 {
		return all
	}
	return c.narrowObjects(all, o)
}

// items applies the keywords about arrays.
func (c *compiler) items(v *value, all *sets, track bool, draft draft) *sets {
	a := anyArray()
	items, prefix := v.get("items"), v.get("prefixItems")
	if prefix != nil && !draft.has(d2020) {
		prefix = nil
	}
	after := items
	if items != nil && items.kind == kArray {
		prefix, after = items, v.get("additionalItems")
	}
	if prefix != nil {
		for _, x := range c.listOf(prefix) {
			a.prefix = append(a.prefix, c.schemaOf(x, false))
			a.seen++
		}
	}
	if after != nil {
		a.rest, a.seen = c.schemaOf(after, false), 1<<31-1
	}
	if k := v.get("minItems"); k != nil {
		a.least = c.count(k)
	}
	if k := v.get("maxItems"); k != nil {
		a.most = c.count(k)
	}
	a.unique = v.get("uniqueItems").isTrue()
	if k := v.get("contains"); k != nil && draft.has(d6) {
		x := contains{node: c.schemaOf(k, false), least: 1, most: regex.Inf}
		if k := v.get("minContains"); k != nil && draft.has(d2019) {
			x.least = c.count(k)
		}
		if k := v.get("maxContains"); k != nil && draft.has(d2019) {
			x.most = c.count(k)
		}
		a.contains = append(a.contains, x)
		if track && draft.has(d2020) {
			a.seenIf = append(a.seenIf, x.node)
		}
	}
	if c.bad() {
		return all
	}
	return c.narrowArrays(all, a)
}
