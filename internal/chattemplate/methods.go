package chattemplate

// methodFunc is a method of a built-in type.
type methodFunc func(run *Budget, self Value, a *Args) (Value, error)

// methodOf returns the method of v's type with that name, or nil.
func methodOf(v Value, name string) methodFunc {
	switch v.Kind {
	case KindString:
		return stringMethods[name]
	case KindMap:
		return mapMethods[name]
	case KindList, KindTuple:
		return listMethods[name]
	case KindCycler:
		return cyclerMethods[name]
	}
	return nil
}

// mapMethods are the methods of dict that change nothing.
var mapMethods = map[string]methodFunc{
	"get": func(run *Budget, self Value, a *Args) (Value, error) {
		var p [2]Value
		if err := a.Bind(p[:], 1, "key", "default"); err != nil {
			return Value{}, err
		}
		if err := run.Work(len(p[0].Text)); err != nil {
			return Value{}, err
		}
		i, err := self.Mapping().Find(p[0])
		if err != nil {
			return Value{}, err
		}
		if i >= 0 {
			return self.Mapping().Entries[i].Value, nil
		}
		if p[1].Kind == KindMissing {
			return None(), nil
		}
		return p[1], nil
	},
	"items":  viewMethod(KindItems),
	"keys":   viewMethod(KindKeys),
	"values": viewMethod(KindValues),
	"copy": func(_ *Budget, self Value, a *Args) (Value, error) {
		return self, a.Bind(nil, 0)
	},
}

func viewMethod(k Kind) methodFunc {
	return func(_ *Budget, self Value, a *Args) (Value, error) {
		self.Kind = k
		return self, a.Bind(nil, 0)
	}
}

// listMethods are the methods of list and tuple that change nothing.
var listMethods = map[string]methodFunc{
	"index": func(run *Budget, self Value, a *Args) (Value, error) {
		var p [3]Value
		if err := a.Bind(p[:], 1, "value", "start", "stop"); err != nil {
			return Value{}, err
		}
		n := len(self.Items())
		start, err := WantInt(p[1], "start", 0)
		if err != nil {
			return Value{}, err
		}
		stop, err := WantInt(p[2], "stop", n)
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
			eq, err := run.Equal(self.Items()[i], p[0])
			if err != nil {
				return Value{}, err
			}
			if eq {
				return Int(int64(i)), nil
			}
		}
		text, err := run.ReprOf(p[0])
		if err != nil {
			return Value{}, err
		}
		return Value{}, Errorf("%s is not in list", text)
	},
	"count": func(run *Budget, self Value, a *Args) (Value, error) {
		var p [1]Value
		if err := a.Bind(p[:], 1, "value"); err != nil {
			return Value{}, err
		}
		n := int64(0)
		for _, v := range self.Items() {
			eq, err := run.Equal(v, p[0])
			if err != nil {
				return Value{}, err
			}
			if eq {
				n++
			}
		}
		return Int(n), nil
	},
	"copy": func(_ *Budget, self Value, a *Args) (Value, error) {
		if self.Kind == KindTuple {
			return Value{}, Errorf("'tuple' object has no attribute 'copy'")
		}
		return self, a.Bind(nil, 0)
	},
}
