package chattemplate

// methodFunc is a method of a built-in type.
type methodFunc func(run *budget, self Value, a *callArgs) (Value, error)

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

// mapMethods are the methods of dict that change nothing.
var mapMethods = map[string]methodFunc{
	"get": func(run *budget, self Value, a *callArgs) (Value, error) {
		var p [2]Value
		if err := a.bind(p[:], 1, "key", "default"); err != nil {
			return Value{}, err
		}
		if err := run.work(len(p[0].str)); err != nil {
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
	"copy": func(_ *budget, self Value, a *callArgs) (Value, error) {
		return self, a.bind(nil, 0)
	},
}

func viewMethod(k kind) methodFunc {
	return func(_ *budget, self Value, a *callArgs) (Value, error) {
		self.kind = k
		return self, a.bind(nil, 0)
	}
}

// listMethods are the methods of list and tuple that change nothing.
var listMethods = map[string]methodFunc{
	"index": func(run *budget, self Value, a *callArgs) (Value, error) {
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
			eq, err := run.equal(self.items()[i], p[0])
			if err != nil {
				return Value{}, err
			}
			if eq {
				return Int(int64(i)), nil
			}
		}
		text, err := run.reprOf(p[0])
		if err != nil {
			return Value{}, err
		}
		return Value{}, errorf("%s is not in list", text)
	},
	"count": func(run *budget, self Value, a *callArgs) (Value, error) {
		var p [1]Value
		if err := a.bind(p[:], 1, "value"); err != nil {
			return Value{}, err
		}
		n := int64(0)
		for _, v := range self.items() {
			eq, err := run.equal(v, p[0])
			if err != nil {
				return Value{}, err
			}
			if eq {
				n++
			}
		}
		return Int(n), nil
	},
	"copy": func(_ *budget, self Value, a *callArgs) (Value, error) {
		if self.kind == kindTuple {
			return Value{}, errorf("'tuple' object has no attribute 'copy'")
		}
		return self, a.bind(nil, 0)
	},
}
