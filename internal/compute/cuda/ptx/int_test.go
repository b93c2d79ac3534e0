package ptx

import (
	"math/big"
	"math/bits"
	"testing"
)

func u32(f func(a, b, c uint32) uint32) func(lane) uint64 {
	return func(l lane) uint64 { return uint64(f(l.a(), l.b(), l.c())) }
}

func s32(f func(a, b, c int32) int32) func(lane) uint64 {
	return func(l lane) uint64 {
		return uint64(uint32(f(int32(l.a()), int32(l.b()), int32(l.c()))))
	}
}

func u64(f func(a, b, c uint64) uint64) func(lane) uint64 {
	return func(l lane) uint64 { return f(l.A, l.B, l.C) }
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// high is the upper 64 bits of a product, by big integers.
func high(a, b *big.Int) uint64 {
	p := new(big.Int).Mul(a, b)
	p.Rsh(p, 64)
	return new(big.Int).And(p, new(big.Int).SetUint64(^uint64(0))).Uint64()
}

func TestIntegers(t *testing.T) {
	runSnippets(t, []snippet{
		{"add.s32 %d, %a, %b;", false, u32(func(a, b, _ uint32) uint32 { return a + b })},
		{"sub.s32 %d, %a, %b;", false, u32(func(a, b, _ uint32) uint32 { return a - b })},
		{"add.s32 %d, %a, -1;", false, u32(func(a, _, _ uint32) uint32 { return a - 1 })},
		{"mul.lo.s32 %d, %a, %b;", false, u32(func(a, b, _ uint32) uint32 { return a * b })},
		{"mul.hi.u32 %d, %a, %b;", false, u32(func(a, b, _ uint32) uint32 {
			h, _ := bits.Mul32(a, b)
			return h
		})},
		{"mul.hi.s32 %d, %a, %b;", false, s32(func(a, b, _ int32) int32 {
			return int32(int64(a) * int64(b) >> 32)
		})},
		{"mul.wide.s32 %D, %a, %b;", true, func(l lane) uint64 {
			return uint64(int64(int32(l.a())) * int64(int32(l.b())))
		}},
		{"mul.wide.u16 %d, %h, %i;", false, func(l lane) uint64 {
			return l.A & 0xffff * (l.B & 0xffff)
		}},
		{"mul.wide.s16 %d, %h, %i;", false, func(l lane) uint64 {
			return uint64(uint32(int32(int16(l.A)) * int32(int16(l.B))))
		}},
		{"mad.lo.s32 %d, %a, %b, %c;", false, u32(func(a, b, c uint32) uint32 { return a*b + c })},
		{"mad.hi.s32 %d, %a, %b, %c;", false, s32(func(a, b, c int32) int32 {
			return int32(int64(a)*int64(b)>>32) + c
		})},
		{"mad.wide.u32 %D, %a, %b, %C;", true, func(l lane) uint64 {
			return uint64(l.a())*uint64(l.b()) + l.C
		}},
		{"mad.wide.s32 %D, %a, %b, %C;", true, func(l lane) uint64 {
			return uint64(int64(int32(l.a()))*int64(int32(l.b()))) + l.C
		}},
		{"mad.lo.u64 %D, %A, %B, %C;", true, u64(func(a, b, c uint64) uint64 { return a*b + c })},
		{"mul.hi.u64 %D, %A, %B;", true, u64(func(a, b, _ uint64) uint64 {
			return high(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b))
		})},
		{"mul.hi.s64 %D, %A, %B;", true, u64(func(a, b, _ uint64) uint64 {
			return high(big.NewInt(int64(a)), big.NewInt(int64(b)))
		})},
		{"add.s64 %D, %A, %B;", true, u64(func(a, b, _ uint64) uint64 { return a + b })},
		{"sub.s64 %D, %A, %B;", true, u64(func(a, b, _ uint64) uint64 { return a - b })},
		{"min.s32 %d, %a, %b;", false, s32(func(a, b, _ int32) int32 { return min(a, b) })},
		{"max.u32 %d, %a, %b;", false, u32(func(a, b, _ uint32) uint32 { return max(a, b) })},
		{"min.s64 %D, %A, %B;", true, u64(func(a, b, _ uint64) uint64 {
			return uint64(min(int64(a), int64(b)))
		})},
		{"{.reg .b16 %z; add.s16 %z, %h, %i; cvt.u32.u16 %d, %z;}", false, func(l lane) uint64 {
			return (l.A + l.B) & 0xffff
		}},
		{"{.reg .b16 %z; min.s16 %z, %h, %i; cvt.s32.s16 %d, %z;}", false, func(l lane) uint64 {
			return uint64(uint32(min(int16(l.A), int16(l.B))))
		}},
		{"{.reg .b16 %z; mul.lo.s16 %z, %h, 7; cvt.u32.u16 %d, %z;}", false, func(l lane) uint64 {
			return l.A * 7 & 0xffff
		}},
		{"or.b32 %e, %b, 1; div.u32 %d, %a, %e;", false, u32(func(a, b, _ uint32) uint32 {
			return a / (b | 1)
		})},
		{"or.b32 %e, %b, 1; div.s32 %d, %a, %e;", false, s32(func(a, b, _ int32) int32 {
			return a / (b | 1)
		})},
		{"or.b32 %e, %b, 1; rem.s32 %d, %a, %e;", false, s32(func(a, b, _ int32) int32 {
			return a % (b | 1)
		})},
		{"or.b64 %E, %B, 1; rem.u64 %D, %A, %E;", true, u64(func(a, b, _ uint64) uint64 {
			return a % (b | 1)
		})},
		{"abs.s32 %d, %a;", false, s32(func(a, _, _ int32) int32 { return max(a, -a) })},
		{"neg.s32 %d, %a;", false, s32(func(a, _, _ int32) int32 { return -a })},
		{"neg.s64 %D, %A;", true, u64(func(a, _, _ uint64) uint64 { return -a })},
		{"sad.s32 %d, %a, %b, %c;", false, u32(func(a, b, c uint32) uint32 {
			return uint32(max(int64(int32(a))-int64(int32(b)), int64(int32(b))-int64(int32(a)))) + c
		})},
		{"dp4a.s32.u32 %d, %a, %b, %c;", false, u32(func(a, b, c uint32) uint32 {
			for i := range 4 {
				c += uint32(int32(int8(a>>(8*i))) * int32(b>>(8*i)&255))
			}
			return c
		})},
		{"add.sat.s32 %d, %a, %b;", false, s32(func(a, b, _ int32) int32 {
			return int32(max(-1<<31, min(1<<31-1, int64(a)+int64(b))))
		})},
		{"add.cc.u32 %e, %a, %b; addc.u32 %d, %c, 0;", false, func(l lane) uint64 {
			_, carry := bits.Add32(l.a(), l.b(), 0)
			return uint64(l.c() + carry)
		}},
		{"sub.cc.u32 %e, %a, %b; subc.cc.u32 %f, %c, %a; subc.u32 %d, 0, 0;", false,
			func(l lane) uint64 {
				_, borrow := bits.Sub32(l.a(), l.b(), 0)
				_, borrow = bits.Sub32(l.c(), l.a(), borrow)
				return uint64(-borrow)
			}},
		{"add.cc.u64 %E, %A, %B; addc.u64 %D, %C, 0;", true, func(l lane) uint64 {
			_, carry := bits.Add64(l.A, l.B, 0)
			return l.C + carry
		}},
		{"mad.lo.cc.u32 %e, %a, %b, %c; madc.hi.u32 %d, %a, %b, 0;", false, func(l lane) uint64 {
			p := uint64(l.a())*uint64(l.b()) + uint64(l.c())
			return p >> 32
		}},
	})
}

