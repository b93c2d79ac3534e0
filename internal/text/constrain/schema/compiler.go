// Package schema turns a JSON Schema (draft 2020-12, 2019-09, 7, 6 or 4) into a grammar of the
// JSON texts that are valid against it. A schema becomes sets of values by type, which are closed
// under intersection and complement; children of arrays and objects stay references until a
// grammar rule for them is made, so that recursion is finite. What cannot be enforced is refused
// with the JSON pointer of the keyword, never left out. It is pure, and counts its work.
package schema

import (
	"encoding/binary"
	"fmt"
	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// id names a schema, or a combination of schemas.
type id int32

const (
	top    = 0 // every value
	bottom = 1 // none
)

type op uint8

const (
	opTop op = iota
	opBottom
	opSchema // a schema of the text
	opValue  // the values that are equal to one of the text
	opAnd
	opOr
	opNot
)

// node is what an id stands for, and what is known of it.
type node struct {
	op  op
	src *value
	// track keeps note of the keys and items that src has looked at.
	track bool
	args  []id
	// sets is what the node is resolved to, nil before.
	sets *sets
	// level, if not 0, is 1 plus the number of probes under which it is being resolved.
	level int
}

// compiler has the state of one compilation.
type compiler struct {
	lim  Limits
	text texts
	docs *documents

	nodes []node
	ids   map[string]id
	// patterns are the expressions of the patterns that were met.
	patterns map[string]regex.Ex
	// level counts the probes under way: looks ahead whether a schema is empty, that do not mind
	// if the answer is unknown.
	level   int
	unknown bool
	left    *int // operations
	held    int  // bytes that are counted until the end
	err     *cfg.Error
	options Options
	// at is the schema whose rules are being made.
	at id
}

// maxLevel is how many probes may be under way at a time.
const maxLevel = 6

func (c *compiler) fail(e *cfg.Error) {
	if c.err == nil {
		c.err = e
	}
}

// at is an error with a place. The keyword is the pointer's last part where there is no other.
func (c *compiler) refuse(code string, at *value, keyword, format string, args ...any) {
	c.fail(&cfg.Error{Code: code, Pointer: at.pointer(), Subject: keyword,
		Reason: fmt.Sprintf(format, args...)})
}

func (c *compiler) unsupported(keyword, format string, args ...any) {
	c.fail(&cfg.Error{Code: cfg.SchemaUnsupported, Subject: keyword,
		Reason: fmt.Sprintf(format, args...)})
}

func (c *compiler) tooComplex(keyword, format string, args ...any) {
	c.fail(&cfg.Error{Code: cfg.SchemaTooComplex, Subject: keyword,
		Reason: fmt.Sprintf(format, args...)})
}

// abandoned is what a compilation panics with that has come to a limit: whatever is under way is of
// no use, and a loop that went on would have no bound.
type abandoned struct{}

// abandon ends the compilation. Compile returns the error.
func (c *compiler) abandon(keyword, format string, args ...any) {
	c.err = nil // what a probe has met is of no use, either
	c.tooComplex(keyword, format, args...)
	panic(abandoned{})
}

// spend counts n operations. It ends the compilation when too many have been done, here or on
// expressions: every loop whose length the schema decides calls it.
func (c *compiler) spend(n int) {
	if *c.left -= n + 1; *c.left < 0 {
		c.abandon("fuel", "it takes more than %d operations to resolve", c.lim.Fuel)
	}
	if b := c.text.b; b.Exhausted() {
		c.abandon("pattern", "the patterns take more than %d operations to combine", b.Given())
	}
}

// hold counts memory that is in use until the end.
func (c *compiler) hold(bytes int) {
	c.held += bytes
	if c.text.b.Hold(bytes); c.text.b.Full() {
		c.abandon("memory", "it takes too much memory to resolve")
	}
}

// dead asks for the emptiness of an expression.
func (c *compiler) dead(x regex.Ex) bool {
	d := c.text.b.Dead(x)
	c.spend(0)
	return d
}

func (c *compiler) intern(n node, key []byte) id {
	if i, ok := c.ids[string(key)]; ok {
		return i
	}
	if len(c.nodes) >= c.lim.Nodes {
		c.tooComplex("size", "more than %d schemas come of combining those of the text",
			c.lim.Nodes)
		return top
	}
	c.spend(len(n.args))
	i := id(len(c.nodes))
	c.nodes = append(c.nodes, n)
	c.ids[string(key)] = i
	c.hold(2*setBytes + len(key) + 4*len(n.args))
	return i
}

// schema is the id of a schema of the text.
func (c *compiler) schema(v *value, track bool) id {
	switch {
	case v.isTrue() || v.kind == kObject && len(v.list) == 0:
		return top
	case v.isFalse():
		return bottom
	}
	flag := byte(0)
	if track {
		flag = 1
	}
	return c.intern(node{op: opSchema, src: v, track: track}, c.sourceKey(opSchema, flag, v))
}

func (c *compiler) sourceKey(o op, flag byte, v *value) []byte {
	return binary.AppendUvarint([]byte{byte(o), flag}, uint64(c.docs.number(v)))
}

// literal is the id of the values equal to v.
func (c *compiler) literal(v *value) id {
	return c.intern(node{op: opValue, src: v}, c.sourceKey(opValue, 0, v))
}

// combine is the id of the intersection or union of nodes, in the order given.
func (c *compiler) combine(o op, list []id) id {
	none, only := id(bottom), id(top)
	if o == opOr {
		none, only = top, bottom
	}
	var args []id
	for _, x := range list {
		parts := []id{x}
		if c.nodes[x].op == o {
			parts = c.nodes[x].args
		}
		for _, p := range parts {
			c.spend(len(args) / perUnit) // to find out whether it is there already
			switch {
			case p == none:
				return none
			case p == only || slices.Contains(args, p):
			default:
				args = append(args, p)
			}
		}
	}
	for _, x := range args {
		n := &c.nodes[x]
		if n.op != opNot {
			continue
		}
		if c.spend(len(args) / perUnit); slices.Contains(args, n.args[0]) {
			return none
		}
	}
	switch len(args) {
	case 0:
		return only
	case 1:
		return args[0]
	}
	key := []byte{byte(o)}
	for _, a := range args {
		key = binary.AppendUvarint(key, uint64(a))
	}
	return c.intern(node{op: o, args: args}, key)
}

// perUnit is how many ids are looked at in the time of an operation.
const perUnit = 64

func (c *compiler) and(x, y id) id {
	switch {
	case x == top || x == y:
		return y
	case y == top:
		return x
	}
	return c.combine(opAnd, []id{x, y})
}

func (c *compiler) or(list ...id) id { return c.combine(opOr, list) }

func (c *compiler) not(x id) id {
	switch {
	case x == top:
		return bottom
	case x == bottom:
		return top
	case c.nodes[x].op == opNot:
		return c.nodes[x].args[0]
	}
	return c.intern(node{op: opNot, args: []id{x}},
		binary.AppendUvarint([]byte{byte(opNot)}, uint64(x)))
}

// resolve is the sets of a node. It is nil if there was an error, or if a probe cannot know.
func (c *compiler) resolve(x id) *sets {
	n := &c.nodes[x]
	if n.sets != nil {
		return n.sets
	}
	if c.err != nil || c.unknown {
		return nil
	}
	if n.level > 0 {
		if n.level-1 < c.level {
			c.unknown = true // below a probe: whether it is empty depends on itself
			return nil
		}
		c.refuse(cfg.SchemaInvalid, c.source(x), "$ref",
			"the schema refers to itself without an array or object between")
		return nil
	}
	n.level = c.level + 1
	s := c.evaluate(x)
	n = &c.nodes[x]
	n.level = 0
	if c.err != nil || c.unknown {
		return nil
	}
	n.sets = s
	c.keep(s)
	return s
}

// source is a schema of the text that a node is made of.
func (c *compiler) source(x id) *value {
	for c.nodes[x].src == nil && len(c.nodes[x].args) > 0 {
		x = c.nodes[x].args[0]
	}
	return c.nodes[x].src
}

func (c *compiler) evaluate(x id) *sets {
	n := c.nodes[x]
	switch n.op {
	case opTop:
		return c.everything()
	case opSchema:
		return c.keywords(n.src, n.track)
	case opValue:
		return c.single(n.src)
	case opNot:
		s := c.resolve(n.args[0])
		if s == nil {
			return nil
		}
		return c.minus(c.everything(), s)
	case opAnd, opOr:
		var all *sets
		var alts []*sets
		for _, a := range n.args {
			if n.op == opAnd && all != nil && c.nodes[a].op == opNot {
				s := c.resolve(c.nodes[a].args[0])
				if s == nil {
					return nil
				}
				all = c.minus(all, s)
				continue
			}
			s := c.resolve(a)
			switch {
			case s == nil:
				return nil
			case n.op == opOr:
				alts = append(alts, s)
			case all == nil:
				all = s
			default:
				all = c.intersect(all, s)
			}
		}
		if n.op == opOr {
			return c.union(alts...)
		}
		return all
	}
	return &sets{}
}

// empty says that a schema surely has no value. It is a probe: false may mean that it is not known.
func (c *compiler) empty(x id) bool {
	if x == top || x == bottom {
		return x == bottom
	}
	if s := c.nodes[x].sets; s != nil {
		return s.none()
	}
	if c.err != nil || c.level >= maxLevel {
		return false
	}
	unknown := c.unknown
	c.unknown = false
	c.level++
	s := c.resolve(x)
	c.level--
	c.unknown = unknown
	if c.err != nil && c.err.Subject != "fuel" {
		c.err = nil // to be met again where the schema is used, if it is
	}
	return s != nil && s.none()
}
