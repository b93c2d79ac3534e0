package chattemplate

import (
	"errors"
)

// errNoAttribute is returned by attribute look-ups that find nothing; callers turn it into an undefined value.
var errNoAttribute = errors.New("no such attribute")

// callArgs are evaluated arguments. pos is only valid during the call: keep a copy.
type callArgs struct {
	pos []Value
	kw  []namedValue
}

type namedValue struct {
	name  string
	value Value
}

type function struct {
	name string
	call func(run *budget, a *callArgs) (Value, error)
}

func funcValue(name string, call func(*budget, *callArgs) (Value, error)) Value {
	return Value{kind: kindFunc, ref: &function{name, call}}
}

func (a *callArgs) noKeywords() error {
	if len(a.kw) > 0 {
		return errorf("unexpected keyword argument '%s'", a.kw[0].name)
	}
	return nil
}

// bind spreads the arguments over the named parameters, as a Python call does. Parameters not given are
// kindMissing; the first required of them must be given.
func (a *callArgs) bind(out []Value, required int, names ...string) error {
	if len(a.pos) > len(names) {
		return errorf("takes at most %d arguments, %d given", len(names), len(a.pos))
	}
	copy(out, a.pos)
	for _, kw := range a.kw {
		i := 0
		for i < len(names) && names[i] != kw.name {
			i++
		}
		if i == len(names) {
			return errorf("unexpected keyword argument '%s'", kw.name)
		}
		if out[i].kind != kindMissing {
			return errorf("multiple values for argument '%s'", kw.name)
		}
		out[i] = kw.value
	}
	for i := range required {
		if out[i].kind == kindMissing {
			return errorf("missing argument '%s'", names[i])
		}
	}
	return nil
}

// take removes and returns the keyword argument name.
func (a *callArgs) take(name string) (Value, bool) {
	for i, kw := range a.kw {
		if kw.name == name {
			rest := append([]namedValue(nil), a.kw[:i]...)
			a.kw = append(rest, a.kw[i+1:]...)
			return kw.value, true
		}
	}
	return Value{}, false
}

// wantString reads a str argument.
func wantString(v Value, name string) (string, error) {
	if v.kind != kindString {
		return "", errorf("%s must be str, not %s", name, v.typeName())
	}
	return v.str, nil
}

// wantInt reads an int argument, or the default if it is not given.
func wantInt(v Value, name string, otherwise int) (int, error) {
	const far = 1 << 40
	switch v.kind {
	case kindMissing:
		return otherwise, nil
	case kindInt, kindBool:
		return int(max(-far, min(far, v.num))), nil
	case kindUndefined:
		return 0, v.undefinedError()
	}
	return 0, errorf("%s must be an int, not %s", name, v.typeName())
}
