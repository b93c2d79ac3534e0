package main

import (
	"math"
	"testing"
)

// TestScalar runs instructions, encoded by LLVM's assembler, and wants registers, flags and leaps.
func TestScalar(t *testing.T) {
	const rax, rcx, rsi, r8, r10, r14 = 0, 1, 6, 8, 10, 14
	for _, c := range []struct {
		text   string
		code   []byte
		from   int // a register, and what it is before
		before uint64
		to     int
		after  uint64
		leap   uint64
	}{
		{"addq $-128, %rsi", []byte{0x48, 0x83, 0xc6, 0x80}, rsi, 100, rsi, ^uint64(27), 0},
		{"decq %r8", []byte{0x49, 0xff, 0xc8}, r8, 1, r8, 0, 0},
		{"incq %r8", []byte{0x49, 0xff, 0xc0}, r8, 1, r8, 2, 0},
		{"leaq 8(%rsi,%rcx,2), %r14", []byte{0x4c, 0x8d, 0x74, 0x4e, 0x08}, rsi, 50, r14, 58, 0},
		{"leaq (,%r8,4), %rax",
			[]byte{0x4a, 0x8d, 0x04, 0x85, 0, 0, 0, 0}, r8, 3, rax, 12, 0},
		{"shlq $5, %rcx", []byte{0x48, 0xc1, 0xe1, 0x05}, rcx, 3, rcx, 96, 0},
		{"shrq $4, %rcx", []byte{0x48, 0xc1, 0xe9, 0x04}, rcx, 99, rcx, 6, 0},
		{"negq %r10", []byte{0x49, 0xf7, 0xda}, r10, 7, r10, ^uint64(6), 0},
		{"movq $-1, %rax", []byte{0x48, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff}, rax, 0, rax,
			math.MaxUint64, 0},
		{"movq %r10, %rax", []byte{0x4c, 0x89, 0xd0}, r10, 9, rax, 9, 0},
		{"imulq $12, %r10, %rax", []byte{0x49, 0x6b, 0xc2, 0x0c}, r10, 9, rax, 108, 0},
		{"xorq $64, %rcx", []byte{0x48, 0x83, 0xf1, 0x40}, rcx, 65, rcx, 1, 0},
		{"jmp .+16", []byte{0xeb, 0x0e}, rcx, 1, rcx, 1, 14},
		{"prefetcht0 64(%rdi)", []byte{0x0f, 0x18, 0x4f, 0x40}, rcx, 1, rcx, 1, 0},
	} {
		th := &thread{p: &program{}}
		*th.register(c.from) = c.before
		length := th.scalar(append(c.code, 0, 0, 0, 0, 0, 0, 0, 0))
		if length != len(c.code) || *th.register(c.to) != c.after || th.regs.Rip != c.leap {
			t.Errorf("%s: %d bytes, %d and a leap of %d instead of %d bytes, %d, %d", c.text,
				length, *th.register(c.to), th.regs.Rip, len(c.code), c.after, c.leap)
		}
	}
	th := &thread{}
	for _, a := range []uint64{0, 1, 5, math.MaxInt64, 1 << 63, math.MaxUint64} {
		for _, b := range []uint64{0, 1, 5, math.MaxInt64, 1 << 63, math.MaxUint64} {
			th.combine(7, a, b)
			for condition, want := range map[int]bool{1: a < b, 2: a == b, 3: a <= b,
				4: int64(a-b) < 0, 6: int64(a) < int64(b), 7: int64(a) <= int64(b)} {
				if is, _ := th.holds(condition); is != want {
					t.Errorf("%#x compared with %#x: condition %d is %v", a, b, condition, is)
				}
			}
		}
	}
}

// TestPowers takes numbers apart by VREDUCEPS and VSCALEFPS, and wants what these give at the ends.
func TestPowers(t *testing.T) {
	inf := float32(math.Inf(1))
	of := math.Float32bits
	for x, want := range map[float32]float32{2.75: 0.75, -2.75: 0.25, inf: 0, -inf: 0,
		-0x1p-40: 1 - 0x1p-24} {
		if got := math.Float32frombits(reduce(of(x), false)); got != want {
			t.Errorf("%v reduced is %v, not %v", x, got, want)
		}
	}
	for _, c := range [][3]float32{{1.5, 2.9, 6}, {1.5, -0.5, 0.75}, {1, -inf, 0}, {1, inf, inf},
		{1, -140, 0x1p-140}, {1, -1000, 0}, {1.5, 200, inf}} {
		if got := math.Float32frombits(scale(of(c[0]), of(c[1]), false)); got != c[2] {
			t.Errorf("%v scaled by %v is %v, not %v", c[0], c[1], got, c[2])
		}
	}
	if got := scale(of(1), of(-130), true); got != 0 {
		t.Errorf("a denormal is %#x where it is zero", got)
	}
}
