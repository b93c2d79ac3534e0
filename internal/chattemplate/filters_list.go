package chattemplate

import (
	"strings"
)

// getter reads an attribute path such as "function.name" from items, as jinja2's make_attrgetter does.
type getter struct {
	parts    []Value
	fallback Value // kindMissing if none
	fold     bool  // texts are compared without regard to case
}

func newGetter(attribute Value) (getter, error) {
	switch attribute.kind {
	case kindMissing, kindNone:
		return getter{}, nil
	case kindInt:
		return getter{parts: []Value{attribute}}, nil
	case kindString:
		var g getter
		if len(attribute.str) > 1000 {
			return g, errorf("attribute path is too long")
		}
		for _, part := range strings.Split(attribute.str, ".") {
			if allRunes(part, func(r rune) bool { return r >= '0' && r <= '9' }) {
				if n, ok := pythonInt(strValue(part), 10); ok {
					g.parts = append(g.parts, n)
					continue
				}
			}
			g.parts = append(g.parts, strValue(part))
		}
		return g, nil
	}
	return getter{}, errorf("attribute must be a str or an int, not %s", attribute.typeName())
}

func (g *getter) get(run *budget, v Value) (Value, error) {
	for _, part := range g.parts {
		var err error
		if v, err = Item(run, v, part); err != nil {
			return Value{}, err
		}
		if v.IsUndefined() && g.fallback.kind != kindMissing {
			v = g.fallback
		}
	}
	if g.fold && v.kind == kindString {
		return run.newString(lower(v.str))
	}
	return v, run.tick()
}

