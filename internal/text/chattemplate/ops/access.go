// Package ops has what Python does with values: operators, attributes, items and slices, the
// methods of the built-in types, and both ways to format text.
package ops

import (
	"errors"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/chattemplate/pytext"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// refused tells whether name is an attribute that the Python type has and the sandbox does not let
// a template use: jinja2's ImmutableSandboxedEnvironment refuses those that change a list or dict;
// str.encode is refused here because there is no bytes type.
func refused(v values.Value, name string) bool {
	if strings.HasPrefix(name, "__") {
		return true
	}
	switch v.Kind {
	case values.KindMap:
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update":
			return true
		}
	case values.KindList:
		switch name {
		case "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove":
			return true
		}
	case values.KindString:
		return name == "encode" || name == "maketrans" || name == "translate"
	}
	return false
}

func unsafeAttribute(v values.Value, name string) values.Value {
	return values.Value{Kind: values.KindUndefined, Num: values.UndefMessage,
		Text: "access to attribute '" + name + "' of '" + v.TypeName() + "' object is unsafe."}
}

// missing is the undefined value of a look-up that found nothing.
func missing(v values.Value, name string) values.Value {
	owner := "None"
	if v.Kind != values.KindNone {
		owner = v.TypeName() + " object"
	}
	return values.Value{Kind: values.KindUndefined, Num: values.UndefAttribute, Text: name,
		Ref: owner}
}

func missingElement(v values.Value, key string) values.Value {
	return values.Value{Kind: values.KindUndefined, Num: values.UndefElement, Text: key,
		Ref: v.TypeName() + " object"}
}

// pythonAttribute is Python's getattr(v, name) in the sandbox: ErrNoAttribute if v has none.
func pythonAttribute(v values.Value, name string) (values.Value, error) {
	if refused(v, name) {
		return unsafeAttribute(v, name), nil
	}
	if m := MethodOf(v, name); m != nil {
		call := func(run *values.Budget, a *values.Args) (values.Value, error) {
			return m(run, v, a)
		}
		return values.NewFunction(name, call), nil
	}
	switch v.Kind {
	case values.KindNamespace:
		if value, ok := v.Mapping().Get(name); ok {
			return value, nil
		}
	case values.KindLoop:
		return v.Ref.(values.Object).Attribute(name)
	case values.KindCycler:
		if name == "current" {
			c := v.Ref.(*Cycler)
			return c.Items[c.pos], nil
		}
	case values.KindMacro:
		if name == "name" {
			return values.Str(v.Text), nil
		}
	case values.KindTuple:
		// The pairs that groupby makes are named tuples.
		if g, ok := groupField(v, name); ok {
			return g, nil
		}
	}
	return values.Value{}, values.ErrNoAttribute
}

// Attribute is v.name: the attribute if there is one, else the item.
func Attribute(run *values.Budget, v values.Value, name string) (values.Value, error) {
	if v.IsUndefined() {
		return values.Value{}, v.UndefinedError()
	}
	if v.Kind == values.KindMap {
		// Most attributes are keys; only the names of dict's own attributes come before them.
		if _, isMethod := mapMethods[name]; !isMethod && !refused(v, name) {
			if value, ok := v.Mapping().Get(name); ok {
				return value, nil
			}
			return missing(v, name), nil
		}
	}
	value, err := pythonAttribute(v, name)
	if errors.Is(err, values.ErrNoAttribute) {
		return missing(v, name), nil
	}
	return value, err
}

// Item is v[key]: the item if there is one, else, for a str key, the attribute.
func Item(run *values.Budget, v, key values.Value) (values.Value, error) {
	if err := run.Work(len(key.Text)); err != nil {
		return values.Value{}, err
	}
	switch v.Kind {
	case values.KindUndefined, values.KindMissing:
		return values.Value{}, v.UndefinedError()
	case values.KindMap:
		if i, err := v.Mapping().Find(key); err == nil && i >= 0 {
			return v.Mapping().Entries[i].Value, nil
		}
	case values.KindList, values.KindTuple, values.KindString, values.KindRange:
		if key.Kind == values.KindInt || key.Kind == values.KindBool {
			return index(run, v, key.Num)
		}
	}
	if key.Kind == values.KindString {
		value, err := pythonAttribute(v, key.Text)
		if errors.Is(err, values.ErrNoAttribute) {
			return missing(v, key.Text), nil
		}
		return value, err
	}
	text, err := run.ReprOf(key)
	return missingElement(v, text), err
}

