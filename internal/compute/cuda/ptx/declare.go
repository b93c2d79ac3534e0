package ptx

import (
	"encoding/binary"
	"math"
	"strings"
)

var spaces = map[string]space{
	".global": globalSpace, ".const": constSpace, ".shared": sharedSpace,
	".local": localSpace, ".param": paramSpace,
}

// variables reads a declaration of variables up to its semicolon.
func (p *parser) variables(s *scope, external bool) error {
	v, err := p.variable(external)
	if err != nil {
		return err
	}
	if s.vars[v.name] != nil {
		return p.errorf("%s is declared twice", v.name)
	}
	s.vars[v.name] = v
	s.ordered = append(s.ordered, v)
	v.inBody = s.parent != nil
	p.mod.declare(v)
	return p.expect(";")
}

// variable reads a state space, a type, a name, dimensions and an initialiser.
func (p *parser) variable(external bool) (*variable, error) {
	v := &variable{external: external}
	element, count := typ{}, uint64(1)
	for strings.HasPrefix(p.peek().text, ".") && p.peek().kind == wordToken {
		w := p.pop().text
		sp, isSpace := spaces[w]
		t, isType := types[w[1:]]
		switch {
		case isSpace && v.name == "" && element.bits == 0:
			v.space = sp
		case isType:
			element = t
		case w == ".v2":
			count = 2
		case w == ".v4":
			count = 4
		case w == ".align":
			n, err := p.count(1 << 16)
			if err != nil || n == 0 || n&(n-1) != 0 {
				return nil, p.errorf("an alignment is a power of two")
			}
			v.align = n
		case w == ".attribute":
			p.skipPast(")")
		case w == ".ptr":
			// .ptr .global .align 8: what a parameter points to, not how it lies.
			p.pointee()
		case w == ".weak", w == ".visible", w == ".extern":
		default:
			return nil, p.errorf("unknown %q in a declaration", w)
		}
	}
	if element.bits == 0 {
		return nil, p.errorf("a declaration without a type")
	}
	var err error
	if v.name, err = p.word(); err != nil {
		return nil, err
	}
	if v.align == 0 {
		v.align = max(1, element.size()) * int(count)
	}
	return v, p.extent(v, element, count*uint64(max(1, element.size())))
}

func (p *parser) pointee() {
	for {
		switch p.peek().text {
		case ".global", ".const", ".shared", ".local":
			p.pop()
		case ".align":
			p.at += 2
			p.at = min(p.at, len(p.tokens)-1)
		default:
			return
		}
	}
}

// extent reads the dimensions of an array and its initialiser; size is an element's bytes.
func (p *parser) extent(v *variable, element typ, size uint64) error {
	unsized := false
	for p.accept("[") {
		if p.accept("]") {
			size, unsized = 0, true
			continue
		}
		n, err := p.count(maxVariable)
		if err != nil {
			return err
		}
		if size *= uint64(n); size > maxVariable {
			return p.errorf("%s is too large", v.name)
		}
		if err := p.expect("]"); err != nil {
			return err
		}
	}
	v.size = size
	if v.external && v.space != sharedSpace {
		return p.errorf("%s: external variables are not known but in shared memory", v.name)
	}
	v.external = v.external || unsized && v.space == sharedSpace
	if !p.accept("=") {
		return nil
	}
	if v.space != globalSpace && v.space != constSpace {
		return p.errorf("%s: only module variables have initialisers", v.name)
	}
	at := uint64(0)
	if err := p.initialiser(v, element, &at); err != nil {
		return err
	}
	if unsized {
		v.size = at
	}
	return nil
}

// initialiser reads a number, an address, or a list of them in braces.
func (p *parser) initialiser(v *variable, element typ, at *uint64) error {
	if p.depth++; p.depth > maxDepth {
		return p.errorf("initialisers are nested too deep")
	}
	defer func() { p.depth-- }()
	if p.accept("{") {
		for !p.accept("}") {
			if err := p.initialiser(v, element, at); err != nil {
				return err
			}
			if !p.accept(",") && !p.is("}") {
				return p.errorf("expected \",\" or \"}\", found %q", p.peek().text)
			}
		}
		return nil
	}
	piece := initial{at: *at}
	if p.is("generic") {
		p.pop()
		piece.generic = true
		if err := p.expect("("); err != nil {
			return err
		}
	}
	o, err := p.simple()
	if err != nil {
		return err
	}
	if piece.generic {
		if err := p.expect(")"); err != nil {
			return err
		}
		more, err := p.offsets()
		if err != nil {
			return err
		}
		o.offset += more
	}
	size := max(1, element.size())
	*at += uint64(size)
	if o.kind == nameOperand {
		piece.symbol, piece.offset, piece.data = o.name, o.offset, make([]byte, size)
	} else {
		piece.data = numberBytes(o, element)[:size]
	}
	if v.size > 0 && *at > v.size {
		return p.errorf("%s: the initialiser is longer than the variable", v.name)
	}
	v.init = append(v.init, piece)
	return nil
}

// numberBytes is a literal as 16 bytes, little endian, in the type of a variable.
func numberBytes(o operand, t typ) []byte {
	b := make([]byte, 16)
	bits := o.bits
	if t.class == 'f' && t.bits == 32 && o.floatBits == 64 {
		bits = uint64(math.Float32bits(float32(math.Float64frombits(bits))))
	}
	binary.LittleEndian.PutUint64(b, bits)
	return b
}
