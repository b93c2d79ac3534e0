package chattemplate

import (
	"sort"
	"strings"
)

func extremeFilter(op string) filterFunc {
	return func(st *state, v Value, a *callArgs) (Value, error) {
		var p [2]Value
		if err := a.bind(p[:], 0, "case_sensitive", "attribute"); err != nil {
			return Value{}, err
		}
		g, err := newGetter(p[1])
		if err != nil {
			return Value{}, err
		}
		g.fold = !p[0].truth()
		items, err := st.iterate(v)
		if err != nil {
			return Value{}, err
		}
		if len(items) == 0 {
			return Value{kind: kindUndefined, num: undefMessage, str: "No aggregated item, sequence was empty."}, nil
		}
		best := items[0]
		bestKey, err := g.get(st, best)
		if err != nil {
			return Value{}, err
		}
		for _, item := range items[1:] {
			key, err := g.get(st, item)
			if err != nil {
				return Value{}, err
			}
			better, err := st.ordered(op, key, bestKey, 0)
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

func filterSort(st *state, v Value, a *callArgs) (Value, error) {
	var p [3]Value
	if err := a.bind(p[:], 0, "reverse", "case_sensitive", "attribute"); err != nil {
		return Value{}, err
	}
	items, err := st.iterate(v)
	if err != nil {
		return Value{}, err
	}
	keys, err := st.sortKeys(items, p[2], !p[1].truth())
	if err != nil {
		return Value{}, err
	}
	sorted, err := st.sortValues(items, keys, p[0].truth())
	return listValue(sorted), err
}

func (st *state) sortKeys(items []Value, attribute Value, fold bool) ([]Value, error) {
	attributes := []Value{attribute}
	if attribute.kind == kindString {
		attributes = nil
		for _, one := range strings.Split(attribute.str, ",") {
			attributes = append(attributes, strValue(one))
		}
	}
	columns := make([][]Value, len(attributes))
	for i, one := range attributes {
		g, err := newGetter(one)
		if err != nil {
			return nil, err
		}
		g.fold = fold
		if columns[i], err = g.keys(st, items); err != nil {
			return nil, err
		}
	}
	if len(columns) == 1 {
		return columns[0], nil
	}
	if err := st.chargeValues(len(items) * len(columns)); err != nil {
		return nil, err
	}
	keys := make([]Value, len(items))
	for i := range keys {
		row := make([]Value, len(columns))
		for j := range row {
			row[j] = columns[j][i]
		}
		keys[i] = listValue(row)
	}
	return keys, nil
}

func filterDictSort(st *state, v Value, a *callArgs) (Value, error) {
	var p [3]Value
	if err := a.bind(p[:], 0, "case_sensitive", "by", "reverse"); err != nil {
		return Value{}, err
	}
	column := int64(0)
	if by := p[1]; by.kind != kindMissing && by.str != "key" {
		if by.str != "value" {
			return Value{}, errorf(`you can only sort by either "key" or "value"`)
		}
		column = 1
	}
	if v.isUndefined() {
		return Value{}, v.undefinedError()
	}
	if v.kind != kindMap {
		return Value{}, errorf("'%s' object has no attribute 'items'", v.typeName())
	}
	v.kind = kindItems
	items, err := st.iterate(v)
	if err != nil {
		return Value{}, err
	}
	g := getter{parts: []Value{intValue(column)}, fold: !p[0].truth()}
	keys, err := g.keys(st, items)
	if err != nil {
		return Value{}, err
	}
	sorted, err := st.sortValues(items, keys, p[2].truth())
	return listValue(sorted), err
}

func filterUnique(st *state, v Value, a *callArgs) (Value, error) {
	var p [2]Value
	if err := a.bind(p[:], 0, "case_sensitive", "attribute"); err != nil {
		return Value{}, err
	}
	g, err := newGetter(p[1])
	if err != nil {
		return Value{}, err
	}
	g.fold = !p[0].truth()
	items, err := st.iterate(v)
	if err != nil {
		return Value{}, err
	}
	seen := map[hashKey]bool{}
	var out []Value
	for _, item := range items {
		key, err := g.get(st, item)
		if err != nil {
			return Value{}, err
		}
		if err := st.work(len(key.str)); err != nil {
			return Value{}, err
		}
		h, err := hashOf(key, 0)
		if err != nil {
			return Value{}, err
		}
		if !seen[h] {
			seen[h] = true
			out = append(out, item)
		}
	}
	return iterValue("generator", out), st.chargeValues(2 * len(out))
}

var groupNames = [2]string{"grouper", "list"}

func groupField(v Value, name string) (Value, bool) {
	if v.str != groupNames[0] {
		return Value{}, false
	}
	for i, n := range groupNames {
		if n == name {
			return v.items()[i], true
		}
	}
	return Value{}, false
}

func filterGroupBy(st *state, v Value, a *callArgs) (Value, error) {
	var p [3]Value
	if err := a.bind(p[:], 1, "attribute", "default", "case_sensitive"); err != nil {
		return Value{}, err
	}
	g, err := newGetter(p[0])
	if err != nil {
		return Value{}, err
	}
	if !p[1].isNone() {
		g.fallback = p[1]
	}
	g.fold = !p[2].truth()
	items, err := st.iterate(v)
	if err != nil {
		return Value{}, err
	}
	keys, err := g.keys(st, items)
	if err != nil {
		return Value{}, err
	}
	if items, err = st.sortValues(items, keys, false); err != nil {
		return Value{}, err
	}
	if keys, err = g.keys(st, items); err != nil {
		return Value{}, err
	}
	g.fold = false
	var groups []Value
	for i := 0; i < len(items); {
		end := i + 1
		for ; end < len(items); end++ {
			same, err := st.equal(keys[i], keys[end])
			if err != nil {
				return Value{}, err
			}
			if !same {
				break
			}
		}
		// The group carries the first item's own key, not the folded one.
		key, err := g.get(st, items[i])
		if err != nil {
			return Value{}, err
		}
		group := tupleValue([]Value{key, listValue(items[i:end:end])})
		group.str = groupNames[0]
		groups = append(groups, group)
		i = end
	}
	return st.newList(groups)
}

// sortValues sorts a copy of items, stably, by their keys.
func (st *state) sortValues(items, keys []Value, reverse bool) ([]Value, error) {
	if err := st.chargeValues(2 * len(items)); err != nil {
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
		less, err := st.ordered("<", a, b, 0)
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
