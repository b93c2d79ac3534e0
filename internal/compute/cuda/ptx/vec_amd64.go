package ptx

import "golang.org/x/sys/cpu"

//go:noescape
func add32AVX2(d, a, b *lanes32)

//go:noescape
func sub32AVX2(d, a, b *lanes32)

//go:noescape
func mul32AVX2(d, a, b *lanes32)

//go:noescape
func and32AVX2(d, a, b *lanes32)

//go:noescape
func or32AVX2(d, a, b *lanes32)

//go:noescape
func xor32AVX2(d, a, b *lanes32)

//go:noescape
func minS32AVX2(d, a, b *lanes32)

//go:noescape
func maxS32AVX2(d, a, b *lanes32)

//go:noescape
func minU32AVX2(d, a, b *lanes32)

//go:noescape
func maxU32AVX2(d, a, b *lanes32)

//go:noescape
func shl32AVX2(d, a, b *lanes32)

//go:noescape
func shrU32AVX2(d, a, b *lanes32)

//go:noescape
func shrS32AVX2(d, a, b *lanes32)

//go:noescape
func addF32AVX2(d, a, b *lanes32)

//go:noescape
func subF32AVX2(d, a, b *lanes32)

//go:noescape
func mulF32AVX2(d, a, b *lanes32)

//go:noescape
func divF32AVX2(d, a, b *lanes32)

//go:noescape
func fmaF32AVX2(d, a, b, c *lanes32)

//go:noescape
func eq32AVX2(a, b *lanes32) uint32

//go:noescape
func gtS32AVX2(a, b *lanes32) uint32

//go:noescape
func eqF32AVX2(a, b *lanes32) uint32

//go:noescape
func ltF32AVX2(a, b *lanes32) uint32

//go:noescape
func leF32AVX2(a, b *lanes32) uint32

//go:noescape
func nanF32AVX2(a, b *lanes32) uint32

//go:noescape
func add64AVX2(d, a, b *lanes64)

//go:noescape
func sub64AVX2(d, a, b *lanes64)

//go:noescape
func and64AVX2(d, a, b *lanes64)

//go:noescape
func or64AVX2(d, a, b *lanes64)

//go:noescape
func xor64AVX2(d, a, b *lanes64)

//go:noescape
func addresses64AVX2(ea, a *lanes64, offset uint64)

//go:noescape
func addresses32AVX2(ea *lanes64, a *lanes32, offset uint32)

//go:noescape
func offsetsAVX2(ea *lanes64, base, last, low uint64) bool

//go:noescape
func multiplyAVX2(d, a, b *float32, k int)

// hostOps are the functions of this machine's vector instructions, nil if it has none of them.
// Their results are those of the portable ones, bit by bit, but for the bits of NaNs.
func hostOps() *laneOps {
	if !cpu.X86.HasAVX2 || !cpu.X86.HasFMA {
		return nil
	}
	return &laneOps{
		ints: map[string]func(d, a, b *lanes32){
			"add": add32AVX2, "sub": sub32AVX2, "mul.lo": mul32AVX2, "and": and32AVX2,
			"or": or32AVX2, "xor": xor32AVX2, "min.s": minS32AVX2, "max.s": maxS32AVX2,
			"min.u": minU32AVX2, "max.u": maxU32AVX2, "shl": shl32AVX2, "shr.u": shrU32AVX2,
			"shr.b": shrU32AVX2, "shr.s": shrS32AVX2,
		},
		floats: map[string]func(d, a, b *lanes32){
			"add": addF32AVX2, "sub": subF32AVX2, "mul": mulF32AVX2, "div": divF32AVX2,
		},
		longs: map[string]func(d, a, b *lanes64){
			"add": add64AVX2, "sub": sub64AVX2, "and": and64AVX2, "or": or64AVX2,
			"xor": xor64AVX2,
		},
		fma:         fmaF32AVX2,
		addresses64: addresses64AVX2,
		addresses32: addresses32AVX2,
		offsets:     offsetsAVX2,
		signed: map[string]func(a, b *lanes32) uint32{
			"eq": eq32AVX2,
			"ne": func(a, b *lanes32) uint32 { return ^eq32AVX2(a, b) },
			"lt": func(a, b *lanes32) uint32 { return gtS32AVX2(b, a) },
			"le": func(a, b *lanes32) uint32 { return ^gtS32AVX2(a, b) },
		},
		unsigned: map[string]func(a, b *lanes32) uint32{
			"eq": eq32AVX2,
			"ne": func(a, b *lanes32) uint32 { return ^eq32AVX2(a, b) },
		},
		compare: map[string]func(a, b *lanes32) uint32{
			"eq": eqF32AVX2, "lt": ltF32AVX2, "le": leF32AVX2, "nan": nanF32AVX2,
		},
		multiply: func(m *mmaScratch, k int) { multiplyAVX2(&m.d[0], &m.a[0], &m.b[0], k) },
	}
}
