package schema

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// fewLevels bounds how deep arrays and objects are whose values are listed.
const fewLevels = 8

// listed is the values of a schema, each once, if they are at most anyOrderBits. Values that are
// equal, as JSON Schema says it, have one key.
func (c *compiler) listed(x id, depth int) (values map[string]*value, ok bool) {
	if x == top || depth == 0 {
		return nil, false
	}
	s := c.resolve(x)
	if s == nil {
		return nil, false
	}
	out := map[string]*value{}
	add := func(v *value) {
		c.spend(1)
		if key := v.canonical(); out[key] == nil {
			out[key] = v
		}
	}
	for kind, is := range map[kind]bool{kNull: s.null, kTrue: s.yes, kFalse: s.no} {
		if is {
			add(&value{kind: kind})
		}
	}
	if s.strings != nil {
		among := s.strings.among
		if !s.strings.listed {
			if among, ok = c.text.few(s.strings); !ok {
				return nil, false
			}
		}
		if len(among) > anyOrderBits {
			return nil, false
		}
		for _, text := range among {
			add(&value{kind: kString, text: text})
		}
	}
	for _, n := range s.numbers {
		if !n.listed || len(n.among) > anyOrderBits {
			return nil, false
		}
		for _, l := range n.among {
			add(&value{kind: kNumber, text: l.text})
		}
	}
	for _, a := range s.arrays {
		if !c.listArrays(a, depth, add) || len(out) > anyOrderBits {
			return nil, false
		}
	}
	for _, o := range s.objects {
		if !c.listObjects(o, depth, add) || len(out) > anyOrderBits {
			return nil, false
		}
	}
	return out, len(out) <= anyOrderBits
}

// listArrays adds the arrays of a set, and says whether they are few.
func (c *compiler) listArrays(a *arrays, depth int, add func(v *value)) bool {
	if a.most == regex.Inf || len(a.contains) > 0 || a.unique {
		return false
	}
	lists := [][]*value{nil}
	for i := 0; ; i++ {
		if i >= a.least {
			for _, l := range lists {
				add(&value{kind: kArray, list: l})
			}
		}
		if i == a.most {
			return true
		}
		items, ok := c.listed(a.item(i), depth-1)
		if !ok || len(items)*len(lists) > anyOrderBits {
			return false
		}
		var longer [][]*value
		for _, l := range lists {
			for _, key := range slices.Sorted(maps.Keys(items)) {
				longer = append(longer, append(slices.Clone(l), items[key]))
			}
		}
		lists = longer
	}
}

// listObjects adds the objects of a set, and says whether they are few.
func (c *compiler) listObjects(o *objects, depth int, add func(v *value)) bool {
	if len(o.exists) > 0 || slices.ContainsFunc(o.cells, func(x cell) bool {
		return x.node != bottom && !c.dead(x.keys) && !c.empty(x.node)
	}) {
		return false
	}
	all := []*value{{kind: kObject}}
	for _, p := range o.props {
		if p.node == bottom {
			continue
		}
		values, ok := c.listed(p.node, depth-1)
		if !ok || (len(values)+1)*len(all) > 4*anyOrderBits {
			return false
		}
		var more []*value
		for _, v := range all {
			if !p.required {
				more = append(more, v)
			}
			for _, key := range slices.Sorted(maps.Keys(values)) {
				more = append(more, &value{kind: kObject,
					names: append(slices.Clone(v.names), p.name),
					list:  append(slices.Clone(v.list), values[key])})
			}
		}
		all = more
	}
	for _, v := range all {
		if n := len(v.list); n >= o.least && (o.most == regex.Inf || n <= o.most) {
			add(v)
		}
	}
	return true
}

// canonical is a text that equal values have in common.
func (v *value) canonical() string {
	switch v.kind {
	case kNull:
		return "null"
	case kTrue:
		return "true"
	case kFalse:
		return "false"
	case kNumber:
		if d, ok := parseDecimal(v.text); ok {
			return d.String()
		}
		return v.text
	case kString:
		return string(quote(v.text))
	}
	var parts []string
	for i, x := range v.list {
		text := x.canonical()
		if v.kind == kObject {
			text = string(quote(v.names[i])) + ":" + text
		}
		parts = append(parts, text)
	}
	if v.kind == kArray {
		return "[" + strings.Join(parts, ",") + "]"
	}
	slices.Sort(parts)
	return "{" + strings.Join(parts, ",") + "}"
}

func quote(s string) []byte {
	text, _ := json.Marshal(s) // a string of the schema's text always is one
	return text
}

// choice is what may stand at a place of an array: a value that is told apart from others by its
// bit, or any of a schema (bit 0).
type choice struct {
	node id
	bit  uint64
}

// places are the choices at each place of an array of distinct items; the last is every place
// behind the prefix. later has the bits that are met at a place or behind it.
type places struct {
	choices [][]choice
	later   []uint64
}

func (p *places) at(i int) ([]choice, uint64) {
	i = min(i, len(p.choices)-1)
	return p.choices[i], p.later[i]
}

// distinct makes the choices of an array of distinct items. Items that are not of few values are
// told apart by the places at which they stand, if those have no value in common.
func (c *compiler) distinct(a *arrays) (*places, bool) {
	nodes := append(slices.Clone(a.prefix), a.rest)
	p := &places{choices: make([][]choice, len(nodes)), later: make([]uint64, len(nodes))}
	bits := map[string]uint64{}
	known := map[string]id{}
	for i, x := range nodes {
		if x == bottom {
			continue
		}
		values, ok := c.listed(x, fewLevels)
		if !ok {
			again := i == len(a.prefix) && (a.most == regex.Inf || a.most > i+1)
			for j, y := range nodes {
				c.spend(1)
				again = again || i != j && y != bottom && !c.empty(c.and(x, y))
			}
			if again || c.bad() {
				return nil, false
			}
			p.choices[i] = []choice{{node: x}}
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if bits[key] == 0 {
				bits[key], known[key] = 1<<len(bits), c.literal(values[key])
			}
			p.choices[i] = append(p.choices[i], choice{known[key], bits[key]})
		}
		if len(bits) > anyOrderBits {
			return nil, false
		}
	}
	all := uint64(0)
	for i, list := range slices.Backward(p.choices) {
		for _, x := range list {
			all |= x.bit
		}
		p.later[i] = all
	}
	return p, true
}