func TestBits(t *testing.T) {
	runSnippets(t, []snippet{
		{"and.b32 %d, %a, %b;", false, u32(func(a, b, _ uint32) uint32 { return a & b })},
		{"or.b64 %D, %A, %B;", true, u64(func(a, b, _ uint64) uint64 { return a | b })},
		{"xor.b32 %d, %a, %b;", false, u32(func(a, b, _ uint32) uint32 { return a ^ b })},
		{"not.b32 %d, %a;", false, u32(func(a, _, _ uint32) uint32 { return ^a })},
		{"cnot.b32 %d, %a;", false, func(l lane) uint64 { return bit(l.a() == 0) }},
		{"shl.b32 %d, %a, %b;", false, u32(func(a, b, _ uint32) uint32 { return a << b })},
		{"shr.u32 %d, %a, %b;", false, u32(func(a, b, _ uint32) uint32 { return a >> b })},
		{"shr.s32 %d, %a, %b;", false, func(l lane) uint64 {
			return uint64(uint32(int32(l.a()) >> l.b()))
		}},
		{"shl.b64 %D, %A, %b;", true, func(l lane) uint64 { return l.A << l.b() }},
		{"shr.s64 %D, %A, %b;", true, func(l lane) uint64 { return uint64(int64(l.A) >> l.b()) }},
		{"{.reg .b16 %z; shr.s16 %z, %h, %b; cvt.u32.u16 %d, %z;}", false, func(l lane) uint64 {
			return uint64(uint16(int16(l.A) >> l.b()))
		}},
		{"popc.b32 %d, %a;", false, func(l lane) uint64 { return uint64(bits.OnesCount32(l.a())) }},
		{"popc.b64 %d, %A;", false, func(l lane) uint64 { return uint64(bits.OnesCount64(l.A)) }},
		{"clz.b32 %d, %a;", false, func(l lane) uint64 {
			return uint64(bits.LeadingZeros32(l.a()))
		}},
		{"brev.b32 %d, %a;", false, func(l lane) uint64 { return uint64(bits.Reverse32(l.a())) }},
		{"bfind.u32 %d, %a;", false, func(l lane) uint64 {
			return uint64(uint32(bits.Len32(l.a()) - 1))
		}},
		{"bfind.shiftamt.s32 %d, %a;", false, func(l lane) uint64 {
			v := l.a() ^ uint32(int32(l.a())>>31)
			if v == 0 {
				return 0xffffffff
			}
			return uint64(bits.LeadingZeros32(v))
		}},
		{"and.b32 %e, %b, 31; and.b32 %f, %c, 31; bfe.u32 %d, %a, %e, %f;", false,
			func(l lane) uint64 { return uint64(l.a()>>(l.b()&31)) & (1<<(l.c()&31) - 1) }},
		{"bfe.s32 %d, %a, 4, 8;", false, func(l lane) uint64 {
			return uint64(uint32(int32(int8(l.a() >> 4))))
		}},
		{"bfe.s32 %d, %a, 28, 8;", false, func(l lane) uint64 {
			return uint64(uint32(int32(l.a()) >> 28))
		}},
		{"bfi.b32 %d, %a, %b, 8, 12;", false, func(l lane) uint64 {
			return uint64(l.b()&^0xfff00 | l.a()&0xfff<<8)
		}},
		{"bfi.b64 %D, %A, %B, 40, 64;", true, func(l lane) uint64 {
			return l.B&(1<<40-1) | l.A<<40
		}},
		{"lop3.b32 %d, %a, %b, %c, 0xea;", false, u32(func(a, b, c uint32) uint32 {
			return a&b | c
		})},
		{"lop3.b32 %d, %a, %b, %c, 0x96;", false, u32(func(a, b, c uint32) uint32 {
			return a ^ b ^ c
		})},
		{"lop3.b32 %d, %a, %b, %c, 0xca;", false, u32(func(a, b, c uint32) uint32 {
			return a&b | ^a&c
		})},
		{"prmt.b32 %d, %a, %b, 0x5410;", false, u32(func(a, b, _ uint32) uint32 {
			return a&0xffff | b<<16
		})},
		{"prmt.b32 %d, %a, %b, 0x3b;", false, u32(func(a, _, _ uint32) uint32 {
			return uint32(int32(a)>>31)&0xff | a>>24<<8 | a&0xff<<16 | a<<24
		})},
		{"prmt.b32.f4e %d, %a, %b, %c;", false, u32(func(a, b, c uint32) uint32 {
			return uint32((uint64(b)<<32 | uint64(a)) >> (8 * (c & 3)))
		})},
		{"shf.l.wrap.b32 %d, %a, %b, %c;", false, func(l lane) uint64 {
			return (uint64(l.b())<<32 | uint64(l.a())) << (l.c() & 31) >> 32
		}},
		{"shf.r.clamp.b32 %d, %a, %b, %c;", false, func(l lane) uint64 {
			return (uint64(l.b())<<32 | uint64(l.a())) >> min(32, l.c()) & 0xffffffff
		}},
	})
}

