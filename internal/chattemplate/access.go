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
	switch v.Kind {
	case KindMap:
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update":
			return true
		}
	case KindList:
		switch name {
		case "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove":
			return true
		}
	case KindString:
		return name == "encode" || name == "maketrans" || name == "translate"
	}
	return false
}

func unsafeAttribute(v Value, name string) Value {
	return Value{Kind: KindUndefined, Num: UndefMessage,
		Text: "access to attribute '" + name + "' of '" + v.TypeName() + "' object is unsafe."}
}

// missing is the undefined value of a look-up that found nothing.
func missing(v Value, name string) Value {
	owner := "None"
	if v.Kind != KindNone {
		owner = v.TypeName() + " object"
	}
	return Value{Kind: KindUndefined, Num: UndefAttribute, Text: name, Ref: owner}
}

func missingElement(v Value, key string) Value {
	return Value{Kind: KindUndefined, Num: UndefElement, Text: key, Ref: v.TypeName() + " object"}
}

// PythonAttribute is Python's getattr(v, name) in the sandbox: errNoAttribute if v has none.
func PythonAttribute(run *Budget, v Value, name string) (Value, error) {
	if refused(v, name) {
		return unsafeAttribute(v, name), nil
	}
	if m := methodOf(v, name); m != nil {
		return NewFunction(name, func(run *Budget, a *Args) (Value, error) { return m(run, v, a) }), nil
	}
	switch v.Kind {
	case KindNamespace:
		if value, ok := v.Mapping().Get(name); ok {
			return value, nil
		}
	case KindLoop:
		return v.Ref.(Object).Attribute(name)
	case KindCycler:
		if name == "current" {
			c := v.Ref.(*cycler)
			return c.Items[c.pos], nil
		}
	case KindMacro:
		if name == "name" {
			return Str(v.Text), nil
		}
	case KindTuple:
		// The pairs that groupby makes are named tuples.
		if g, ok := groupField(v, name); ok {
			return g, nil
		}
	}
	return Value{}, ErrNoAttribute
}

// Attribute is v.name: the attribute if there is one, else the item.
func Attribute(run *Budget, v Value, name string) (Value, error) {
	if v.IsUndefined() {
		return Value{}, v.UndefinedError()
	}
	if v.Kind == KindMap {
		// Most attributes are keys; only the names of dict's own attributes come before them.
		if _, isMethod := mapMethods[name]; !isMethod && !refused(v, name) {
			if value, ok := v.Mapping().Get(name); ok {
				return value, nil
			}
			return missing(v, name), nil
		}
	}
	value, err := PythonAttribute(run, v, name)
	if errors.Is(err, ErrNoAttribute) {
		return missing(v, name), nil
	}
	return value, err
}

// Item is v[key]: the item if there is one, else, for a str key, the attribute.
func Item(run *Budget, v, key Value) (Value, error) {
	if err := run.Work(len(key.Text)); err != nil {
		return Value{}, err
	}
	switch v.Kind {
	case KindUndefined, KindMissing:
		return Value{}, v.UndefinedError()
	case KindMap:
		if i, err := v.Mapping().Find(key); err == nil && i >= 0 {
			return v.Mapping().Entries[i].Value, nil
		}
	case KindList, KindTuple, KindString, KindRange:
		if key.Kind == KindInt || key.Kind == KindBool {
			return Index(run, v, key.Num)
		}
	}
	if key.Kind == KindString {
		value, err := PythonAttribute(run, v, key.Text)
		if errors.Is(err, ErrNoAttribute) {
			return missing(v, key.Text), nil
		}
		return value, err
	}
	text, err := run.ReprOf(key)
	return missingElement(v, text), err
}

func Index(run *Budget, v Value, i int64) (Value, error) {
	if v.Kind == KindString {
		return Character(run, v, i)
	}
	n, _ := v.Length()
	at := i
	if at < 0 {
		at += int64(n)
	}
	if at < 0 || at >= int64(n) {
		return missingElement(v, strconv.FormatInt(i, 10)), nil
	}
	if v.Kind == KindRange {
		return v.Ref.(*Range).At(int(at)), nil
	}
	return v.Items()[at], nil
}

