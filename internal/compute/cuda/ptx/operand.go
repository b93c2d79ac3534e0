package ptx

import (
	"math"
	"strconv"
	"strings"
)

// operand reads an operand of an instruction.
func (p *parser) operand() (operand, error) {
	if p.depth++; p.depth > maxDepth {
		return operand{}, p.errorf("operands are nested too deep")
	}
	defer func() { p.depth-- }()
	switch {
	case p.accept("{"):
		return p.list("}")
	case p.accept("("):
		return p.list(")")
	case p.accept("["):
		return p.address()
	}
	return p.simple()
}

// simple reads a name or a number, with what may stand around it.
func (p *parser) simple() (operand, error) {
	var o operand
	o.negated = p.accept("!")
	o.minus = p.accept("-")
	w, err := p.word()
	if err != nil {
		return o, err
	}
	if w[0] >= '0' && w[0] <= '9' {
		bits, floats, ok := parseNumber(w)
		if !ok {
			return o, p.errorf("%q is not a number", w)
		}
		o.kind, o.bits, o.floatBits = numberOperand, bits, floats
		if o.minus {
			o.negateNumber()
		}
		return o, nil
	}
	o.name = w
	if p.accept("|") {
		second, err := p.simple()
		o.second = &second
		return o, err
	}
	o.offset, err = p.offsets()
	return o, err
}

func (o *operand) negateNumber() {
	o.minus = false
	switch o.floatBits {
	case 32:
		o.bits ^= 1 << 31
	case 64:
		o.bits ^= 1 << 63
	default:
		o.bits = -o.bits
	}
}

// offsets reads what is added to a name: +4, +-4, -4.
func (p *parser) offsets() (int64, error) {
	var sum int64
	for p.is("+") || p.is("-") {
		minus := p.pop().text == "-"
		if p.accept("-") {
			minus = !minus
		}
		w, err := p.word()
		if err != nil {
			return 0, err
		}
		n, floats, ok := parseNumber(w)
		if !ok || floats != 0 {
			return 0, p.errorf("%q is not an offset", w)
		}
		if minus {
			n = -n
		}
		sum += int64(n)
	}
	return sum, nil
}

// address reads what follows "[": a base with offsets, and more operands of a tensor's.
func (p *parser) address() (operand, error) {
	base, err := p.simple()
	if err != nil {
		return base, err
	}
	o := operand{kind: addressOperand, name: base.name, offset: base.offset}
	if base.kind == numberOperand {
		o.offset, err = p.offsets()
		o.offset += int64(base.bits)
	}
	for err == nil && p.accept(",") {
		var more operand
		more, err = p.operand()
		o.elems = append(o.elems, more)
	}
	if err != nil {
		return o, err
	}
	return o, p.expect("]")
}

func (p *parser) list(end string) (operand, error) {
	o := operand{kind: vectorOperand}
	for !p.accept(end) {
		e, err := p.operand()
		if err != nil {
			return o, err
		}
		o.elems = append(o.elems, e)
		if !p.accept(",") && !p.is(end) {
			return o, p.errorf("expected \",\" or %q, found %q", end, p.peek().text)
		}
	}
	return o, nil
}

// parseNumber reads a literal (PTX ISA 4.5): floats is 32 or 64 for one of a float, as its bits.
func parseNumber(w string) (bits uint64, floats int, ok bool) {
	if len(w) > 2 && w[0] == '0' {
		switch w[1] {
		case 'f', 'F':
			n, err := strconv.ParseUint(w[2:], 16, 32)
			return n, 32, err == nil
		case 'd', 'D':
			n, err := strconv.ParseUint(w[2:], 16, 64)
			return n, 64, err == nil
		}
	}
	n, err := strconv.ParseUint(strings.TrimRight(w, "uU"), 0, 64)
	if err == nil {
		return n, 0, true
	}
	if !strings.Contains(w, ".") {
		return 0, 0, false
	}
	f, err := strconv.ParseFloat(w, 64)
	return math.Float64bits(f), 64, err == nil
}
