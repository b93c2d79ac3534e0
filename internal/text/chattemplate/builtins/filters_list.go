package builtins

import (
	"strings"

	"github.com/eagleray/eagleray/internal/text/chattemplate/ops"
	"github.com/eagleray/eagleray/internal/text/chattemplate/pytext"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// getter reads an attribute path such as "function.name" from items, as jinja2's make_attrgetter
// does.
type getter struct {
	parts    []values.Value
	fallback values.Value // KindMissing if none
	fold     bool         // texts are compared without regard to case
}

func newGetter(attribute values.Value) (getter, error) {
	switch attribute.Kind {
	case values.KindMissing, values.KindNone:
		return getter{}, nil
	case values.KindInt:
		return getter{parts: []values.Value{attribute}}, nil
	case values.KindString:
		var g getter
		if len(attribute.Text) > 1000 {
			return g, values.Errorf("attribute path is too long")
		}
		for _, part := range strings.Split(attribute.Text, ".") {
			if pytext.AllRunes(part, func(r rune) bool { return r >= '0' && r <= '9' }) {
				if n, ok := pythonInt(values.Str(part), 10); ok {
					g.parts = append(g.parts, n)
					continue
				}
			}
			g.parts = append(g.parts, values.Str(part))
		}
		return g, nil
	}
	return getter{}, values.Errorf("attribute must be a str or an int, not %s",
		attribute.TypeName())
}

func (g *getter) get(run *values.Budget, v values.Value) (values.Value, error) {
	for _, part := range g.parts {
		var err error
		if v, err = ops.Item(run, v, part); err != nil {
			return values.Value{}, err
		}
		if v.IsUndefined() && g.fallback.Kind != values.KindMissing {
			v = g.fallback
		}
	}
	if g.fold && v.Kind == values.KindString {
		return run.NewString(pytext.Lower(v.Text))
	}
	return v, run.Tick()
}

// keys applies the getter to every item.
func (g *getter) keys(run *values.Budget, items []values.Value) ([]values.Value, error) {
	if err := run.ChargeValues(len(items)); err != nil {
		return nil, err
	}
	keys := make([]values.Value, len(items))
	for i, v := range items {
		var err error
		if keys[i], err = g.get(run, v); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func filterList(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return values.Value{}, err
	}
	items, err := run.Iterate(v)
	return values.NewList(items), err
}

func filterItems(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return values.Value{}, err
	}
	if v.IsUndefined() {
		return values.NewIterator("generator", nil), nil
	}
	if v.Kind != values.KindMap {
		return values.Value{}, values.Errorf("can only get item pairs from a mapping")
	}
	v.Kind = values.KindItems
	items, err := run.Iterate(v)
	return values.NewIterator("generator", items), err
}

func filterFirst(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return values.Value{}, err
	}
	items, err := run.Iterate(v)
	if err != nil {
		return values.Value{}, err
	}
	if len(items) == 0 {
		return values.Value{Kind: values.KindUndefined, Num: values.UndefMessage,
			Text: "No first item, sequence was empty."}, nil
	}
	return items[0], nil
}

func filterLast(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return values.Value{}, err
	}
	if v.Kind == values.KindIter {
		return values.Value{}, values.Errorf("'%s' object is not reversible", v.TypeName())
	}
	items, err := run.Iterate(v)
	if err != nil {
		return values.Value{}, err
	}
	if len(items) == 0 {
		return values.Value{Kind: values.KindUndefined, Num: values.UndefMessage,
			Text: "No last item, sequence was empty."}, nil
	}
	return items[len(items)-1], nil
}

func filterReverse(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return values.Value{}, err
	}
	if v.Kind == values.KindString {
		return ops.Slice(run, v, [3]values.Value{values.None(), values.None(), values.Int(-1)})
	}
	items, err := run.Iterate(v)
	if err != nil {
		return values.Value{}, err
	}
	if err := run.ChargeValues(len(items)); err != nil {
		return values.Value{}, err
	}
	reversed := make([]values.Value, len(items))
	for i, item := range items {
		reversed[len(items)-1-i] = item
	}
	if v.Kind == values.KindIter {
		return values.NewList(reversed), nil
	}
	return values.NewIterator("list_reverseiterator", reversed), nil
}

func filterJoin(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [2]values.Value
	if err := a.Bind(p[:], 0, "d", "attribute"); err != nil {
		return values.Value{}, err
	}
	g, err := newGetter(p[1])
	if err != nil {
		return values.Value{}, err
	}
	sep, err := run.ToString(p[0])
	if err != nil {
		return values.Value{}, err
	}
	items, err := run.Iterate(v)
	if err != nil {
		return values.Value{}, err
	}
	if err := run.ChargeValues(len(items)); err != nil {
		return values.Value{}, err
	}
	texts := make([]values.Value, len(items))
	for i, item := range items {
		if item, err = g.get(run, item); err != nil {
			return values.Value{}, err
		}
		if texts[i], err = run.ToString(item); err != nil {
			return values.Value{}, err
		}
	}
	return ops.JoinTexts(run, texts, sep.Text)
}

func filterMap(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	apply, err := mapper(a)
	if err != nil || !v.Truth() {
		return values.NewIterator("generator", nil), err
	}
	items, err := run.Iterate(v)
	if err != nil {
		return values.Value{}, err
	}
	if err := run.ChargeValues(len(items)); err != nil {
		return values.Value{}, err
	}
	out := make([]values.Value, len(items))
	for i, item := range items {
		if out[i], err = apply(run, item); err != nil {
			return values.Value{}, err
		}
	}
	return values.NewIterator("generator", out), nil
}

