package schema

// Limits bound what one schema costs. A zero field stands for its default.
type Limits struct {
	Bytes  int // of the schema's text
	Depth  int // nesting of the schema's JSON
	Values int // JSON values in the schema
	Nodes  int // schemas, and combinations of schemas, looked at
	// Branches bounds the alternatives that one schema has after its combinators are resolved.
	Branches int
	// States bounds the states of one array whose items are counted.
	States int
	// Fuel bounds the work in operations; that of patterns is counted by the regex.Builder.
	Fuel int
	// Left, if not nil, is what of Fuel is left to all schemas of one constraint together.
	Left *int
}

// Fuel is the default of Limits.Fuel.
const Fuel = 4_000_000

var defaults = Limits{Bytes: 1 << 20, Depth: 128, Values: 250_000, Nodes: 60_000, Branches: 256,
	States: 4096, Fuel: Fuel}

func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Bytes, defaults.Bytes}, {&l.Depth, defaults.Depth}, {&l.Values, defaults.Values},
		{&l.Nodes, defaults.Nodes}, {&l.Branches, defaults.Branches}, {&l.States, defaults.States},
		{&l.Fuel, defaults.Fuel}} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	if l.Left == nil {
		l.Left = &l.Fuel
	}
	return l
}
