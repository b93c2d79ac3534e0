package chattemplate

import "math"

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

func rangeGlobal(_ *state, a *callArgs) (Value, error) {
	if err := a.noKeywords(); err != nil {
		return Value{}, err
	}
	if len(a.pos) < 1 || len(a.pos) > 3 {
		return Value{}, errorf("range expected 1 to 3 arguments, got %d", len(a.pos))
	}
	var n [3]int64
	for i, v := range a.pos {
		if v.isUndefined() {
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
func buildMap(st *state, a *callArgs) (*Map, error) {
	if len(a.pos) > 1 {
		return nil, errorf("dict expected at most 1 argument, got %d", len(a.pos))
	}
	m := NewMap()
	if len(a.pos) == 1 {
		from := a.pos[0]
		if from.kind == kindMap {
			from.kind = kindItems
		}
		items, err := st.iterate(from)
		if err != nil {
			return nil, err
		}
		if err := st.chargeValues(2 * len(items)); err != nil {
			return nil, err
		}
		for _, item := range items {
			pair, err := st.iterate(item)
			if err != nil {
				return nil, err
			}
			if len(pair) != 2 {
				return nil, errorf("dictionary update sequence element has length %d; 2 is required", len(pair))
			}
			if err := st.setItem(m, pair[0], pair[1]); err != nil {
				return nil, err
			}
		}
	}
	for _, kw := range a.kw {
		m.Set(kw.name, kw.value)
	}
	return m, st.chargeValues(2 * len(a.kw))
}

func dictGlobal(st *state, a *callArgs) (Value, error) {
	m, err := buildMap(st, a)
	if err != nil {
		return Value{}, err
	}
	return m.Value(), nil
}

func namespaceGlobal(st *state, a *callArgs) (Value, error) {
	m, err := buildMap(st, a)
	if err != nil {
		return Value{}, err
	}
	return Value{kind: kindNamespace, ref: m}, nil
}

func raiseGlobal(st *state, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 1, "message"); err != nil {
		return Value{}, err
	}
	message, err := st.toString(p[0])
	if err != nil {
		return Value{}, err
	}
	return Value{}, &Error{Msg: message.str, Raised: true}
}

func strftimeGlobal(st *state, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 1, "format"); err != nil {
		return Value{}, err
	}
	layout, err := wantString(p[0], "strftime() argument 1")
	if err != nil {
		return Value{}, err
	}
	return st.strftime(layout)
}

// joiner is jinja2's joiner: empty when first called, the separator after that.
type joiner struct {
	sep  Value
	used bool
}

func joinerGlobal(st *state, a *callArgs) (Value, error) {
	var p [1]Value
	if err := a.bind(p[:], 0, "sep"); err != nil {
		return Value{}, err
	}
	if p[0].kind == kindMissing {
		p[0] = strValue(", ")
	}
	return Value{kind: kindJoiner, ref: &joiner{sep: p[0]}}, st.chargeValues(1)
}

func (j *joiner) call(a *callArgs) (Value, error) {
	if err := a.bind(nil, 0); err != nil {
		return Value{}, err
	}
	if !j.used {
		j.used = true
		return strValue(""), nil
	}
	return j.sep, nil
}

// cycler is jinja2's cycler.
type cycler struct {
	items []Value
	pos   int
}

func cyclerGlobal(st *state, a *callArgs) (Value, error) {
	if err := a.noKeywords(); err != nil {
		return Value{}, err
	}
	if len(a.pos) == 0 {
		return Value{}, errorf("at least one item has to be provided")
	}
	if err := st.chargeValues(len(a.pos)); err != nil {
		return Value{}, err
	}
	return Value{kind: kindCycler, ref: &cycler{items: append([]Value(nil), a.pos...)}}, nil
}

var cyclerMethods = map[string]methodFunc{
	"next": func(_ *state, self Value, a *callArgs) (Value, error) {
		c := self.ref.(*cycler)
		v := c.items[c.pos]
		c.pos = (c.pos + 1) % len(c.items)
		return v, a.bind(nil, 0)
	},
	"reset": func(_ *state, self Value, a *callArgs) (Value, error) {
		self.ref.(*cycler).pos = 0
		return None(), a.bind(nil, 0)
	},
}

// mapMethods are the methods of dict that change nothing.
var mapMethods = map[string]methodFunc{
	"get": func(st *state, self Value, a *callArgs) (Value, error) {
		var p [2]Value
		if err := a.bind(p[:], 1, "key", "default"); err != nil {
			return Value{}, err
		}
		if err := st.work(len(p[0].str)); err != nil {
			return Value{}, err
		}
		i, err := self.mapping().find(p[0])
		if err != nil {
			return Value{}, err
		}
		if i >= 0 {
			return self.mapping().entries[i].value, nil
		}
		if p[1].kind == kindMissing {
			return None(), nil
		}
		return p[1], nil
	},
	"items":  viewMethod(kindItems),
	"keys":   viewMethod(kindKeys),
	"values": viewMethod(kindValues),
	"copy": func(_ *state, self Value, a *callArgs) (Value, error) {
		return self, a.bind(nil, 0)
	},
}

func viewMethod(k kind) methodFunc {
	return func(_ *state, self Value, a *callArgs) (Value, error) {
		self.kind = k
		return self, a.bind(nil, 0)
	}
}

// listMethods are the methods of list and tuple that change nothing.
var listMethods = map[string]methodFunc{
	"index": func(st *state, self Value, a *callArgs) (Value, error) {
		var p [3]Value
		if err := a.bind(p[:], 1, "value", "start", "stop"); err != nil {
			return Value{}, err
		}
		n := len(self.items())
		start, err := wantInt(p[1], "start", 0)
		if err != nil {
			return Value{}, err
		}
		stop, err := wantInt(p[2], "stop", n)
		if err != nil {
			return Value{}, err
		}
		if start < 0 {
			start = max(0, start+n)
		}
		if stop < 0 {
			stop += n
		}
		for i := start; i < min(stop, n); i++ {
			eq, err := st.equal(self.items()[i], p[0])
			if err != nil {
				return Value{}, err
			}
			if eq {
				return intValue(int64(i)), nil
			}
		}
		text, err := st.reprOf(p[0])
		if err != nil {
			return Value{}, err
		}
		return Value{}, errorf("%s is not in list", text)
	},
	"count": func(st *state, self Value, a *callArgs) (Value, error) {
		var p [1]Value
		if err := a.bind(p[:], 1, "value"); err != nil {
			return Value{}, err
		}
		n := int64(0)
		for _, v := range self.items() {
			eq, err := st.equal(v, p[0])
			if err != nil {
				return Value{}, err
			}
			if eq {
				n++
			}
		}
		return intValue(n), nil
	},
	"copy": func(_ *state, self Value, a *callArgs) (Value, error) {
		if self.kind == kindTuple {
			return Value{}, errorf("'tuple' object has no attribute 'copy'")
		}
		return self, a.bind(nil, 0)
	},
}