// mapper makes the function of a map filter: an attribute, or another filter.
func mapper(a *values.Args) (func(*values.Budget, values.Value) (values.Value, error), error) {
	if len(a.Pos) == 0 {
		attribute, ok := a.Pop("attribute")
		if !ok {
			return nil, values.Errorf("map requires a filter argument")
		}
		g, err := newGetter(attribute)
		if err != nil {
			return nil, err
		}
		if fallback, ok := a.Pop("default"); ok && !fallback.IsNone() {
			g.fallback = fallback
		}
		return g.get, a.NoKeywords()
	}
	name := a.Pos[0]
	fn := filters[name.Text]
	if name.Kind != values.KindString || fn == nil {
		return nil, values.Errorf("no filter named '%s'", name.String())
	}
	rest := values.Args{Pos: a.Pos[1:], Keywords: a.Keywords}
	return func(run *values.Budget, v values.Value) (values.Value, error) {
		if err := run.Work(v.Weight()); err != nil {
			return values.Value{}, err
		}
		args := rest
		return fn(run, v, &args)
	}, nil
}

// selectFilter makes select, reject, selectattr and rejectattr.
func selectFilter(keep, byAttribute bool) values.Filter {
	return func(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
		if !v.Truth() {
			return values.NewIterator("generator", nil), nil
		}
		args := values.Args{Pos: a.Pos, Keywords: a.Keywords}
		var g getter
		if byAttribute {
			if len(args.Pos) == 0 {
				return values.Value{}, values.Errorf("missing parameter for attribute name")
			}
			var err error
			if g, err = newGetter(args.Pos[0]); err != nil {
				return values.Value{}, err
			}
			args.Pos = args.Pos[1:]
		}
		test := func(_ *values.Budget, v values.Value, _ *values.Args) (bool, error) {
			return v.Truth(), nil
		}
		if len(args.Pos) > 0 {
			name := args.Pos[0]
			if name.Kind != values.KindString || tests[name.Text] == nil {
				return values.Value{}, values.Errorf("no test named '%s'", name.String())
			}
			test = tests[name.Text]
			args.Pos = args.Pos[1:]
		}
		items, err := run.Iterate(v)
		if err != nil {
			return values.Value{}, err
		}
		var out []values.Value
		for _, item := range items {
			key, err := g.get(run, item)
			if err != nil {
				return values.Value{}, err
			}
			ok, err := test(run, key, &args)
			if err != nil {
				return values.Value{}, err
			}
			if ok == keep {
				out = append(out, item)
			}
		}
		return values.NewIterator("generator", out), run.ChargeValues(len(out))
	}
}

func filterSum(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [2]values.Value
	if err := a.Bind(p[:], 0, "attribute", "start"); err != nil {
		return values.Value{}, err
	}
	g, err := newGetter(p[0])
	if err != nil {
		return values.Value{}, err
	}
	sum := p[1]
	if sum.Kind == values.KindMissing {
		sum = values.Int(0)
	}
	if sum.Kind == values.KindString {
		return values.Value{}, values.Errorf("sum() can't sum strings")
	}
	items, err := run.Iterate(v)
	if err != nil {
		return values.Value{}, err
	}
	for _, item := range items {
		if item, err = g.get(run, item); err != nil {
			return values.Value{}, err
		}
		if sum, err = ops.Arith(run, "+", sum, item); err != nil {
			return values.Value{}, err
		}
	}
	return sum, nil
}

// portions are the arguments of batch and slice: a number of this name, and what fills up the last
// ones, if anything does. The items are those that are divided.
func portions(run *values.Budget, v values.Value, a *values.Args, name string) (n int,
	items []values.Value, fill values.Value, fills bool, err error) {
	var p [2]values.Value
	if err = a.Bind(p[:], 1, name, "fill_with"); err != nil {
		return
	}
	if n, err = values.WantInt(p[0], name, 0); err != nil {
		return
	}
	if n <= 0 {
		err = values.Errorf("%s must be positive", name)
		return
	}
	items, err = run.Iterate(v)
	return n, items, p[1], p[1].Kind != values.KindMissing && !p[1].IsNone(), err
}

func filterBatch(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	size, items, fill, fills, err := portions(run, v, a, "linecount")
	if err != nil {
		return values.Value{}, err
	}
	if err := run.ChargeValues(2 * len(items)); err != nil {
		return values.Value{}, err
	}
	var batches []values.Value
	for len(items) > 0 {
		n := min(size, len(items))
		batch := items[:n:n]
		items = items[n:]
		if n < size && fills {
			if err := run.ChargeValues(size); err != nil {
				return values.Value{}, err
			}
			for len(batch) < size {
				batch = append(batch, fill)
			}
		}
		batches = append(batches, values.NewList(batch))
	}
	return values.NewIterator("generator", batches), nil
}

func filterSlice(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	slices, items, fill, fills, err := portions(run, v, a, "slices")
	if err != nil {
		return values.Value{}, err
	}
	if err := run.ChargeValues(slices); err != nil {
		return values.Value{}, err
	}
	if err := run.ChargeValues(2*len(items) + 2*slices); err != nil {
		return values.Value{}, err
	}
	each, extra := len(items)/slices, len(items)%slices
	out := make([]values.Value, slices)
	for i := range out {
		n := each
		if i < extra {
			n++
		}
		part := items[:n:n]
		items = items[n:]
		if i >= extra && fills {
			part = append(part, fill)
		}
		out[i] = values.NewList(part)
	}
	return values.NewIterator("generator", out), nil
}
