package ptx

import "maps"

// laneOps are functions on all 32 lanes, which the host may have vector instructions for.
type laneOps struct {
	ints, floats map[string]func(d, a, b *lanes32)
	longs        map[string]func(d, a, b *lanes64)
	fma          func(d, a, b, c *lanes32)
	// addresses64 and addresses32 are effective addresses of registers and an offset; those of 32
	// bits wrap.
	addresses64 func(ea, a *lanes64, offset uint64)
	addresses32 func(ea *lanes64, a *lanes32, offset uint32)
	// offsets says whether all addresses from base on are at most last, which is below 2^63, and
	// have no bits of low.
	offsets func(ea *lanes64, base, last, low uint64) bool
	// signed, unsigned and compare (of floats) are comparisons by their names.
	signed, unsigned, compare map[string]func(a, b *lanes32) uint32
	multiply                  func(m *mmaScratch, k int)
}

func portableOps() *laneOps {
	return &laneOps{
		ints: map[string]func(d, a, b *lanes32){
			"add": add32, "sub": sub32, "mul.lo": mul32, "and": and32, "or": or32, "xor": xor32,
			"shl": shl32, "shr.u": shrU32, "shr.b": shrU32, "shr.s": shrS32,
			"min.u": minU32, "max.u": maxU32, "min.s": minS32, "max.s": maxS32,
			"mul.hi.u": mulHiU32, "mul.hi.s": mulHiS32,
		},
		floats: map[string]func(d, a, b *lanes32){
			"add": addF32, "sub": subF32, "mul": mulF32, "div": divF32,
		},
		longs: map[string]func(d, a, b *lanes64){
			"add": add64, "sub": sub64, "mul.lo": mul64, "and": and64, "or": or64, "xor": xor64,
			"min.u": minU64, "max.u": maxU64, "min.s": minS64, "max.s": maxS64,
		},
		fma:         fmaF32,
		addresses64: addresses64,
		addresses32: addresses32,
		offsets:     offsets,
		signed: map[string]func(a, b *lanes32) uint32{
			"eq": eq32, "ne": ne32, "lt": ltS32, "le": leS32,
		},
		unsigned: map[string]func(a, b *lanes32) uint32{
			"eq": eq32, "ne": ne32, "lt": ltU32, "le": leU32,
		},
		compare: map[string]func(a, b *lanes32) uint32{
			"eq": eqF32, "lt": ltF32, "le": leF32, "nan": nanF32,
		},
		multiply: (*mmaScratch).multiplyRows,
	}
}

// bestOps are the host's functions, and the portable ones where it has none.
func bestOps() *laneOps {
	ops, host := portableOps(), hostOps()
	if host == nil {
		return ops
	}
	maps.Copy(ops.ints, host.ints)
	maps.Copy(ops.floats, host.floats)
	maps.Copy(ops.longs, host.longs)
	maps.Copy(ops.signed, host.signed)
	maps.Copy(ops.unsigned, host.unsigned)
	maps.Copy(ops.compare, host.compare)
	ops.fma, ops.multiply, ops.offsets = host.fma, host.multiply, host.offsets
	ops.addresses64, ops.addresses32 = host.addresses64, host.addresses32
	return ops
}

// float is a comparison of floats by its name, nil if there is none: a name with u is true also
// where an operand is NaN.
func (o *laneOps) float(name string) func(a, b *lanes32) uint32 {
	if f := o.compare[name]; f != nil {
		return f
	}
	eq, nan := o.compare["eq"], o.compare["nan"]
	switch name {
	case "ne":
		return func(a, b *lanes32) uint32 { return ^eq(a, b) &^ nan(a, b) }
	case "neu":
		return func(a, b *lanes32) uint32 { return ^eq(a, b) }
	case "num":
		return func(a, b *lanes32) uint32 { return ^nan(a, b) }
	case "equ", "ltu", "leu":
		f := o.compare[name[:2]]
		return func(a, b *lanes32) uint32 { return f(a, b) | nan(a, b) }
	}
	return nil
}
