package schema

import (
	"errors"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

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
	rest := []*sets{s}
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
			rest = append(rest, c.single(x))
		}
		if c.bad() {
			return s
		}
	}
	r := *c.union(rest...)
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
		s = c.text.and(s, &textSet{ex: c.pattern(k, "pattern", k.text)})
	}
	if k := v.get("format"); k != nil && k.kind == kString {
		if x, known := c.format(k.text); known {
			s = c.text.and(s, &textSet{ex: x})
		}
	}
	return s
}

// pattern is the keys or strings in which a regular expression is found.
func (c *compiler) pattern(at *value, keyword, p string) regex.Ex {
	x, err := c.search(p)
	if err != nil {
		c.badPattern(at, keyword, p, err)
		return c.text.any()
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
