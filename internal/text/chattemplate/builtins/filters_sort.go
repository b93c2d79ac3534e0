package builtins

import (
	"sort"
	"strings"

	"github.com/eagleray/eagleray/internal/text/chattemplate/ops"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// itemsBy takes the arguments case_sensitive and attribute of a filter: the items of v, and what
// they are compared by.
func itemsBy(run *values.Budget, v values.Value, a *values.Args) (getter, []values.Value, error) {
	var p [2]values.Value
	if err := a.Bind(p[:], 0, "case_sensitive", "attribute"); err != nil {
		return getter{}, nil, err
	}
	g, err := newGetter(p[1])
	if err != nil {
		return getter{}, nil, err
	}
	g.fold = !p[0].Truth()
	items, err := run.Iterate(v)
	return g, items, err
}

// extremeFilter makes min and max; op tells whether a later item replaces the best so far.
func extremeFilter(op string) values.Filter {
	return func(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
		g, items, err := itemsBy(run, v, a)
		if err != nil {
			return values.Value{}, err
		}
		if len(items) == 0 {
			return values.Value{Kind: values.KindUndefined, Num: values.UndefMessage,
				Text: "No aggregated item, sequence was empty."}, nil
		}
		best := items[0]
		bestKey, err := g.get(run, best)
		if err != nil {
			return values.Value{}, err
		}
		for _, item := range items[1:] {
			key, err := g.get(run, item)
			if err != nil {
				return values.Value{}, err
			}
			better, err := run.Ordered(op, key, bestKey, 0)
			if err != nil {
				return values.Value{}, err
			}
			if better {
				best, bestKey = item, key
			}
		}
		return best, nil
	}
}

func filterSort(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [3]values.Value
	if err := a.Bind(p[:], 0, "reverse", "case_sensitive", "attribute"); err != nil {
		return values.Value{}, err
	}
	items, err := run.Iterate(v)
	if err != nil {
		return values.Value{}, err
	}
	keys, err := sortKeys(run, items, p[2], !p[1].Truth())
	if err != nil {
		return values.Value{}, err
	}
	sorted, err := sortValues(run, items, keys, p[0].Truth())
	return values.NewList(sorted), err
}

// sortKeys reads the attribute, or the several attributes named with commas, that items are sorted
// by. A key is a list even of one: equal values that have no order, such as None, may then meet.
func sortKeys(run *values.Budget, items []values.Value, attribute values.Value,
	fold bool) ([]values.Value, error) {
	attributes := []values.Value{attribute}
	if attribute.Kind == values.KindString {
		attributes = nil
		for _, one := range strings.Split(attribute.Text, ",") {
			attributes = append(attributes, values.Str(one))
		}
	}
	columns := make([][]values.Value, len(attributes))
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
	if err := run.ChargeValues(len(items) * len(columns)); err != nil {
		return nil, err
	}
	keys := make([]values.Value, len(items))
	for i := range keys {
		row := make([]values.Value, len(columns))
		for j := range row {
			row[j] = columns[j][i]
		}
		keys[i] = values.NewList(row)
	}
	return keys, nil
}

func filterDictSort(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [3]values.Value
	if err := a.Bind(p[:], 0, "case_sensitive", "by", "reverse"); err != nil {
		return values.Value{}, err
	}
	column := int64(0)
	if by := p[1]; by.Kind != values.KindMissing && by.Text != "key" {
		if by.Text != "value" {
			return values.Value{}, values.Errorf(`you can only sort by either "key" or "value"`)
		}
		column = 1
	}
	if v.IsUndefined() {
		return values.Value{}, v.UndefinedError()
	}
	if v.Kind != values.KindMap {
		return values.Value{}, values.Errorf("'%s' object has no attribute 'items'", v.TypeName())
	}
	v.Kind = values.KindItems
	items, err := run.Iterate(v)
	if err != nil {
		return values.Value{}, err
	}
	g := getter{parts: []values.Value{values.Int(column)}, fold: !p[0].Truth()}
	keys, err := g.keys(run, items)
	if err != nil {
		return values.Value{}, err
	}
	sorted, err := sortValues(run, items, keys, p[2].Truth())
	return values.NewList(sorted), err
}

func filterUnique(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	g, items, err := itemsBy(run, v, a)
	if err != nil {
		return values.Value{}, err
	}
	seen := map[values.HashKey]bool{}
	var out []values.Value
	for _, item := range items {
		key, err := g.get(run, item)
		if err != nil {
			return values.Value{}, err
		}
		if err := run.Work(len(key.Text)); err != nil {
			return values.Value{}, err
		}
		h, err := values.HashOf(key, 0)
		if err != nil {
			return values.Value{}, err
		}
		if !seen[h] {
			seen[h] = true
			out = append(out, item)
		}
	}
	return values.NewIterator("generator", out), run.ChargeValues(2 * len(out))
}

func filterGroupBy(run *values.Budget, v values.Value, a *values.Args) (values.Value, error) {
	var p [3]values.Value
	if err := a.Bind(p[:], 1, "attribute", "default", "case_sensitive"); err != nil {
		return values.Value{}, err
	}
	g, err := newGetter(p[0])
	if err != nil {
		return values.Value{}, err
	}
	if !p[1].IsNone() {
		g.fallback = p[1]
	}
	g.fold = !p[2].Truth()
	items, err := run.Iterate(v)
	if err != nil {
		return values.Value{}, err
	}
	keys, err := g.keys(run, items)
	if err != nil {
		return values.Value{}, err
	}
	if items, err = sortValues(run, items, keys, false); err != nil {
		return values.Value{}, err
	}
	if keys, err = g.keys(run, items); err != nil {
		return values.Value{}, err
	}
	g.fold = false
	var groups []values.Value
	for i := 0; i < len(items); {
		end := i + 1
		for ; end < len(items); end++ {
			same, err := run.Equal(keys[i], keys[end])
			if err != nil {
				return values.Value{}, err
			}
			if !same {
				break
			}
		}
		// The group carries the first item's own key, not the folded one.
		key, err := g.get(run, items[i])
		if err != nil {
			return values.Value{}, err
		}
		group := values.NewTuple([]values.Value{key, values.NewList(items[i:end:end])})
		group.Text = ops.GroupNames[0]
		groups = append(groups, group)
		i = end
	}
	return run.NewList(groups)
}

// sortValues sorts a copy of items, stably, by their keys.
func sortValues(run *values.Budget, items, keys []values.Value,
	reverse bool) ([]values.Value, error) {
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
	sorted := make([]values.Value, len(items))
	for i, j := range order {
		sorted[i] = items[j]
	}
	return sorted, failed
}
