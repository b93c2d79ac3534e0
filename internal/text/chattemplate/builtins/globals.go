package builtins

import (
	"math"

	"github.com/eagleray/eagleray/internal/text/chattemplate/ops"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// globals are the functions every template has.
var globals = map[string]values.Value{
	"range":           values.NewFunction("range", rangeGlobal),
	"dict":            values.NewFunction("dict", dictGlobal),
	"namespace":       values.NewFunction("namespace", namespaceGlobal),
	"joiner":          values.NewFunction("joiner", joinerGlobal),
	"cycler":          values.NewFunction("cycler", cyclerGlobal),
	"raise_exception": values.NewFunction("raise_exception", raiseGlobal),
	"strftime_now":    values.NewFunction("strftime_now", strftimeGlobal),
}

// Global returns the function of that name, and whether there is one.
func Global(name string) (values.Value, bool) {
	v, ok := globals[name]
	return v, ok
}

// maxRange is jinja2.sandbox.MAX_RANGE.
const maxRange = 100_000

func rangeGlobal(_ *values.Budget, a *values.Args) (values.Value, error) {
	if err := a.NoKeywords(); err != nil {
		return values.Value{}, err
	}
	if len(a.Pos) < 1 || len(a.Pos) > 3 {
		return values.Value{}, values.Errorf("range expected 1 to 3 arguments, got %d", len(a.Pos))
	}
	var n [3]int64
	for i, v := range a.Pos {
		if v.IsUndefined() {
			return values.Value{}, v.UndefinedError()
		}
		if v.Kind != values.KindInt && v.Kind != values.KindBool {
			return values.Value{}, values.Errorf("'%s' object cannot be interpreted as an integer",
				v.TypeName())
		}
		if v.Num > math.MaxInt64/4 || v.Num < math.MinInt64/4 {
			return values.Value{}, values.Errorf("range argument %d is too large", v.Num)
		}
		n[i] = v.Num
	}
	r := &values.Range{Start: n[0], Stop: n[1], Step: n[2]}
	switch len(a.Pos) {
	case 1:
		r.Start, r.Stop, r.Step = 0, n[0], 1
	case 2:
		r.Step = 1
	}
	if r.Step == 0 {
		return values.Value{}, values.Errorf("range() arg 3 must not be zero")
	}
	count := int64(0)
	if r.Step > 0 && r.Start < r.Stop {
		count = (r.Stop-r.Start-1)/r.Step + 1
	} else if r.Step < 0 && r.Start > r.Stop {
		count = (r.Start-r.Stop-1)/-r.Step + 1
	}
	if count > maxRange {
		return values.Value{}, values.Errorf("range too big: the sandbox blocks ranges larger "+
			"than %d", maxRange)
	}
	r.N = int(count)
	return values.Value{Kind: values.KindRange, Ref: r}, nil
}

// buildMap is dict(...): from a mapping or pairs, then keyword arguments.
func buildMap(run *values.Budget, a *values.Args) (*values.Map, error) {
	if len(a.Pos) > 1 {
		return nil, values.Errorf("dict expected at most 1 argument, got %d", len(a.Pos))
	}
	m := values.NewMap()
	if len(a.Pos) == 1 {
		from := a.Pos[0]
		if from.Kind == values.KindMap {
			from.Kind = values.KindItems
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
				return nil, values.Errorf("dictionary update sequence element has length %d; 2 "+
					"is required", len(pair))
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

func dictGlobal(run *values.Budget, a *values.Args) (values.Value, error) {
	m, err := buildMap(run, a)
	if err != nil {
		return values.Value{}, err
	}
	return m.Value(), nil
}

func namespaceGlobal(run *values.Budget, a *values.Args) (values.Value, error) {
	m, err := buildMap(run, a)
	if err != nil {
		return values.Value{}, err
	}
	return values.Value{Kind: values.KindNamespace, Ref: m}, nil
}

func raiseGlobal(run *values.Budget, a *values.Args) (values.Value, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 1, "message"); err != nil {
		return values.Value{}, err
	}
	message, err := run.ToString(p[0])
	if err != nil {
		return values.Value{}, err
	}
	return values.Value{}, &values.Error{Msg: message.Text, Raised: true}
}

func strftimeGlobal(run *values.Budget, a *values.Args) (values.Value, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 1, "format"); err != nil {
		return values.Value{}, err
	}
	layout, err := values.WantString(p[0], "strftime() argument 1")
	if err != nil {
		return values.Value{}, err
	}
	return strftime(run, layout)
}

func joinerGlobal(run *values.Budget, a *values.Args) (values.Value, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 0, "sep"); err != nil {
		return values.Value{}, err
	}
	if p[0].Kind == values.KindMissing {
		p[0] = values.Str(", ")
	}
	return values.Value{Kind: values.KindJoiner, Ref: &ops.Joiner{Sep: p[0]}}, run.ChargeValues(1)
}

func cyclerGlobal(run *values.Budget, a *values.Args) (values.Value, error) {
	if err := a.NoKeywords(); err != nil {
		return values.Value{}, err
	}
	if len(a.Pos) == 0 {
		return values.Value{}, values.Errorf("at least one item has to be provided")
	}
	if err := run.ChargeValues(len(a.Pos)); err != nil {
		return values.Value{}, err
	}
	return values.Value{Kind: values.KindCycler,
		Ref: &ops.Cycler{Items: append([]values.Value(nil), a.Pos...)}}, nil
}
