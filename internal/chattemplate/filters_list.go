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
	switch attribute.Kind {
	case KindMissing, KindNone:
		return getter{}, nil
	case KindInt:
		return getter{parts: []Value{attribute}}, nil
	case KindString:
		var g getter
		if len(attribute.Text) > 1000 {
			return g, Errorf("attribute path is too long")
		}
		for _, part := range strings.Split(attribute.Text, ".") {
			if AllRunes(part, func(r rune) bool { return r >= '0' && r <= '9' }) {
				if n, ok := pythonInt(Str(part), 10); ok {
					g.parts = append(g.parts, n)
					continue
				}
			}
			g.parts = append(g.parts, Str(part))
		}
		return g, nil
	}
	return getter{}, Errorf("attribute must be a str or an int, not %s", attribute.TypeName())
}

func (g *getter) get(run *Budget, v Value) (Value, error) {
	for _, part := range g.parts {
		var err error
		if v, err = Item(run, v, part); err != nil {
			return Value{}, err
		}
		if v.IsUndefined() && g.fallback.Kind != KindMissing {
			v = g.fallback
		}
	}
	if g.fold && v.Kind == KindString {
		return run.NewString(Lower(v.Text))
	}
	return v, run.Tick()
}

// keys applies the getter to every item.
func (g *getter) keys(run *Budget, items []Value) ([]Value, error) {
	if err := run.ChargeValues(len(items)); err != nil {
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

func filterList(run *Budget, v Value, a *Args) (Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return Value{}, err
	}
	items, err := run.Iterate(v)
	return NewList(items), err
}

func filterItems(run *Budget, v Value, a *Args) (Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return Value{}, err
	}
	if v.IsUndefined() {
		return NewIterator("generator", nil), nil
	}
	if v.Kind != KindMap {
		return Value{}, Errorf("can only get item pairs from a mapping")
	}
	v.Kind = KindItems
	items, err := run.Iterate(v)
	return NewIterator("generator", items), err
}

func filterFirst(run *Budget, v Value, a *Args) (Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return Value{}, err
	}
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	if len(items) == 0 {
		return Value{Kind: KindUndefined, Num: UndefMessage, Text: "No first item, sequence was empty."}, nil
	}
	return items[0], nil
}

func filterLast(run *Budget, v Value, a *Args) (Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return Value{}, err
	}
	if v.Kind == KindIter {
		return Value{}, Errorf("'%s' object is not reversible", v.TypeName())
	}
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	if len(items) == 0 {
		return Value{Kind: KindUndefined, Num: UndefMessage, Text: "No last item, sequence was empty."}, nil
	}
	return items[len(items)-1], nil
}

func filterReverse(run *Budget, v Value, a *Args) (Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return Value{}, err
	}
	if v.Kind == KindString {
		return Slice(run, v, [3]Value{None(), None(), Int(-1)})
	}
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	if err := run.ChargeValues(len(items)); err != nil {
		return Value{}, err
	}
	reversed := make([]Value, len(items))
	for i, item := range items {
		reversed[len(items)-1-i] = item
	}
	if v.Kind == KindIter {
		return NewList(reversed), nil
	}
	return NewIterator("list_reverseiterator", reversed), nil
}

func filterJoin(run *Budget, v Value, a *Args) (Value, error) {
	var p [2]Value
	if err := a.Bind(p[:], 0, "d", "attribute"); err != nil {
		return Value{}, err
	}
	g, err := newGetter(p[1])
	if err != nil {
		return Value{}, err
	}
	sep, err := run.ToString(p[0])
	if err != nil {
		return Value{}, err
	}
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	if err := run.ChargeValues(len(items)); err != nil {
		return Value{}, err
	}
	texts := make([]Value, len(items))
	for i, item := range items {
		if item, err = g.get(run, item); err != nil {
			return Value{}, err
		}
		if texts[i], err = run.ToString(item); err != nil {
			return Value{}, err
		}
	}
	return JoinTexts(run, texts, sep.Text)
}

func filterMap(run *Budget, v Value, a *Args) (Value, error) {
	apply, err := mapper(a)
	if err != nil || !v.Truth() {
		return NewIterator("generator", nil), err
	}
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	if err := run.ChargeValues(len(items)); err != nil {
		return Value{}, err
	}
	out := make([]Value, len(items))
	for i, item := range items {
		if out[i], err = apply(run, item); err != nil {
			return Value{}, err
		}
	}
	return NewIterator("generator", out), nil
}

