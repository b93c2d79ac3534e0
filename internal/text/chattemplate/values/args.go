package values

import (
	"errors"
)

// ErrNoAttribute is returned by attribute look-ups that find nothing; callers turn it into an
// undefined value.
var ErrNoAttribute = errors.New("no such attribute")

// Args are evaluated arguments. They are only valid during the call: keep a copy of what is in
// them.
type Args struct {
	Pos      []Value
	Keywords []Named
}

// Named is a keyword argument.
type Named struct {
	Name  string
	Value Value
}

type (
	// Filter is a filter: v is what stands before the bar.
	Filter func(run *Budget, v Value, a *Args) (Value, error)
	// Test is a test: the right side of is.
	Test func(run *Budget, v Value, a *Args) (bool, error)
	// Method is a method of a built-in type.
	Method func(run *Budget, self Value, a *Args) (Value, error)
)

// Function is what KindFunc refers to.
type Function struct {
	name string
	Call func(run *Budget, a *Args) (Value, error)
}

// NewFunction returns a callable value.
func NewFunction(name string, call func(*Budget, *Args) (Value, error)) Value {
	return Value{Kind: KindFunc, Ref: &Function{name, call}}
}

// NoKeywords is an error if there are keyword arguments.
func (a *Args) NoKeywords() error {
	if len(a.Keywords) > 0 {
		return Errorf("unexpected keyword argument '%s'", a.Keywords[0].Name)
	}
	return nil
}

// Bind spreads the arguments over the named parameters, as a Python call does. Parameters not given
// are KindMissing; the first required of them must be given.
func (a *Args) Bind(out []Value, required int, names ...string) error {
	if len(a.Pos) > len(names) {
		return Errorf("takes at most %d arguments, %d given", len(names), len(a.Pos))
	}
	copy(out, a.Pos)
	for _, kw := range a.Keywords {
		i := 0
		for i < len(names) && names[i] != kw.Name {
			i++
		}
		if i == len(names) {
			return Errorf("unexpected keyword argument '%s'", kw.Name)
		}
		if out[i].Kind != KindMissing {
			return Errorf("multiple values for argument '%s'", kw.Name)
		}
		out[i] = kw.Value
	}
	for i := range required {
		if out[i].Kind == KindMissing {
			return Errorf("missing argument '%s'", names[i])
		}
	}
	return nil
}

// Pop removes and returns the keyword argument name.
func (a *Args) Pop(name string) (Value, bool) {
	for i, kw := range a.Keywords {
		if kw.Name == name {
			rest := append([]Named(nil), a.Keywords[:i]...)
			a.Keywords = append(rest, a.Keywords[i+1:]...)
			return kw.Value, true
		}
	}
	return Value{}, false
}

// WantString reads a str argument.
func WantString(v Value, name string) (string, error) {
	if v.Kind != KindString {
		return "", Errorf("%s must be str, not %s", name, v.TypeName())
	}
	return v.Text, nil
}

// WantInt reads an int argument, or the default if it is not given.
func WantInt(v Value, name string, otherwise int) (int, error) {
	const far = 1 << 40
	switch v.Kind {
	case KindMissing:
		return otherwise, nil
	case KindInt, KindBool:
		return int(max(-far, min(far, v.Num))), nil
	case KindUndefined:
		return 0, v.UndefinedError()
	}
	return 0, Errorf("%s must be an int, not %s", name, v.TypeName())
}
