package ops

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// Joiner is jinja2's joiner: empty when first called, the separator after that.
type Joiner struct {
	Sep  values.Value
	used bool
}

// Call is what calling the joiner yields.
func (j *Joiner) Call(a *values.Args) (values.Value, error) {
	if err := a.Bind(nil, 0); err != nil {
		return values.Value{}, err
	}
	if !j.used {
		j.used = true
		return values.Str(""), nil
	}
	return j.Sep, nil
}

// Cycler is jinja2's cycler.
type Cycler struct {
	Items []values.Value
	pos   int
}

var cyclerMethods = map[string]values.Method{
	"next": func(_ *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		c := self.Ref.(*Cycler)
		v := c.Items[c.pos]
		c.pos = (c.pos + 1) % len(c.Items)
		return v, a.Bind(nil, 0)
	},
	"reset": func(_ *values.Budget, self values.Value, a *values.Args) (values.Value, error) {
		self.Ref.(*Cycler).pos = 0
		return values.None(), a.Bind(nil, 0)
	},
}
