package chattemplate

import (
	"math"
)

// globals are the functions every template has.
var globals = map[string]Value{
	"range":           funcValue("range", rangeGlobal),
	"dict":            funcValue("dict", dictGlobal),
	"namespace":       funcValue("namespace", namespaceGlobal),
	"joiner":          funcValue("joiner", joinerGlobal),
	"cycler":          funcValue("cycler", cyclerGlobal),
	"raise_exception": funcValue("raise_exception", raiseGlobal),
	"strftime_now":    funcValue("strftime_now", strftimeGlobal),
}

// maxRange is jinja2.sandbox.MAX_RANGE.
const maxRange = 100_000

func rangeGlobal(_ *budget, a *callArgs) (Value, error) {
	if err := a.noKeywords(); err != nil {
		return Value{}, err
	}
	if len(a.pos) < 1 || len(a.pos) > 3 {
		return Value{}, errorf("range expected 1 to 3 arguments, got %d", len(a.pos))
	}
	var n [3]int64
	for i, v := range a.pos {
		if v.IsUndefined() {
			return Value{}, v.undefinedError()
		}
		if v.kind != kindInt && v.kind != kindBool {
			return Value{}, errorf("'%s' object cannot be interpreted as an integer", v.typeName())
		}
		if v.num > math.MaxInt64/4 || v.num < math.MinInt64/4 {
			return Value{}, errorf("range argument %d is too large", v.num)
		}
		n[i] = v.num
	}
	r := &rangeObject{start: n[0], stop: n[1], step: n[2]}
	switch len(a.pos) {
	case 1:
		r.start, r.stop, r.step = 0, n[0], 1
	case 2:
		r.step = 1
	}
	if r.step == 0 {
		return Value{}, errorf("range() arg 3 must not be zero")
	}
	count := int64(0)
	if r.step > 0 && r.start < r.stop {
		count = (r.stop-r.start-1)/r.step + 1
	} else if r.step < 0 && r.start > r.stop {
		count = (r.start-r.stop-1)/-r.step + 1
	}
	if count > maxRange {
		return Value{}, errorf("range too big: the sandbox blocks ranges larger than %d", maxRange)
	}
	r.n = int(count)
	return Value{kind: kindRange, ref: r}, nil
}

// buildMap is dict(...): from a mapping or pairs, then keyword arguments.
func buildMap(run *budget, a *callArgs) (*Map, error) {
	if len(a.pos) > 1 {
		return nil, errorf("dict expected at most 1 argument, got %d", len(a.pos))
	}
	m := NewMap()
	if len(a.pos) == 1 {
		from := a.pos[0]
		if from.kind == kindMap {
			from.kind = kindItems
		}
		items, err := run.iterate(from)
		if err != nil {
			return nil, err
		}
		if err := run.chargeValues(2 * len(items)); err != nil {
			return nil, err
		}
		for _, item := range items {
			pair, err := run.iterate(item)
			if err != nil {
				return nil, err
			}
			if len(pair) != 2 {
				return nil, errorf("dictionary update sequence element has length %d; 2 is required", len(pair))
			}
			if err := run.setItem(m, pair[0], pair[1]); err != nil {
				return nil, err
			}
		}
	}
	for _, kw := range a.kw {
		m.Set(kw.name, kw.value)
	}
	return m, run.chargeValues(2 * len(a.kw))
}

func dictGlobal(run *budget, a *callArgs) (Value, error) {
	m, err := buildMap(run, a)
	if err != nil {
		return Value{}, err
	}
	return m.Value(), nil
}

func namespaceGlobal(run *budget, a *callArgs) (Value, error) {
	m, err := buildMap(run, a)
	if err != nil {
		return Value{}, err
	}
	return Value{kind: kindNamespace, ref: m}, nil
}

func raiseGlobal(run *budget, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 1, "message"); err != nil {
		return Value{}, err
	}
	message, err := run.toString(p[0])
	if err != nil {
		return Value{}, err
	}
	return Value{}, &Error{Msg: message.str, Raised: true}
}

func strftimeGlobal(run *budget, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 1, "format"); err != nil {
		return Value{}, err
	}
	layout, err := wantString(p[0], "strftime() argument 1")
	if err != nil {
		return Value{}, err
	}
	return strftime(run, layout)
}

func joinerGlobal(run *budget, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 0, "sep"); err != nil {
		return Value{}, err
	}
	if p[0].kind == kindMissing {
		p[0] = strValue(", ")
	}
	return Value{kind: kindJoiner, ref: &joiner{sep: p[0]}}, run.chargeValues(1)
}

func cyclerGlobal(run *budget, a *callArgs) (Value, error) {
	if err := a.noKeywords(); err != nil {
		return Value{}, err
	}
	if len(a.pos) == 0 {
		return Value{}, errorf("at least one item has to be provided")
	}
	if err := run.chargeValues(len(a.pos)); err != nil {
		return Value{}, err
	}
	return Value{kind: kindCycler, ref: &cycler{items: append([]Value(nil), a.pos...)}}, nil
}