func TestSelection(t *testing.T) {
	runSnippets(t, []snippet{
		{"setp.lt.s32 %p, %a, %b; selp.b32 %d, %a, %b, %p;", false, s32(func(a, b, _ int32) int32 {
			return min(a, b)
		})},
		{"setp.gt.u32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, func(l lane) uint64 {
			return bit(l.a() > l.b())
		}},
		{"setp.hs.u32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, func(l lane) uint64 {
			return bit(l.a() >= l.b())
		}},
		{"setp.ge.s64 %p, %A, %B; selp.b64 %D, %A, %B, %p;", true, u64(func(a, b, _ uint64) uint64 {
			return uint64(max(int64(a), int64(b)))
		})},
		{"setp.lo.u64 %p, %A, %B; selp.b32 %d, 1, 0, %p;", false, func(l lane) uint64 {
			return bit(l.A < l.B)
		}},
		{"setp.le.s16 %p, %h, %i; selp.b32 %d, 1, 0, %p;", false, func(l lane) uint64 {
			return bit(int16(l.A) <= int16(l.B))
		}},
		{"setp.eq.b16 %p, %h, 0; selp.b32 %d, 1, 0, %p;", false, func(l lane) uint64 {
			return bit(uint16(l.A) == 0)
		}},
		{"setp.ne.u32 %q, %a, 0; setp.lt.and.s32 %p|%r, %b, %c, !%q; selp.b32 %d, 1, 0, %p;" +
			"selp.b32 %e, 2, 0, %r; or.b32 %d, %d, %e;", false, func(l lane) uint64 {
			less, zero := int32(l.b()) < int32(l.c()), l.a() == 0
			return bit(less && zero) | bit(!less && zero)<<1
		}},
		{"setp.ne.u32 %q, %a, 0; setp.eq.xor.u32 %p, %b, %c, %q; selp.b32 %d, 1, 0, %p;", false,
			func(l lane) uint64 { return bit((l.b() == l.c()) != (l.a() != 0)) }},
		{"set.gt.u32.s32 %d, %a, %b;", false, func(l lane) uint64 {
			return bit(int32(l.a()) > int32(l.b())) * 0xffffffff
		}},
		{"set.lt.f32.u32 %d, %a, %b;", false, func(l lane) uint64 {
			return bit(l.a() < l.b()) * 0x3f800000
		}},
		{"slct.b32.s32 %d, %a, %b, %c;", false, u32(func(a, b, c uint32) uint32 {
			if int32(c) >= 0 {
				return a
			}
			return b
		})},
		{"setp.lt.s32 %p, %a, 0; setp.lt.s32 %q, %b, 0; and.pred %r, %p, %q; not.pred %r, %r;" +
			"selp.b32 %d, 1, 0, %r;", false, func(l lane) uint64 {
			return bit(!(int32(l.a()) < 0 && int32(l.b()) < 0))
		}},
		{"setp.lt.s32 %p, %a, 0; @%p mov.u32 %d, 5; @!%p mov.u32 %d, 6;", false,
			func(l lane) uint64 { return 6 - bit(int32(l.a()) < 0) }},
		{"mov.b64 %D, {%a, %b};", true, func(l lane) uint64 {
			return uint64(l.b())<<32 | uint64(l.a())
		}},
		{"mov.b64 {%e, %d}, %A;", false, func(l lane) uint64 { return l.A >> 32 }},
		{"mov.b64 {_, %d}, %A;", false, func(l lane) uint64 { return l.A >> 32 }},
		{"mov.b32 {%k, %l}, %a; mov.b32 %d, {%l, %k};", false, u32(func(a, _, _ uint32) uint32 {
			return bits.RotateLeft32(a, 16)
		})},
		{"mov.b64 %D, {%h, %i, %j, %h};", true, func(l lane) uint64 {
			return l.A&0xffff | l.B&0xffff<<16 | l.C&0xffff<<32 | l.A<<48
		}},
		{"mov.u32 %d, %tid.x; mov.u32 %e, %lanemask_lt; xor.b32 %d, %d, %e;", false,
			func(l lane) uint64 { return uint64(l.id) ^ (1<<l.id - 1) }},
		{"mov.u32 %d, %lanemask_ge; mov.u32 %e, %lanemask_gt; xor.b32 %d, %d, %e;", false,
			func(l lane) uint64 { return 1 << l.id }},
		{"mov.u32 %d, %lanemask_le;", false, func(l lane) uint64 { return 2<<l.id - 1 }},
	})
}