// Character is v[i] of a str. It looks only at the characters between the near end and i.
func Character(run *Budget, v Value, i int64) (Value, error) {
	s := v.Text
	if i >= int64(len(s)) || i < -int64(len(s)) {
		return missingElement(v, strconv.FormatInt(i, 10)), nil
	}
	steps := int(i)
	if i < 0 {
		steps = int(-i)
	}
	if err := run.Work(steps); err != nil {
		return Value{}, err
	}
	if i >= 0 {
		s = s[ByteOffset(s, steps):]
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
		s = v.Text[len(s) : len(s)+n]
	}
	if s == "" {
		return missingElement(v, strconv.FormatInt(i, 10)), nil
	}
	return Str(s), nil
}

// sliceIndex reads one bound of a slice; huge ints are clipped, as Python does.
func sliceIndex(v Value, otherwise int64) (int64, error) {
	const far = 1 << 40
	switch v.Kind {
	case KindNone:
		return otherwise, nil
	case KindBool, KindInt:
		return max(-far, min(far, v.Num)), nil
	case KindBig:
		return int64(v.Ref.(*big.Int).Sign()) * far, nil
	}
	return 0, Errorf("slice indices must be integers or None")
}

// Slice is v[low:high:step].
func Slice(run *Budget, v Value, bounds [3]Value) (Value, error) {
	switch v.Kind {
	case KindList, KindTuple, KindString, KindRange:
	case KindUndefined, KindMissing:
		return Value{}, v.UndefinedError()
	default:
		return Value{}, Errorf("'%s' object cannot be sliced", v.TypeName())
	}
	step, err := sliceIndex(bounds[2], 1)
	if err != nil {
		return Value{}, err
	}
	if step == 0 {
		return Value{}, Errorf("slice step cannot be zero")
	}
	if err := run.Work(v.Weight()); err != nil {
		return Value{}, err
	}
	size, _ := v.Length()
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

func Sliced(run *Budget, v Value, low, step int64, count int) (Value, error) {
	if v.Kind == KindString {
		return SlicedText(run, v.Text, int(low), int(step), count)
	}
	if v.Kind == KindRange {
		r := v.Ref.(*Range)
		return Value{Kind: KindRange, Ref: &Range{Start: r.Start + low*r.Step, Stop: r.Start + (low+step*int64(count))*r.Step, Step: r.Step * step, N: count}}, nil
	}
	if step == 1 {
		items := v.Items()[low : int(low)+count : int(low)+count]
		return Value{Kind: v.Kind, Ref: &Sequence{Items: items}}, run.Tick()
	}
	if err := run.ChargeValues(count); err != nil {
		return Value{}, err
	}
	items := make([]Value, count)
	for i := range items {
		items[i] = v.Items()[low+int64(i)*step]
	}
	return Value{Kind: v.Kind, Ref: &Sequence{Items: items}}, nil
}

func SlicedText(run *Budget, s string, low, step, count int) (Value, error) {
	if count == 0 {
		return Str(""), nil
	}
	if step == 1 {
		if IsASCII(s) {
			return Str(s[low : low+count]), nil
		}
		from := s[ByteOffset(s, low):]
		return Str(from[:ByteOffset(from, count)]), nil
	}
	if err := run.Charge(4 * len(s)); err != nil {
		return Value{}, err
	}
	runes := []rune(s)
	out := make([]rune, count)
	for i := range out {
		out[i] = runes[low+i*step]
	}
	return run.NewString(string(out))
}

func groupField(v Value, name string) (Value, bool) {
	if v.Text != groupNames[0] {
		return Value{}, false
	}
	for i, n := range groupNames {
		if n == name {
			return v.Items()[i], true
		}
	}
	return Value{}, false
}
