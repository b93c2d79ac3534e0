package values

import (
	"unicode/utf8"
)

// Iterate lists what iterating over v yields. The list must not be changed.
func (run *Budget) Iterate(v Value) ([]Value, error) {
	switch v.Kind {
	case KindUndefined, KindMissing:
		return nil, nil
	case KindList, KindTuple:
		return v.Items(), nil
	case KindIter:
		it := v.Ref.(*iterator)
		items := it.items
		it.items = nil
		return items, nil
	}
	n, ok := v.Length()
	if !ok {
		return nil, Errorf("'%s' object is not iterable", v.TypeName())
	}
	if err := run.ChargeValues(n); err != nil {
		return nil, err
	}
	items := make([]Value, 0, n)
	switch v.Kind {
	case KindString:
		for i, r := range v.Text {
			items = append(items, Str(v.Text[i:i+utf8.RuneLen(r)]))
		}
	case KindRange:
		for i := range n {
			items = append(items, v.Ref.(*Range).At(i))
		}
	case KindMap, KindKeys:
		for _, e := range v.Mapping().Entries {
			items = append(items, e.Key)
		}
	case KindValues:
		for _, e := range v.Mapping().Entries {
			items = append(items, e.Value)
		}
	case KindItems:
		if err := run.ChargeValues(2 * n); err != nil {
			return nil, err
		}
		pairs := make([]Value, 2*n)
		for i, e := range v.Mapping().Entries {
			pairs[2*i], pairs[2*i+1] = e.Key, e.Value
			items = append(items, NewTuple(pairs[2*i:2*i+2:2*i+2]))
		}
	}
	return items, nil
}

// Iterable tells whether Python's iter(v) works.
func Iterable(v Value) bool {
	switch v.Kind {
	case KindIter, KindLoop, KindString:
		return true
	}
	_, ok := v.Length()
	return ok
}