func index(run *values.Budget, v values.Value, i int64) (values.Value, error) {
	if v.Kind == values.KindString {
		return character(run, v, i)
	}
	n, _ := v.Length()
	at := i
	if at < 0 {
		at += int64(n)
	}
	if at < 0 || at >= int64(n) {
		return missingElement(v, strconv.FormatInt(i, 10)), nil
	}
	if v.Kind == values.KindRange {
		return v.Ref.(*values.Range).At(int(at)), nil
	}
	return v.Items()[at], nil
}

// character is v[i] of a str. It looks only at the characters between the near end and i.
func character(run *values.Budget, v values.Value, i int64) (values.Value, error) {
	s := v.Text
	if i >= int64(len(s)) || i < -int64(len(s)) {
		return missingElement(v, strconv.FormatInt(i, 10)), nil
	}
	steps := int(i)
	if i < 0 {
		steps = int(-i)
	}
	if err := run.Work(steps); err != nil {
		return values.Value{}, err
	}
	if i >= 0 {
		s = s[pytext.ByteOffset(s, steps):]
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
	return values.Str(s), nil
}

// sliceIndex reads one bound of a slice; huge ints are clipped, as Python does.
func sliceIndex(v values.Value, otherwise int64) (int64, error) {
	const far = 1 << 40
	switch v.Kind {
	case values.KindNone:
		return otherwise, nil
	case values.KindBool, values.KindInt:
		return max(-far, min(far, v.Num)), nil
	case values.KindBig:
		return int64(v.Ref.(*big.Int).Sign()) * far, nil
	}
	return 0, values.Errorf("slice indices must be integers or None")
}

// Slice is v[low:high:step].
func Slice(run *values.Budget, v values.Value, bounds [3]values.Value) (values.Value, error) {
	switch v.Kind {
	case values.KindList, values.KindTuple, values.KindString, values.KindRange:
	case values.KindUndefined, values.KindMissing:
		return values.Value{}, v.UndefinedError()
	default:
		return values.Value{}, values.Errorf("'%s' object cannot be sliced", v.TypeName())
	}
	step, err := sliceIndex(bounds[2], 1)
	if err != nil {
		return values.Value{}, err
	}
	if step == 0 {
		return values.Value{}, values.Errorf("slice step cannot be zero")
	}
	if err := run.Work(v.Weight()); err != nil {
		return values.Value{}, err
	}
	size, _ := v.Length()
	n := int64(size)
	low, high := int64(0), n
	if step < 0 {
		low, high = n-1, -n-1
	}
	if low, err = sliceIndex(bounds[0], low); err != nil {
		return values.Value{}, err
	}
	if high, err = sliceIndex(bounds[1], high); err != nil {
		return values.Value{}, err
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
	return sliced(run, v, low, step, int(count))
}

func sliced(run *values.Budget, v values.Value, low, step int64, count int) (values.Value, error) {
	if v.Kind == values.KindString {
		return slicedText(run, v.Text, int(low), int(step), count)
	}
	if v.Kind == values.KindRange {
		r := v.Ref.(*values.Range)
		return values.Value{Kind: values.KindRange,
			Ref: &values.Range{Start: r.Start + low*r.Step,
				Stop: r.Start + (low+step*int64(count))*r.Step, Step: r.Step * step, N: count}}, nil
	}
	if step == 1 {
		items := v.Items()[low : int(low)+count : int(low)+count]
		return values.Value{Kind: v.Kind, Ref: &values.Sequence{Items: items}}, run.Tick()
	}
	if err := run.ChargeValues(count); err != nil {
		return values.Value{}, err
	}
	items := make([]values.Value, count)
	for i := range items {
		items[i] = v.Items()[low+int64(i)*step]
	}
	return values.Value{Kind: v.Kind, Ref: &values.Sequence{Items: items}}, nil
}

func slicedText(run *values.Budget, s string, low, step, count int) (values.Value, error) {
	if count == 0 {
		return values.Str(""), nil
	}
	if step == 1 {
		if pytext.IsASCII(s) {
			return values.Str(s[low : low+count]), nil
		}
		from := s[pytext.ByteOffset(s, low):]
		return values.Str(from[:pytext.ByteOffset(from, count)]), nil
	}
	if err := run.Charge(4 * len(s)); err != nil {
		return values.Value{}, err
	}
	runes := []rune(s)
	out := make([]rune, count)
	for i := range out {
		out[i] = runes[low+i*step]
	}
	return run.NewString(string(out))
}

// GroupNames are the fields of the named tuples that groupby makes.
var GroupNames = [2]string{"grouper", "list"}

// groupField reads a field of a pair made by groupby, which is marked by the text it carries.
func groupField(v values.Value, name string) (values.Value, bool) {
	if v.Text != GroupNames[0] {
		return values.Value{}, false
	}
	for i, n := range GroupNames {
		if n == name {
			return v.Items()[i], true
		}
	}
	return values.Value{}, false
}
