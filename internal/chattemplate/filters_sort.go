package chattemplate

import (
	"sort"
	"strings"
)

func extremeFilter(op string) filterFunc {
	return func(run *Budget, v Value, a *Args) (Value, error) {
		var p [2]Value
		if err := a.Bind(p[:], 0, "case_sensitive", "attribute"); err != nil {
			return Value{}, err
		}
		g, err := newGetter(p[1])
		if err != nil {
			return Value{}, err
		}
		g.fold = !p[0].Truth()
		items, err := run.Iterate(v)
		if err != nil {
			return Value{}, err
		}
		if len(items) == 0 {
			return Value{Kind: KindUndefined, Num: UndefMessage, Text: "No aggregated item, sequence was empty."}, nil
		}
		best := items[0]
		bestKey, err := g.get(run, best)
		if err != nil {
			return Value{}, err
		}
		for _, item := range items[1:] {
			key, err := g.get(run, item)
			if err != nil {
				return Value{}, err
			}
			better, err := run.Ordered(op, key, bestKey, 0)
			if err != nil {
				return Value{}, err
			}
			if better {
				best, bestKey = item, key
			}
		}
		return best, nil
	}
}

func filterSort(run *Budget, v Value, a *Args) (Value, error) {
	var p [3]Value
	if err := a.Bind(p[:], 0, "reverse", "case_sensitive", "attribute"); err != nil {
		return Value{}, err
	}
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	keys, err := sortKeys(run, items, p[2], !p[1].Truth())
	if err != nil {
		return Value{}, err
	}
	sorted, err := sortValues(run, items, keys, p[0].Truth())
	return NewList(sorted), err
}

func sortKeys(run *Budget, items []Value, attribute Value, fold bool) ([]Value, error) {
	attributes := []Value{attribute}
	if attribute.Kind == KindString {
		attributes = nil
		for _, one := range strings.Split(attribute.Text, ",") {
			attributes = append(attributes, Str(one))
		}
	}
	columns := make([][]Value, len(attributes))
	for i, one := range attributes {
		g, err := newGetter(one)
		if err != nil {
			return nil, err
		}
		g.fold = fold
		if columns[i], err = g.keys(run, items); err != nil {
			return nil, err
		}
	}
	if len(columns) == 1 {
		return columns[0], nil
	}
	if err := run.ChargeValues(len(items) * len(columns)); err != nil {
		return nil, err
	}
	keys := make([]Value, len(items))
	for i := range keys {
		row := make([]Value, len(columns))
		for j := range row {
			row[j] = columns[j][i]
		}
		keys[i] = NewList(row)
	}
	return keys, nil
}

func filterDictSort(run *Budget, v Value, a *Args) (Value, error) {
	var p [3]Value
	if err := a.Bind(p[:], 0, "case_sensitive", "by", "reverse"); err != nil {
		return Value{}, err
	}
	column := int64(0)
	if by := p[1]; by.Kind != KindMissing && by.Text != "key" {
		if by.Text != "value" {
			return Value{}, Errorf(`you can only sort by either "key" or "value"`)
		}
		column = 1
	}
	if v.IsUndefined() {
		return Value{}, v.UndefinedError()
	}
	if v.Kind != KindMap {
		return Value{}, Errorf("'%s' object has no attribute 'items'", v.TypeName())
	}
	v.Kind = KindItems
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	g := getter{parts: []Value{Int(column)}, fold: !p[0].Truth()}
	keys, err := g.keys(run, items)
	if err != nil {
		return Value{}, err
	}
	sorted, err := sortValues(run, items, keys, p[2].Truth())
	return NewList(sorted), err
}

func filterUnique(run *Budget, v Value, a *Args) (Value, error) {
	var p [2]Value
	if err := a.Bind(p[:], 0, "case_sensitive", "attribute"); err != nil {
		return Value{}, err
	}
	g, err := newGetter(p[1])
	if err != nil {
		return Value{}, err
	}
	g.fold = !p[0].Truth()
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	seen := map[HashKey]bool{}
	var out []Value
	for _, item := range items {
		key, err := g.get(run, item)
		if err != nil {
			return Value{}, err
		}
		if err := run.Work(len(key.Text)); err != nil {
			return Value{}, err
		}
		h, err := HashOf(key, 0)
		if err != nil {
			return Value{}, err
		}
		if !seen[h] {
			seen[h] = true
			out = append(out, item)
		}
	}
	return NewIterator("generator", out), run.ChargeValues(2 * len(out))
}

var groupNames = [2]string{"grouper", "list"}

func filterGroupBy(run *Budget, v Value, a *Args) (Value, error) {
	var p [3]Value
	if err := a.Bind(p[:], 1, "attribute", "default", "case_sensitive"); err != nil {
		return Value{}, err
	}
	g, err := newGetter(p[0])
	if err != nil {
		return Value{}, err
	}
	if !p[1].IsNone() {
		g.fallback = p[1]
	}
	g.fold = !p[2].Truth()
	items, err := run.Iterate(v)
	if err != nil {
		return Value{}, err
	}
	keys, err := g.keys(run, items)
	if err != nil {
		return Value{}, err
	}
	if items, err = sortValues(run, items, keys, false); err != nil {
		return Value{}, err
	}
	if keys, err = g.keys(run, items); err != nil {
		return Value{}, err
	}
	g.fold = false
	var groups []Value
	for i := 0; i < len(items); {
		end := i + 1
		for ; end < len(items); end++ {
			same, err := run.Equal(keys[i], keys[end])
			if err != nil {
				return Value{}, err
			}
			if !same {
				break
			}
		}
		// The group carries the first item's own key, not the folded one.
		key, err := g.get(run, items[i])
		if err != nil {
			return Value{}, err
		}
		group := NewTuple([]Value{key, NewList(items[i:end:end])})
		group.Text = groupNames[0]
		groups = append(groups, group)
		i = end
	}
	return run.NewList(groups)
}

// sortValues sorts a copy of items, stably, by their keys.
func sortValues(run *Budget, items, keys []Value, reverse bool) ([]Value, error) {
	if err := run.ChargeValues(2 * len(items)); err != nil {
		return nil, err
	}
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	var failed error
	sort.SliceStable(order, func(i, j int) bool {
		if failed != nil {
			return false
		}
		a, b := keys[order[i]], keys[order[j]]
		if reverse {
			a, b = b, a
		}
		less, err := run.Ordered("<", a, b, 0)
		if err != nil {
			failed = err
		}
		return less
	})
	sorted := make([]Value, len(items))
	for i, j := range order {
		sorted[i] = items[j]
	}
	return sorted, failed
}