// keys applies the getter to every item.
func (g *getter) keys(run *budget, items []Value) ([]Value, error) {
	if err := run.chargeValues(len(items)); err != nil {
		return nil, err
	}
	keys := make([]Value, len(items))
	for i, v := range items {
		var err error
		if keys[i], err = g.get(run, v); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func filterList(run *budget, v Value, a *callArgs) (Value, error) {
	if err := a.bind(nil, 0); err != nil {
		return Value{}, err
	}
	items, err := run.iterate(v)
	return listValue(items), err
}

func filterItems(run *budget, v Value, a *callArgs) (Value, error) {
	if err := a.bind(nil, 0); err != nil {
		return Value{}, err
	}
	if v.IsUndefined() {
		return iterValue("generator", nil), nil
	}
	if v.kind != kindMap {
		return Value{}, errorf("can only get item pairs from a mapping")
	}
	v.kind = kindItems
	items, err := run.iterate(v)
	return iterValue("generator", items), err
}

func filterFirst(run *budget, v Value, a *callArgs) (Value, error) {
	if err := a.bind(nil, 0); err != nil {
		return Value{}, err
	}
	items, err := run.iterate(v)
	if err != nil {
		return Value{}, err
	}
	if len(items) == 0 {
		return Value{kind: kindUndefined, num: undefMessage, str: "No first item, sequence was empty."}, nil
	}
	return items[0], nil
}

func filterLast(run *budget, v Value, a *callArgs) (Value, error) {
	if err := a.bind(nil, 0); err != nil {
		return Value{}, err
	}
	if v.kind == kindIter {
		return Value{}, errorf("'%s' object is not reversible", v.typeName())
	}
	items, err := run.iterate(v)
	if err != nil {
		return Value{}, err
	}
	if len(items) == 0 {
		return Value{kind: kindUndefined, num: undefMessage, str: "No last item, sequence was empty."}, nil
	}
	return items[len(items)-1], nil
}

func filterReverse(run *budget, v Value, a *callArgs) (Value, error) {
	if err := a.bind(nil, 0); err != nil {
		return Value{}, err
	}
	if v.kind == kindString {
		return Slice(run, v, [3]Value{None(), None(), Int(-1)})
	}
	items, err := run.iterate(v)
	if err != nil {
		return Value{}, err
	}
	if err := run.chargeValues(len(items)); err != nil {
		return Value{}, err
	}
	reversed := make([]Value, len(items))
	for i, item := range items {
		reversed[len(items)-1-i] = item
	}
	if v.kind == kindIter {
		return listValue(reversed), nil
	}
	return iterValue("list_reverseiterator", reversed), nil
}

func filterJoin(run *budget, v Value, a *callArgs) (Value, error) {
	var p [2]Value
	if err := a.bind(p[:], 0, "d", "attribute"); err != nil {
		return Value{}, err
	}
	g, err := newGetter(p[1])
	if err != nil {
		return Value{}, err
	}
	sep, err := run.toString(p[0])
	if err != nil {
		return Value{}, err
	}
	items, err := run.iterate(v)
	if err != nil {
		return Value{}, err
	}
	if err := run.chargeValues(len(items)); err != nil {
		return Value{}, err
	}
	texts := make([]Value, len(items))
	for i, item := range items {
		if item, err = g.get(run, item); err != nil {
			return Value{}, err
		}
		if texts[i], err = run.toString(item); err != nil {
			return Value{}, err
		}
	}
	return JoinTexts(run, texts, sep.str)
}

func filterMap(run *budget, v Value, a *callArgs) (Value, error) {
	apply, err := mapper(a)
	if err != nil || !v.truth() {
		return iterValue("generator", nil), err
	}
	items, err := run.iterate(v)
	if err != nil {
		return Value{}, err
	}
	if err := run.chargeValues(len(items)); err != nil {
		return Value{}, err
	}
	out := make([]Value, len(items))
	for i, item := range items {
		if out[i], err = apply(run, item); err != nil {
			return Value{}, err
		}
	}
	return iterValue("generator", out), nil
}

// mapper makes the function of a map filter: an attribute, or another filter.
func mapper(a *callArgs) (func(*budget, Value) (Value, error), error) {
	if len(a.pos) == 0 {
		attribute, ok := a.take("attribute")
		if !ok {
			return nil, errorf("map requires a filter argument")
		}
		g, err := newGetter(attribute)
		if err != nil {
			return nil, err
		}
		if fallback, ok := a.take("default"); ok && !fallback.IsNone() {
			g.fallback = fallback
		}
		return func(run *budget, v Value) (Value, error) { return g.get(run, v) }, a.noKeywords()
	}
	name := a.pos[0]
	fn := filters[name.str]
	if name.kind != kindString || fn == nil {
		return nil, errorf("no filter named '%s'", name.String())
	}
	rest := callArgs{pos: a.pos[1:], kw: a.kw}
	return func(run *budget, v Value) (Value, error) {
		if err := run.work(v.weight()); err != nil {
			return Value{}, err
		}
		args := rest
		return fn(run, v, &args)
	}, nil
}

// selectFilter makes select, reject, selectattr and rejectattr.
func selectFilter(keep, byAttribute bool) filterFunc {
	return func(run *budget, v Value, a *callArgs) (Value, error) {
		if !v.truth() {
			return iterValue("generator", nil), nil
		}
		args := callArgs{pos: a.pos, kw: a.kw}
		var g getter
		if byAttribute {
			if len(args.pos) == 0 {
				return Value{}, errorf("missing parameter for attribute name")
			}
			var err error
			if g, err = newGetter(args.pos[0]); err != nil {
				return Value{}, err
			}
			args.pos = args.pos[1:]
		}
		test := func(_ *budget, v Value, _ *callArgs) (bool, error) { return v.truth(), nil }
		if len(args.pos) > 0 {
			name := args.pos[0]
			if name.kind != kindString || tests[name.str] == nil {
				return Value{}, errorf("no test named '%s'", name.String())
			}
			test = tests[name.str]
			args.pos = args.pos[1:]
		}
		items, err := run.iterate(v)
		if err != nil {
			return Value{}, err
		}
		var out []Value
		for _, item := range items {
			key, err := g.get(run, item)
			if err != nil {
				return Value{}, err
			}
			ok, err := test(run, key, &args)
			if err != nil {
				return Value{}, err
			}
			if ok == keep {
				out = append(out, item)
			}
		}
		return iterValue("generator", out), run.chargeValues(len(out))
	}
}

// extremeFilter makes min and max; op tells whether a later item replaces the best so far.
// sortKeys reads the attribute, or the several attributes named with commas, that items are sorted by.
// groupNames are the fields of the named tuples that groupby makes.
// groupField reads a field of a pair made by groupby, which is marked by the text it carries.
func filterSum(run *budget, v Value, a *callArgs) (Value, error) {
	var p [2]Value
	if err := a.bind(p[:], 0, "attribute", "start"); err != nil {
		return Value{}, err
	}
	g, err := newGetter(p[0])
	if err != nil {
		return Value{}, err
	}
	sum := p[1]
	if sum.kind == kindMissing {
		sum = Int(0)
	}
	if sum.kind == kindString {
		return Value{}, errorf("sum() can't sum strings")
	}
	items, err := run.iterate(v)
	if err != nil {
		return Value{}, err
	}
	for _, item := range items {
		if item, err = g.get(run, item); err != nil {
			return Value{}, err
		}
		if sum, err = Arith(run, "+", sum, item); err != nil {
			return Value{}, err
		}
	}
	return sum, nil
}

func filterBatch(run *budget, v Value, a *callArgs) (Value, error) {
	var p [2]Value
	if err := a.bind(p[:], 1, "linecount", "fill_with"); err != nil {
		return Value{}, err
	}
	size, err := wantInt(p[0], "linecount", 0)
	if err != nil {
		return Value{}, err
	}
	if size <= 0 {
		return Value{}, errorf("linecount must be positive")
	}
	items, err := run.iterate(v)
	if err != nil {
		return Value{}, err
	}
	if err := run.chargeValues(2 * len(items)); err != nil {
		return Value{}, err
	}
	var batches []Value
	for len(items) > 0 {
		n := min(size, len(items))
		batch := items[:n:n]
		items = items[n:]
		if fill := p[1]; n < size && fill.kind != kindMissing && !fill.IsNone() {
			if err := run.chargeValues(size); err != nil {
				return Value{}, err
			}
			for len(batch) < size {
				batch = append(batch, fill)
			}
		}
		batches = append(batches, listValue(batch))
	}
	return iterValue("generator", batches), nil
}

func filterSlice(run *budget, v Value, a *callArgs) (Value, error) {
	var p [2]Value
	if err := a.bind(p[:], 1, "slices", "fill_with"); err != nil {
		return Value{}, err
	}
	slices, err := wantInt(p[0], "slices", 0)
	if err != nil {
		return Value{}, err
	}
	if slices <= 0 {
		return Value{}, errorf("slices must be positive")
	}
	items, err := run.iterate(v)
	if err != nil {
		return Value{}, err
	}
	if err := run.chargeValues(slices); err != nil {
		return Value{}, err
	}
	if err := run.chargeValues(2*len(items) + 2*slices); err != nil {
		return Value{}, err
	}
	each, extra := len(items)/slices, len(items)%slices
	out := make([]Value, slices)
	for i := range out {
		n := each
		if i < extra {
			n++
		}
		part := items[:n:n]
		items = items[n:]
		if fill := p[1]; i >= extra && fill.kind != kindMissing && !fill.IsNone() {
			part = append(part, fill)
		}
		out[i] = listValue(part)
	}
	return iterValue("generator", out), nil
}
