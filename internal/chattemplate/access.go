package chattemplate

import (
	"errors"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// methodFunc is a method of a built-in type.
type methodFunc func(st *state, self Value, a *callArgs) (Value, error)

// methodOf returns the method of v's type with that name, or nil.
func methodOf(v Value, name string) methodFunc {
	switch v.kind {
	case kindString:
		return stringMethods[name]
	case kindMap:
		return mapMethods[name]
	case kindList, kindTuple:
		return listMethods[name]
	case kindCycler:
		return cyclerMethods[name]
	}
	return nil
}

// refused tells whether name is an attribute that the Python type has and the sandbox does not let a template use:
// jinja2's ImmutableSandboxedEnvironment refuses those that change a list or dict; str.encode is refused
// here because there is no bytes type.
func refused(v Value, name string) bool {
	if strings.HasPrefix(name, "__") {
		return true
	}
	switch v.kind {
	case kindMap:
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update":
			return true
		}
	case kindList:
		switch name {
		case "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove":
			return true
		}
	case kindString:
		return name == "encode" || name == "maketrans" || name == "translate"
	}
	return false
}

func unsafeAttribute(v Value, name string) Value {
	return Value{kind: kindUndefined, num: undefMessage,
		str: "access to attribute '" + name + "' of '" + v.typeName() + "' object is unsafe."}
}

// missing is the undefined value of a look-up that found nothing.
func missing(v Value, name string) Value {
	owner := "None"
	if v.kind != kindNone {
		owner = v.typeName() + " object"
	}
	return Value{kind: kindUndefined, num: undefAttribute, str: name, ref: owner}
}

func missingElement(v Value, key string) Value {
	return Value{kind: kindUndefined, num: undefElement, str: key, ref: v.typeName() + " object"}
}

// pythonAttribute is Python's getattr(v, name) in the sandbox: errNoAttribute if v has none.
func (st *state) pythonAttribute(v Value, name string) (Value, error) {
	if refused(v, name) {
		return unsafeAttribute(v, name), nil
	}
	if m := methodOf(v, name); m != nil {
		return funcValue(name, func(st *state, a *callArgs) (Value, error) { return m(st, v, a) }), nil
	}
	switch v.kind {
	case kindNamespace:
		if value, ok := v.mapping().Get(name); ok {
			return value, nil
		}
	case kindLoop:
		return v.ref.(*loopState).attribute(st, name)
	case kindCycler:
		if name == "current" {
			c := v.ref.(*cycler)
			return c.items[c.pos], nil
		}
	case kindMacro:
		if name == "name" {
			return strValue(v.ref.(*macro).def.name), nil
		}
	case kindTuple:
		// The pairs that groupby makes are named tuples.
		if g, ok := groupField(v, name); ok {
			return g, nil
		}
	}
	return Value{}, errNoAttribute
}

// attribute is v.name: the attribute if there is one, else the item.
func (st *state) attribute(v Value, name string) (Value, error) {
	if v.isUndefined() {
		return Value{}, v.undefinedError()
	}
	if v.kind == kindMap {
		// Most attributes are keys; only the names of dict's own attributes come before them.
		if _, isMethod := mapMethods[name]; !isMethod && !refused(v, name) {
			if value, ok := v.mapping().Get(name); ok {
				return value, nil
			}
			return missing(v, name), nil
		}
	}
	value, err := st.pythonAttribute(v, name)
	if errors.Is(err, errNoAttribute) {
		return missing(v, name), nil
	}
	return value, err
}

// item is v[key]: the item if there is one, else, for a str key, the attribute.
func (st *state) item(v, key Value) (Value, error) {
	if err := st.work(len(key.str)); err != nil {
		return Value{}, err
	}
	switch v.kind {
	case kindUndefined, kindMissing:
		return Value{}, v.undefinedError()
	case kindMap:
		if i, err := v.mapping().find(key); err == nil && i >= 0 {
			return v.mapping().entries[i].value, nil
		}
	case kindList, kindTuple, kindString, kindRange:
		if key.kind == kindInt || key.kind == kindBool {
			return st.index(v, key.num)
		}
	}
	if key.kind == kindString {
		value, err := st.pythonAttribute(v, key.str)
		if errors.Is(err, errNoAttribute) {
			return missing(v, key.str), nil
		}
		return value, err
	}
	text, err := st.reprOf(key)
	return missingElement(v, text), err
}

func (st *state) index(v Value, i int64) (Value, error) {
	if v.kind == kindString {
		return st.character(v, i)
	}
	n, _ := v.length()
	at := i
	if at < 0 {
		at += int64(n)
	}
	if at < 0 || at >= int64(n) {
		return missingElement(v, strconv.FormatInt(i, 10)), nil
	}
	if v.kind == kindRange {
		return v.ref.(*rangeObject).at(int(at)), nil
	}
	return v.items()[at], nil
}

