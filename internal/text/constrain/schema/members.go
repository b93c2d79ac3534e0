package schema

import (
	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
	"github.com/eagleray/eagleray/internal/text/typed"
)

// Object is what a schema says of objects, for a way of writing them that is not JSON: its members
// in the schema's order, and how many of them there are.
type Object struct {
	Members  []Member
	Min, Max int
}

// Member is a member that an object may have.
type Member struct {
	Name     string
	Required bool
	// Types are those of the values.
	Types typed.Types
	// Texts matches the values that are texts, as they are.
	Texts regex.Ex
	// Scalars matches those that are numbers, booleans and null, as JSON.
	Scalars regex.Ex
	// Other is the symbol of all values that are no texts, as JSON, or in a notation the texts too.
	Other cfg.Sym
}

// Members adds the symbols of what the objects of a schema have in them to a greedy grammar. Keys
// that the schema does not list are left out. An error is an *cfg.Error; schemas whose objects
// cannot be told member by member are cfg.GrammarUnsupported.
func Members(text string, g *cfg.Grammar, options Options, lim Limits) (o Object, err error) {
	err = with(text, texts{b: g.B}, options, lim, func(c *compiler) {
		e := newEmitter(c, g)
		o = c.members(func(m *Member, s *sets) {
			m.Types = s.types()
			m.Scalars = e.scalars(s)
			m.Other = g.Nonterminal(m.Name)
			rest := *s
			if options.Notation == nil {
				rest.strings = nil
			}
			e.rules(m.Other, &rest)
		})
		e.run()
	})
	if err != nil || options.Notation != nil {
		return o, err
	}
	// The same sets, with texts as they are. Both have the same members.
	err = with(text, texts{b: g.B, raw: true}, options, lim, func(c *compiler) {
		i := 0
		c.members(func(m *Member, s *sets) {
			if s.strings != nil {
				o.Members[i].Texts = c.text.of(s.strings)
			}
			i++
		})
	})
	if err != nil {
		return Object{}, err
	}
	return o, nil
}

// members lists those of the objects of the schema, and calls of with the values of each.
func (c *compiler) members(of func(m *Member, values *sets)) Object {
	s := c.resolve(c.schemaOf(c.docs.root, false))
	if c.bad() {
		c.place()
		return Object{}
	}
	if len(s.objects) == 0 {
		c.fail(&cfg.Error{Code: cfg.SchemaUnsatisfiable, Subject: "unsatisfiable",
			Reason: "no object is valid against the schema"})
		return Object{}
	}
	found := s.objects[0]
	if len(s.objects) > 1 || len(found.cells) > 1 || len(found.exists) > 0 {
		c.fail(&cfg.Error{Code: cfg.GrammarUnsupported,
			Reason: "which members an object has does not follow from a list of them"})
		return Object{}
	}
	o := Object{Min: found.least, Max: found.most}
	for _, p := range found.props {
		if !p.named && p.required {
			c.fail(&cfg.Error{Code: cfg.GrammarUnsupported, Pointer: "/required", Reason: "\"" +
				clip(p.name) + "\" is required and no property"})
			return Object{}
		}
		if !p.named {
			continue
		}
		c.at = p.node
		values := c.resolve(p.node)
		if c.bad() {
			c.place()
			return Object{}
		}
		switch {
		case values.none() && p.required:
			c.fail(&cfg.Error{Code: cfg.SchemaUnsatisfiable, Subject: "unsatisfiable",
				Reason: "no value of a member that is required is valid"})
			c.place()
			return Object{}
		case values.none():
			continue
		}
		m := Member{Name: p.name, Required: p.required}
		of(&m, values)
		o.Members = append(o.Members, m)
	}
	return o
}

// scalars is the expression of the values of a set that are a word.
func (e *emitter) scalars(s *sets) regex.Ex {
	b := e.g.B
	x := regex.Empty
	if s.null {
		x = b.Lit(e.words[0])
	}
	if s.yes {
		x = b.Or(x, b.Lit(e.words[1]))
	}
	if s.no {
		x = b.Or(x, b.Lit(e.words[2]))
	}
	for _, n := range s.numbers {
		x = b.Or(x, e.numbers.text(n))
	}
	return x
}

// types are those of which a set has values.
func (s *sets) types() (t typed.Types) {
	for _, x := range []struct {
		has  bool
		what typed.Types
	}{{s.strings != nil, typed.String}, {len(s.numbers) > 0, typed.Number},
		{s.yes || s.no, typed.Bool}, {s.null, typed.Null}, {len(s.arrays) > 0, typed.Array},
		{len(s.objects) > 0, typed.Object}} {
		if x.has {
			t |= x.what
		}
	}
	return t
}

// typesFuel is the work that finding out types may take.
const typesFuel = 100_000

// Types returns the types of the values that the properties of a schema may have: any, where the
// schema cannot be enforced or that is too much to find out.
func Types(text string) map[string]typed.Types {
	found := map[string]typed.Types{}
	t := texts{b: regex.NewBuilder(typesFuel)}
	_ = with(text, t, Options{}, Limits{Fuel: typesFuel}, func(c *compiler) {
		properties := c.docs.root.get("properties")
		if properties == nil || properties.kind != kObject {
			return
		}
		for _, name := range properties.names {
			found[name] = typed.Any
		}
		for i, name := range properties.names {
			if s := c.resolve(c.schemaOf(properties.list[i], false)); s != nil {
				found[name] = s.types()
			}
			c.err = nil // it is of one property
		}
	})
	return found
}
