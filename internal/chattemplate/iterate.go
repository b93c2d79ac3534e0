package chattemplate

import (
	"unicode/utf8"
)

// iterate lists what iterating over v yields. The list must not be changed.
func (run *budget) iterate(v Value) ([]Value, error) {
	switch v.kind {
	case kindUndefined, kindMissing:
		return nil, nil
	case kindList, kindTuple:
		return v.items(), nil
	case kindIter:
		it := v.ref.(*iterator)
		items := it.items
		it.items = nil
		return items, nil
	}
	n, ok := v.length()
	if !ok {
		return nil, errorf("'%s' object is not iterable", v.typeName())
	}
	if err := run.chargeValues(n); err != nil {
		return nil, err
	}
	items := make([]Value, 0, n)
	switch v.kind {
	case kindString:
		for i, r := range v.str {
			items = append(items, strValue(v.str[i:i+utf8.RuneLen(r)]))
		}
	case kindRange:
		for i := range n {
			items = append(items, v.ref.(*rangeObject).at(i))
		}
	case kindMap, kindKeys:
		for _, e := range v.mapping().entries {
			items = append(items, e.key)
		}
	case kindValues:
		for _, e := range v.mapping().entries {
			items = append(items, e.value)
		}
	case kindItems:
		if err := run.chargeValues(2 * n); err != nil {
			return nil, err
		}
		pairs := make([]Value, 2*n)
		for i, e := range v.mapping().entries {
			pairs[2*i], pairs[2*i+1] = e.key, e.value
			items = append(items, tupleValue(pairs[2*i:2*i+2:2*i+2]))
		}
	}
	return items, nil
}

// iterable tells whether Python's iter(v) works.
func iterable(v Value) bool {
	switch v.kind {
	case kindIter, kindLoop, kindString:
		return true
	}
	_, ok := v.length()
	return ok
}
