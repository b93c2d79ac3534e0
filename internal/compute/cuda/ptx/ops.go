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
			"add": add[uint32, lanes32], "sub": sub[uint32, lanes32],
			"mul.lo": mul[uint32, lanes32], "and": and[uint32, lanes32],
			"or": or[uint32, lanes32], "xor": xor[uint32, lanes32], "shl": shl[uint32, lanes32],
			"shr.u": shr[uint32, lanes32], "shr.b": shr[uint32, lanes32],
			"shr.s": shr[int32, lanes32], "min.u": least[uint32, lanes32],
			"max.u": most[uint32, lanes32], "min.s": least[int32, lanes32],
			"max.s": most[int32, lanes32], "mul.hi.u": mulHiU32, "mul.hi.s": mulHiS32,
		},
		floats: map[string]func(d, a, b *lanes32){
			"add": add[float32, lanes32], "sub": sub[float32, lanes32],
			"mul": mul[float32, lanes32], "div": divF32,
		},
		longs: map[string]func(d, a, b *lanes64){
			"add": add[uint64, lanes64], "sub": sub[uint64, lanes64],
			"mul.lo": mul[uint64, lanes64], "and": and[uint64, lanes64],
			"or": or[uint64, lanes64], "xor": xor[uint64, lanes64],
			"min.u": least[uint64, lanes64], "max.u": most[uint64, lanes64],
			"min.s": least[int64, lanes64], "max.s": most[int64, lanes64],
		},
		fma:         fmaF32,
		addresses64: addresses64,
		addresses32: addresses32,
		offsets:     offsets,
		signed: map[string]func(a, b *lanes32) uint32{
			"eq": eq[uint32, lanes32], "ne": ne[uint32, lanes32], "lt": lt[int32, lanes32],
			"le": le[int32, lanes32],
		},
		unsigned: map[string]func(a, b *lanes32) uint32{
			"eq": eq[uint32, lanes32], "ne": ne[uint32, lanes32], "lt": lt[uint32, lanes32],
			"le": le[uint32, lanes32],
		},
		compare: map[string]func(a, b *lanes32) uint32{
			"eq": eq[float32, lanes32], "lt": lt[float32, lanes32], "le": le[float32, lanes32],
			"nan": nanF32,
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