// character is v[i] of a str. It looks only at the characters between the near end and i.
func (st *state) character(v Value, i int64) (Value, error) {
	s := v.str
	if i >= int64(len(s)) || i < -int64(len(s)) {
		return missingElement(v, strconv.FormatInt(i, 10)), nil
	}
	steps := int(i)
	if i < 0 {
		steps = int(-i)
	}
	if err := st.work(steps); err != nil {
		return Value{}, err
	}
	if i >= 0 {
		s = s[byteOffset(s, steps):]
		_, n := utf8.DecodeRuneInString(s)
		s = s[:n]
	} else {
		n := 0
		for ; steps > 0 && s != ""; steps-- {
			_, n = utf8.DecodeLastRuneInString(s)
			s = s[:len(s)-n]
		}
		if steps > 0 {
			n = 0
		}
		s = v.str[len(s) : len(s)+n]
	}
	if s == "" {
		return missingElement(v, strconv.FormatInt(i, 10)), nil
	}
	return strValue(s), nil
}

// sliceIndex reads one bound of a slice; huge ints are clipped, as Python does.
func sliceIndex(v Value, otherwise int64) (int64, error) {
	const far = 1 << 40
	switch v.kind {
	case kindNone:
		return otherwise, nil
	case kindBool, kindInt:
		return max(-far, min(far, v.num)), nil
	case kindBig:
		return int64(v.ref.(*big.Int).Sign()) * far, nil
	}
	return 0, errorf("slice indices must be integers or None")
}

// slice is v[low:high:step].
func (st *state) slice(v Value, bounds [3]Value) (Value, error) {
	switch v.kind {
	case kindList, kindTuple, kindString, kindRange:
	case kindUndefined, kindMissing:
		return Value{}, v.undefinedError()
	default:
		return Value{}, errorf("'%s' object cannot be sliced", v.typeName())
	}
	step, err := sliceIndex(bounds[2], 1)
	if err != nil {
		return Value{}, err
	}
	if step == 0 {
		return Value{}, errorf("slice step cannot be zero")
	}
	if err := st.work(v.weight()); err != nil {
		return Value{}, err
	}
	size, _ := v.length()
	n := int64(size)
	low, high := int64(0), n
	if step < 0 {
		low, high = n-1, -n-1
	}
	if low, err = sliceIndex(bounds[0], low); err != nil {
		return Value{}, err
	}
	if high, err = sliceIndex(bounds[1], high); err != nil {
		return Value{}, err
	}
	clip := func(i int64) int64 {
		if i < 0 {
			i += n
		}
		if step < 0 {
			return max(-1, min(n-1, i))
		}
		return max(0, min(n, i))
	}
	low, high = clip(low), clip(high)
	count := int64(0)
	if step > 0 && low < high {
		count = (high - low + step - 1) / step
	} else if step < 0 && low > high {
		count = (low - high - step - 1) / -step
	}
	return st.sliced(v, low, step, int(count))
}

func (st *state) sliced(v Value, low, step int64, count int) (Value, error) {
	if v.kind == kindString {
		return st.slicedText(v.str, int(low), int(step), count)
	}
	if v.kind == kindRange {
		r := v.ref.(*rangeObject)
		return Value{kind: kindRange, ref: &rangeObject{r.start + low*r.step, r.start + (low+step*int64(count))*r.step, r.step * step, count}}, nil
	}
	if step == 1 {
		items := v.items()[low : int(low)+count : int(low)+count]
		return Value{kind: v.kind, ref: &list{items}}, st.tick()
	}
	if err := st.chargeValues(count); err != nil {
		return Value{}, err
	}
	items := make([]Value, count)
	for i := range items {
		items[i] = v.items()[low+int64(i)*step]
	}
	return Value{kind: v.kind, ref: &list{items}}, nil
}

func (st *state) slicedText(s string, low, step, count int) (Value, error) {
	if count == 0 {
		return strValue(""), nil
	}
	if step == 1 {
		if isASCII(s) {
			return strValue(s[low : low+count]), nil
		}
		from := s[byteOffset(s, low):]
		return strValue(from[:byteOffset(from, count)]), nil
	}
	if err := st.charge(4 * len(s)); err != nil {
		return Value{}, err
	}
	runes := []rune(s)
	out := make([]rune, count)
	for i := range out {
		out[i] = runes[low+i*step]
	}
	return st.newString(string(out))
}

// iterate lists what iterating over v yields. The list must not be changed.
func (st *state) iterate(v Value) ([]Value, error) {
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
	if err := st.chargeValues(n); err != nil {
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
		if err := st.chargeValues(2 * n); err != nil {
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
