package chattemplate

import (
	"errors"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

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

// PythonAttribute is Python's getattr(v, name) in the sandbox: errNoAttribute if v has none.
func PythonAttribute(run *budget, v Value, name string) (Value, error) {
	if refused(v, name) {
		return unsafeAttribute(v, name), nil
	}
	if m := methodOf(v, name); m != nil {
		return funcValue(name, func(run *budget, a *callArgs) (Value, error) { return m(run, v, a) }), nil
	}
	switch v.kind {
	case kindNamespace:
		if value, ok := v.mapping().Get(name); ok {
			return value, nil
		}
	case kindLoop:
		return v.ref.(object).attribute(name)
	case kindCycler:
		if name == "current" {
			c := v.ref.(*cycler)
			return c.items[c.pos], nil
		}
	case kindMacro:
		if name == "name" {
			return strValue(v.str), nil
		}
	case kindTuple:
		// The pairs that groupby makes are named tuples.
		if g, ok := groupField(v, name); ok {
			return g, nil
		}
	}
	return Value{}, errNoAttribute
}

// Attribute is v.name: the attribute if there is one, else the item.
func Attribute(run *budget, v Value, name string) (Value, error) {
	if v.IsUndefined() {
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
	value, err := PythonAttribute(run, v, name)
	if errors.Is(err, errNoAttribute) {
		return missing(v, name), nil
	}
	return value, err
}

// Item is v[key]: the item if there is one, else, for a str key, the attribute.
func Item(run *budget, v, key Value) (Value, error) {
	if err := run.work(len(key.str)); err != nil {
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
			return Index(run, v, key.num)
		}
	}
	if key.kind == kindString {
		value, err := PythonAttribute(run, v, key.str)
		if errors.Is(err, errNoAttribute) {
			return missing(v, key.str), nil
		}
		return value, err
	}
	text, err := run.reprOf(key)
	return missingElement(v, text), err
}

func Index(run *budget, v Value, i int64) (Value, error) {
	if v.kind == kindString {
		return Character(run, v, i)
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

// Character is v[i] of a str. It looks only at the characters between the near end and i.
func Character(run *budget, v Value, i int64) (Value, error) {
	s := v.str
	if i >= int64(len(s)) || i < -int64(len(s)) {
		return missingElement(v, strconv.FormatInt(i, 10)), nil
	}
	steps := int(i)
	if i < 0 {
		steps = int(-i)
	}
	if err := run.work(steps); err != nil {
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

// Slice is v[low:high:step].
func Slice(run *budget, v Value, bounds [3]Value) (Value, error) {
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
	if err := run.work(v.weight()); err != nil {
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
	return Sliced(run, v, low, step, int(count))
}

func Sliced(run *budget, v Value, low, step int64, count int) (Value, error) {
	if v.kind == kindString {
		return SlicedText(run, v.str, int(low), int(step), count)
	}
	if v.kind == kindRange {
		r := v.ref.(*rangeObject)
		return Value{kind: kindRange, ref: &rangeObject{r.start + low*r.step, r.start + (low+step*int64(count))*r.step, r.step * step, count}}, nil
	}
	if step == 1 {
		items := v.items()[low : int(low)+count : int(low)+count]
		return Value{kind: v.kind, ref: &list{items}}, run.tick()
	}
	if err := run.chargeValues(count); err != nil {
		return Value{}, err
	}
	items := make([]Value, count)
	for i := range items {
		items[i] = v.items()[low+int64(i)*step]
	}
	return Value{kind: v.kind, ref: &list{items}}, nil
}

func SlicedText(run *budget, s string, low, step, count int) (Value, error) {
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
	if err := run.charge(4 * len(s)); err != nil {
		return Value{}, err
	}
	runes := []rune(s)
	out := make([]rune, count)
	for i := range out {
		out[i] = runes[low+i*step]
	}
	return run.newString(string(out))
}

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
