package schema

import (
	"encoding/json"
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// textSet is a set of strings.
type textSet struct {
	// among, if listed, are the only strings.
	among  []string
	listed bool
	// ex matches the strings, as texts spells them. For listed ones it is made when it is asked
	// for.
	ex regex.Ex
	// least and most, if most is not 0, say that ex is all strings of those lengths.
	least, most int
	held        bool // its memory is counted
}

// texts makes sets of strings of one Builder, and of keys: as they stand between quotes in JSON, in
// the plain spelling of each character, or, raw, as they are.
type texts struct {
	b   *regex.Builder
	raw bool
}

// any matches every string, rune any one character of it.
func (t texts) any() regex.Ex { return t.b.Star(t.rune()) }

func (t texts) rune() regex.Ex {
	if t.raw {
		return t.b.AnyRune()
	}
	return t.b.JSONRune()
}

// spell is how a string stands.
func (t texts) spell(s string) string {
	if t.raw {
		return s
	}
	return regex.JSONSpell(s)
}

// found matches the strings in which a pattern is found.
func (t texts) found(pattern string) (regex.Ex, error) {
	return t.b.Pattern(pattern, regex.Syntax{JSON: !t.raw, Search: true})
}

func (t texts) all() *textSet { return &textSet{ex: t.any(), most: regex.Inf} }

// lengths are the strings of least to most characters.
func (t texts) lengths(least, most int) *textSet {
	if most == 0 {
		return &textSet{among: []string{""}, listed: true}
	}
	return &textSet{ex: t.b.Rep(t.rune(), least, most), least: least, most: most}
}

func (t texts) list(among ...string) *textSet { return &textSet{among: among, listed: true} }

func (t texts) of(s *textSet) regex.Ex {
	if !s.listed {
		return s.ex
	}
	if s.ex == regex.Empty && len(s.among) > 0 {
		spelled := make([]string, len(s.among))
		for i, x := range s.among {
			spelled[i] = t.spell(x)
		}
		s.ex = t.b.Lits(spelled)
	}
	return s.ex
}

func (t texts) isAll(s *textSet) bool { return !s.listed && s.ex == t.any() }

func (t texts) has(s *textSet, x string) bool {
	if s.listed {
		return slices.Contains(s.among, x)
	}
	return t.b.Match(s.ex, t.spell(x))
}

// few lists the strings of a set that is not listed, if they are at most anyOrderBits.
func (t texts) few(s *textSet) (among []string, ok bool) {
	list, ok := t.b.List(s.ex, anyOrderBits)
	if !ok || t.raw {
		return list, ok
	}
	for _, x := range list {
		var text string
		if json.Unmarshal([]byte(`"`+x+`"`), &text) != nil {
			return nil, false
		}
		among = append(among, text)
	}
	return among, true
}

// keep are the listed strings of s that ok accepts.
func keep(s *textSet, ok func(string) bool) *textSet {
	return &textSet{listed: true, among: slices.DeleteFunc(slices.Clone(s.among),
		func(x string) bool { return !ok(x) })}
}

// member returns a test for membership that is quick however many strings are listed.
func (t texts) member(s *textSet) func(string) bool {
	if !s.listed {
		return func(x string) bool { return t.has(s, x) }
	}
	t.spend(s)
	in := make(map[string]bool, len(s.among))
	for _, x := range s.among {
		in[x] = true
	}
	return func(x string) bool { return in[x] }
}

func (t texts) and(s, u *textSet) *textSet {
	switch {
	case t.isAll(s):
		return u
	case t.isAll(u) || s == u:
		return s
	case s.listed:
		t.spend(s)
		return keep(s, t.member(u))
	case u.listed:
		t.spend(u)
		return keep(u, t.member(s))
	case s.most != 0 && u.most != 0:
		most := s.most
		if most == regex.Inf || u.most != regex.Inf && u.most < most {
			most = u.most
		}
		return t.lengths(max(s.least, u.least), most)
	}
	return &textSet{ex: t.b.And(s.ex, u.ex)}
}

func (t texts) minus(s, u *textSet) *textSet {
	switch {
	case s.listed:
		t.spend(s)
		in := t.member(u)
		return keep(s, func(x string) bool { return !in(x) })
	case t.isAll(u):
		return t.list()
	}
	return &textSet{ex: t.b.Minus(s.ex, t.of(u))}
}

// or is the strings of any of some sets, at least one.
func (t texts) or(list ...*textSet) *textSet {
	if len(list) == 1 {
		return list[0]
	}
	listed := t.list()
	in := map[string]bool{}
	var rest []regex.Ex
	for _, s := range list {
		switch {
		case t.isAll(s):
			return s
		case !s.listed:
			rest = append(rest, s.ex)
			continue
		}
		t.spend(s)
		for _, x := range s.among {
			if !in[x] {
				in[x] = true
				listed.among = append(listed.among, x)
			}
		}
	}
	if rest == nil {
		return listed
	}
	return &textSet{ex: t.b.Or(append(rest, t.of(listed))...)}
}

// spend counts the work of going through the strings of a list, as that of operands.
func (t texts) spend(s *textSet) { t.b.Spend(len(s.among) / 16) }

// empty says that the set has no string.
func (t texts) empty(s *textSet) bool {
	if s.listed {
		return len(s.among) == 0
	}
	return t.b.Dead(s.ex)
}
