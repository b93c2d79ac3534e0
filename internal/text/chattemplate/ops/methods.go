package ops

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// MethodOf returns the method of v's type with that name, or nil.
func MethodOf(v values.Value, name string) values.Method {
	switch v.Kind {
	case values.KindString:
		return stringMethods[name]
	case values.KindMap:
		return mapMethods[name]
	case values.KindList, values.KindTuple:
		return listMethods[name]
	case values.KindCycler:
		return cyclerMethods[name]
	}
	return nil
}

// mapMethods are the methods of dict that change nothing.
var mapMethods = map[string]values.Method{
	"get": func(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		var p [2]values.Value
		if err := a.Bind(p[:], 1, "key", "default"); err != nil {
			return values.Value{}, err
		}
		if err := run.Work(len(p[0].Text)); err != nil {
			return values.Value{}, err
		}
		i, err := self.Mapping().Find(p[0])
		if err != nil {
			return values.Value{}, err
		}
		if i >= 0 {
			return self.Mapping().Entries[i].Value, nil
		}
		if p[1].Kind == values.KindMissing {
			return values.None(), nil
		}
		return p[1], nil
	},
	"items":  viewMethod(values.KindItems),
	"keys":   viewMethod(values.KindKeys),
	"values": viewMethod(values.KindValues),
	"copy": func(_ *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		return self, a.Bind(nil, 0)
	},
}

func viewMethod(k values.Kind) values.Method {
	return func(_ *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		self.Kind = k
		return self, a.Bind(nil, 0)
	}
}

// listMethods are the methods of list and tuple that change nothing.
var listMethods = map[string]values.Method{
	"index": func(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		var p [3]values.Value
		if err := a.Bind(p[:], 1, "value", "start", "stop"); err != nil {
			return values.Value{}, err
		}
		n := len(self.Items())
		start, err := values.WantInt(p[1], "start", 0)
		if err != nil {
			return values.Value{}, err
		}
		stop, err := values.WantInt(p[2], "stop", n)
		if err != nil {
			return values.Value{}, err
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
				return values.Value{}, err
			}
			if eq {
				return values.Int(int64(i)), nil
			}
		}
		text, err := run.ReprOf(p[0])
		if err != nil {
			return values.Value{}, err
		}
		return values.Value{}, values.Errorf("%s is not in list", text)
	},
	"count": func(run *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		var p [1]values.Value
		if err := a.Bind(p[:], 1, "value"); err != nil {
			return values.Value{}, err
		}
		n := int64(0)
		for _, v := range self.Items() {
			eq, err := run.Equal(v, p[0])
			if err != nil {
				return values.Value{}, err
			}
			if eq {
				n++
			}
		}
		return values.Int(n), nil
	},
	"copy": func(_ *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		if self.Kind == values.KindTuple {
			return values.Value{}, values.Errorf("'tuple' object has no attribute 'copy'")
		}
		return self, a.Bind(nil, 0)
	},
}
