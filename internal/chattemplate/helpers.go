package chattemplate

// joiner is jinja2's joiner: empty when first called, the separator after that.
type joiner struct {
	Sep  Value
	used bool
}

func (j *joiner) Call(a *Args) (Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return Value{}, err
	}
	if !j.used {
		j.used = true
		return Str(""), nil
	}
	return j.Sep, nil
}

// cycler is jinja2's cycler.
type cycler struct {
	Items []Value
	pos   int
}

var cyclerMethods = map[string]methodFunc{
	"next": func(_ *Budget, self Value, a *Args) (Value, error) {
		c := self.Ref.(*cycler)
		v := c.Items[c.pos]
		c.pos = (c.pos + 1) % len(c.Items)
		return v, a.Bind(nil, 0)
	},
	"reset": func(_ *Budget, self Value, a *Args) (Value, error) {
		self.Ref.(*cycler).pos = 0
		return None(), a.Bind(nil, 0)
	},
}