// mapper makes the function of a map filter: an attribute, or another filter.
func mapper(a *Args) (func(*Budget, Value) (Value, error), error) {
	if len(a.Pos) == 0 {
		attribute, ok := a.Take("attribute")
		if !ok {
			return nil, Errorf("map requires a filter argument")
		}
		g, err := newGetter(attribute)
		if err != nil {
			return nil, err
		}
		if fallback, ok := a.Take("default"); ok && !fallback.IsNone() {
			g.fallback = fallback
		}
		return func(run *Budget, v Value) (Value, error) { return g.get(run, v) }, a.NoKeywords()
	}
	name := a.Pos[0]
	fn := filters[name.Text]
	if name.Kind != KindString || fn == nil {
		return nil, Errorf("no filter named '%s'", name.String())
	}
	rest := Args{Pos: a.Pos[1:], Keywords: a.Keywords}
	return func(run *Budget, v Value) (Value, error) {
		if err := run.Work(v.Weight()); err != nil {
			return Value{}, err
		}
		args := rest
		return fn(run, v, &args)
	}, nil
}

// selectFilter makes select, reject, selectattr and rejectattr.
func selectFilter(keep, byAttribute bool) filterFunc {
	return func(run *Budget, v Value, a *Args) (Value, error) {
		if !v.Truth() {
			return NewIterator("generator", nil), nil
		}
		args := Args{Pos: a.Pos, Keywords: a.Keywords}
		var g getter
		if byAttribute {
			if len(args.Pos) == 0 {
				return Value{}, Errorf("missing parameter for attribute name")
			}
			var err error
			if g, err = newGetter(args.Pos[0]); err != nil {
				return Value{}, err
			}
			args.Pos = args.Pos[1:]
		}
		test := func(_ *Budget, v Value, _ *Args) (bool, error) { return v.Truth(), nil }
		if len(args.Pos) > 0 {
			name := args.Pos[0]
			if name.Kind != KindString || tests[name.Text] == nil {
				return Value{}, Errorf("no test named '%s'", name.String())
			}
			test = tests[name.Text]
			args.Pos = args.Pos[1:]
		}
		items, err := run.Iterate(v)
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
		return NewIterator("generator", out), run.ChargeValues(len(out))
	}
}

// extremeFilter makes min and max; op tells whether a later item replaces the best so far.
// sortKeys reads the attribute, or the several attributes named with commas, that items are sorted by.
// groupNames are the fields of the named tuples that groupby makes.
// groupField reads a field of a pair made by groupby, which is marked by the text it carries.
func filterSum(run *Budget, v Value, a *Args) (Value, error) {
	var p [2]Value
	if err := a.Bind(p[:], 0, "attribute", "start"); err != nil {
		return Value{}, err
	}
	g, err := newGetter(p[0])
	if err != nil {
		return Value{}, err
	}
	sum := p[1]
	if sum.Kind == KindMissing {
		sum = Int(0)
	}
	if sum.Kind == KindString {
		return Value{}, Errorf("sum() can't sum strings")
	}
	items, err := run.Iterate(v)
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

func filterBatch(run *Budget, v Value, a *Args) (Value, error) {
	var p [2]Value
	if err := a.Bind(p[:], 1, "linecount", "fill_with"); err != nil {
		return Value{}, err
	}
	size, err := WantInt(p[0], "linecount", 0)
	if err != nil {
		return Value{}, err
	}
	if size <= 0 {
		return Value{}, Errorf("linecount must be positive")
	}
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	if err := run.ChargeValues(2 * len(items)); err != nil {
		return Value{}, err
	}
	var batches []Value
	for len(items) > 0 {
		n := min(size, len(items))
		batch := items[:n:n]
		items = items[n:]
		if fill := p[1]; n < size && fill.Kind != KindMissing && !fill.IsNone() {
			if err := run.ChargeValues(size); err != nil {
				return Value{}, err
			}
			for len(batch) < size {
				batch = append(batch, fill)
			}
		}
		batches = append(batches, NewList(batch))
	}
	return NewIterator("generator", batches), nil
}

func filterSlice(run *Budget, v Value, a *Args) (Value, error) {
	var p [2]Value
	if err := a.Bind(p[:], 1, "slices", "fill_with"); err != nil {
		return Value{}, err
	}
	slices, err := WantInt(p[0], "slices", 0)
	if err != nil {
		return Value{}, err
	}
	if slices <= 0 {
		return Value{}, Errorf("slices must be positive")
	}
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	if err := run.ChargeValues(slices); err != nil {
		return Value{}, err
	}
	if err := run.ChargeValues(2*len(items) + 2*slices); err != nil {
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
		if fill := p[1]; i >= extra && fill.Kind != KindMissing && !fill.IsNone() {
			part = append(part, fill)
		}
		out[i] = NewList(part)
	}
	return NewIterator("generator", out), nil
}
