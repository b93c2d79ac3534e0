package chattemplate

import (
	"math"
)

// globals are the functions every template has.
var globals = map[string]Value{
	"range":           NewFunction("range", rangeGlobal),
	"dict":            NewFunction("dict", dictGlobal),
	"namespace":       NewFunction("namespace", namespaceGlobal),
	"joiner":          NewFunction("joiner", joinerGlobal),
	"cycler":          NewFunction("cycler", cyclerGlobal),
	"raise_exception": NewFunction("raise_exception", raiseGlobal),
	"strftime_now":    NewFunction("strftime_now", strftimeGlobal),
}

// maxRange is jinja2.sandbox.MAX_RANGE.
const maxRange = 100_000

func rangeGlobal(_ *Budget, a *Args) (Value, error) {
	if err := a.NoKeywords(); err != nil {
		return Value{}, err
	}
	if len(a.Pos) < 1 || len(a.Pos) > 3 {
		return Value{}, Errorf("range expected 1 to 3 arguments, got %d", len(a.Pos))
	}
	var n [3]int64
	for i, v := range a.Pos {
		if v.IsUndefined() {
			return Value{}, v.UndefinedError()
		}
		if v.Kind != KindInt && v.Kind != KindBool {
			return Value{}, Errorf("'%s' object cannot be interpreted as an integer", v.TypeName())
		}
		if v.Num > math.MaxInt64/4 || v.Num < math.MinInt64/4 {
			return Value{}, Errorf("range argument %d is too large", v.Num)
		}
		n[i] = v.Num
	}
	r := &Range{Start: n[0], Stop: n[1], Step: n[2]}
	switch len(a.Pos) {
	case 1:
		r.Start, r.Stop, r.Step = 0, n[0], 1
	case 2:
		r.Step = 1
	}
	if r.Step == 0 {
		return Value{}, Errorf("range() arg 3 must not be zero")
	}
	count := int64(0)
	if r.Step > 0 && r.Start < r.Stop {
		count = (r.Stop-r.Start-1)/r.Step + 1
	} else if r.Step < 0 && r.Start > r.Stop {
		count = (r.Start-r.Stop-1)/-r.Step + 1
	}
	if count > maxRange {
		return Value{}, Errorf("range too big: the sandbox blocks ranges larger than %d", maxRange)
	}
	r.N = int(count)
	return Value{Kind: KindRange, Ref: r}, nil
}

// buildMap is dict(...): from a mapping or pairs, then keyword arguments.
func buildMap(run *Budget, a *Args) (*Map, error) {
	if len(a.Pos) > 1 {
		return nil, Errorf("dict expected at most 1 argument, got %d", len(a.Pos))
	}
	m := NewMap()
	if len(a.Pos) == 1 {
		from := a.Pos[0]
		if from.Kind == KindMap {
			from.Kind = KindItems
		}
		items, err := run.Iterate(from)
		if err != nil {
			return nil, err
		}
		if err := run.ChargeValues(2 * len(items)); err != nil {
			return nil, err
		}
		for _, item := range items {
			pair, err := run.Iterate(item)
			if err != nil {
				return nil, err
			}
			if len(pair) != 2 {
				return nil, Errorf("dictionary update sequence element has length %d; 2 is required", len(pair))
			}
			if err := run.SetItem(m, pair[0], pair[1]); err != nil {
				return nil, err
			}
		}
	}
	for _, kw := range a.Keywords {
		m.Set(kw.Name, kw.Value)
	}
	return m, run.ChargeValues(2 * len(a.Keywords))
}

func dictGlobal(run *Budget, a *Args) (Value, error) {
	m, err := buildMap(run, a)
	if err != nil {
		return Value{}, err
	}
	return m.Value(), nil
}

func namespaceGlobal(run *Budget, a *Args) (Value, error) {
	m, err := buildMap(run, a)
	if err != nil {
		return Value{}, err
	}
	return Value{Kind: KindNamespace, Ref: m}, nil
}

func raiseGlobal(run *Budget, a *Args) (Value, error) {
	var p [1]Value
	if err := a.Bind(p[:], 1, "message"); err != nil {
		return Value{}, err
	}
	message, err := run.ToString(p[0])
	if err != nil {
		return Value{}, err
	}
	return Value{}, &Error{Msg: message.Text, Raised: true}
}

func strftimeGlobal(run *Budget, a *Args) (Value, error) {
	var p [1]Value
	if err := a.Bind(p[:], 1, "format"); err != nil {
		return Value{}, err
	}
	layout, err := WantString(p[0], "strftime() argument 1")
	if err != nil {
		return Value{}, err
	}
	return strftime(run, layout)
}

func joinerGlobal(run *Budget, a *Args) (Value, error) {
	var p [1]Value
	if err := a.Bind(p[:], 0, "sep"); err != nil {
		return Value{}, err
	}
	if p[0].Kind == KindMissing {
		p[0] = Str(", ")
	}
	return Value{Kind: KindJoiner, Ref: &joiner{Sep: p[0]}}, run.ChargeValues(1)
}

func cyclerGlobal(run *Budget, a *Args) (Value, error) {
	if err := a.NoKeywords(); err != nil {
		return Value{}, err
	}
	if len(a.Pos) == 0 {
		return Value{}, Errorf("at least one item has to be provided")
	}
	if err := run.ChargeValues(len(a.Pos)); err != nil {
		return Value{}, err
	}
	return Value{Kind: KindCycler, Ref: &cycler{Items: append([]Value(nil), a.Pos...)}}, nil
}
