package chattemplate

// joiner is jinja2's joiner: empty when first called, the separator after that.
type joiner struct {
	sep  Value
	used bool
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

var cyclerMethods = map[string]methodFunc{
	"next": func(_ *budget, self Value, a *callArgs) (Value, error) {
		c := self.ref.(*cycler)
		v := c.items[c.pos]
		c.pos = (c.pos + 1) % len(c.items)
		return v, a.bind(nil, 0)
	},
	"reset": func(_ *budget, self Value, a *callArgs) (Value, error) {
		self.ref.(*cycler).pos = 0
		return None(), a.bind(nil, 0)
	},
}
