package schema

import (
	"errors"
	"github.com/eagleray/eagleray/internal/constrain/cfg"
	"slices"
	"strconv"

	"github.com/eagleray/eagleray/internal/constrain/regex"
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
	for _, x := range xs {
		for _, y := range ys {
			if c.bad() {
				return r
			}
			if z := c.andObjects(x, y); z != nil {
				r.objects = append(r.objects, z)
			}
		}
	}
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

// plainKeyword is the sets of type, const and enum.
func (c *compiler) plainKeyword(name string, k *value) *sets {
	switch name {
	case "const":
		return c.single(k)
	case "enum":
		s := &sets{}
		if k.kind != kArray {
			c.refuse(cfg.SchemaInvalid, k, "enum", "must be an array")
		}
		return c.enum(k, s)
	}
	list := []*value{k}
	if k.kind == kArray {
		list = k.list
	}
	r := &sets{}
	every := c.everything()
	for _, t := range list {
		switch {
		case t.kind != kString:
			c.refuse(cfg.SchemaInvalid, t, "type", "a type must be a string")
		case t.text == "null":
			r.null = true
		case t.text == "boolean":
			r.yes, r.no = true, true
		case t.text == "string":
			r.strings = every.strings
		case t.text == "array":
			r.arrays = every.arrays
		case t.text == "object":
			r.objects = every.objects
		case t.text == "number":
			r.numbers = every.numbers
		case t.text == "integer":
			if len(r.numbers) == 0 {
				r.numbers = []*numberSet{{whole: integers}}
			}
		default:
			c.refuse(cfg.SchemaInvalid, t, "type", "%q is no type", clip(t.text))
		}
	}
	return r
}

func (c *compiler) enum(k *value, s *sets) *sets {
	var strings []string
	seen := map[string]bool{}
	numbers := &numberSet{listed: true}
	var rest *sets = s
	for _, x := range k.list {
		c.spend(1)
		switch x.kind {
		case kString:
			if !seen[x.text] {
				seen[x.text] = true
				strings = append(strings, x.text)
			}
		case kNumber:
			if one := c.single(x); len(one.numbers) > 0 {
				numbers.among = append(numbers.among, one.numbers[0].among...)
			}
		default:
			rest = c.union(rest, c.single(x))
		}
		if c.bad() {
			return s
		}
	}
	r := *rest
	if len(strings) > 0 {
		r.strings = c.text.list(strings...)
	}
	if len(numbers.among) > 0 {
		r.numbers = []*numberSet{numbers}
	}
	return &r
}

// scalars applies the keywords about strings and numbers.
func (c *compiler) scalars(v *value, all *sets, draft draft) *sets {
	r := *all
	if r.strings != nil {
		r.strings = c.some(c.strings(v, r.strings))
	}
	if len(r.numbers) == 0 || c.bad() {
		return &r
	}
	n := &numberSet{}
	ok := false
	if k := v.get("multipleOf"); k != nil {
		if d := c.number(k); d.neg || d.zero() {
			c.refuse(cfg.SchemaInvalid, k, "multipleOf", "must be larger than 0")
		} else {
			n.multiple, ok = []decimal{d}, true
		}
	}
	end := func(plain, open string) *bound {
		var b *bound
		sign := 1
		if plain == "maximum" {
			sign = -1
		}
		if k := v.get(plain); k != nil {
			b = &bound{at: c.number(k)}
		}
		switch k := v.get(open); {
		case k == nil:
		case k.isTrue() && b != nil:
			b.open = true
		case k.isTrue() || k.isFalse():
		default:
			b = tighter(b, &bound{c.number(k), true}, sign)
		}
		ok = ok || b != nil
		return b
	}
	n.lo = end("minimum", "exclusiveMinimum")
	n.hi = end("maximum", "exclusiveMaximum")
	if !ok || c.bad() {
		return &r
	}
	r.numbers = nil
	for _, x := range all.numbers {
		if z := x.and(n); !z.empty() {
			r.numbers = append(r.numbers, z)
		}
	}
	return &r
}

func (c *compiler) number(k *value) decimal {
	if k.kind != kNumber {
		c.refuse(cfg.SchemaInvalid, k, k.token, "must be a number")
		return decimal{}
	}
	d, ok := parseDecimal(k.text)
	if !ok {
		c.refuse(cfg.SchemaUnsupported, k, k.token, "the number %s is out of range", clip(k.text))
	}
	return d
}

// strings applies minLength, maxLength, pattern and format.
func (c *compiler) strings(v *value, s *textSet) *textSet {
	least, most := 0, regex.Inf
	if k := v.get("minLength"); k != nil {
		least = c.count(k)
	}
	if k := v.get("maxLength"); k != nil {
		most = c.count(k)
	}
	switch {
	case most != regex.Inf && most < least:
		return c.text.list()
	case least > 0 || most != regex.Inf:
		s = c.text.and(s, c.text.lengths(least, most))
	}
	if k := v.get("pattern"); k != nil {
		if k.kind != kString {
			c.refuse(cfg.SchemaInvalid, k, "pattern", "must be a string")
			return s
		}
		s = c.text.and(s, &textSet{ex: c.pattern(k, k.text)})
	}
	if k := v.get("format"); k != nil && k.kind == kString {
		if x, known := c.format(k.text); known {
			s = c.text.and(s, &textSet{ex: x})
		}
	}
	return s
}

// pattern is the keys or strings in which a regular expression is found.
func (c *compiler) pattern(at *value, p string) regex.Ex {
	x, err := c.search(p)
	if err != nil {
		c.badPattern(at, "pattern", p, err)
		return c.text.b.JSONText()
	}
	return x
}

// badPattern refuses a pattern.
func (c *compiler) badPattern(at *value, keyword, p string, err error) {
	code := cfg.RegexInvalid
	var e *regex.SyntaxError
	switch {
	case errors.Is(err, regex.ErrFuel):
		code = cfg.SchemaTooComplex
	case errors.As(err, &e) && e.Unsupported:
		code = cfg.RegexUnsupported
	}
	c.refuse(code, at, keyword, "the pattern %q: %v", clip(p), err)
}

// properties is what properties, patternProperties and additionalProperties say together.
func (c *compiler) properties(v *value, track bool) *objects {
	b := c.text.b
	o := c.anyObject()
	rest := id(top)
	if k := v.get("additionalProperties"); k != nil {
		rest, o.open = c.schemaOf(k, false), true
	}
	o.cells = []cell{{b.JSONText(), rest}}
	seen := regex.Empty
	if k := v.get("patternProperties"); k != nil {
		if k.kind != kObject {
			c.refuse(cfg.SchemaInvalid, k, "patternProperties", "must be an object")
			return o
		}
		o.open = true
		// Each pattern cuts every cell in two. The rest is for keys that no pattern has.
		o.cells = []cell{{b.JSONText(), top}}
		none := b.JSONText()
		for i, p := range k.names {
			x := c.keyPattern(k.list[i], p)
			n := c.schemaOf(k.list[i], false)
			if c.bad() {
				return o
			}
			seen = b.Or(seen, x)
			none = c.without(none, x)
			out := c.without(b.JSONText(), x)
			cells := []cell{{x, n}}
			if !c.dead(out) {
				cells = append(cells, cell{out, top})
			}
			o.cells = c.andCells(o.cells, cells)
		}
		if rest != top && !c.dead(none) {
			cells := []cell{{none, rest}}
			if with := b.Minus(b.JSONText(), none); !c.dead(with) {
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
					if b.Match(c.keyPattern(patterns.list[j], p), regex.JSONSpell(name)) {
						n = c.and(n, c.schemaOf(patterns.list[j], false))
					}
				}
			}
			names = append(names, regex.JSONSpell(name))
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
			seen = b.JSONText()
		}
		o.seen = seen
	}
	return o
}

// keyPattern is the keys that a pattern of patternProperties is found in.
func (c *compiler) keyPattern(at *value, p string) regex.Ex {
	x, err := c.search(p)
	if err != nil {
		c.badPattern(at, "patternProperties", p, err)
		return c.text.b.JSONText()
	}
	return x
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
	b := c.text.b
	o := c.anyObject()
	switch {
	case s.strings == nil:
		o.cells[0].node = bottom
	case !c.text.isAll(s.strings):
		keys := c.text.of(s.strings)
		o.cells = []cell{{keys, top}, {c.without(b.JSONText(), keys), bottom}}
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
	r := &sets{}
	if !track {
		for _, s := range list {
			r = c.union(r, c.intersect(all, s))
		}
		return r
	}
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
	r := &sets{}
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
		r = c.union(r, one)
	}
	if c.bad() {
		return nil
	}
	return r
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
	b := c.text.b
	r := *all
	if k := v.get("unevaluatedProperties"); k != nil {
		n := c.schemaOf(k, false)
		r.objects = nil
		for _, x := range all.objects {
			o := c.anyObject()
			o.cells = []cell{{b.JSONText(), n}}
			if x.seen != regex.Empty {
				o.cells = []cell{{x.seen, top}}
				if left := c.without(b.JSONText(), x.seen); !c.dead(left) {
					o.cells = append(o.cells, cell{left, n})
				}
			}
			o.seen = b.JSONText()
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
