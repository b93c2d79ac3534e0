package ptx

import (
	"math/bits"
	"slices"
	"unsafe"
)

// accessKind is what an instruction does with memory.
type accessKind uint8

const (
	reads accessKind = 1 << iota
	writes
	// strong accesses are atomic, volatile or relaxed: they do not race with one another (PTX ISA
	// 8.4).
	strong
	// collective accesses are of all lanes of the warp together (ldmatrix, stmatrix).
	collective
	// constantly reads (ld.global.nc) are of what nothing writes as long as the kernel runs.
	constantly
)

// segment is memory that a group of lanes accesses: all in one allocation, or in one space. The
// warp's ea has each lane's offset from base.
type segment struct {
	space space
	group uint32
	base  unsafe.Pointer
	in    *allocation // global
	owner *initialised
}

// addresses computes the effective address of each lane.
func (w *warp) addresses(b bank, r int32, offset uint64) {
	if b == bank64 {
		w.ops.addresses64(&w.ea, &w.r64[r], offset)
		return
	}
	w.ops.addresses32(&w.ea, &w.r32[r], uint32(offset))
}

// segment finds the memory of the first of the lanes that are left, and of all others that access
// the same; n is the bytes of each access, which are also its alignment.
func (w *warp) segment(s space, slot int, n uint64, left uint32, kind accessKind) segment {
	if s == genericSpace {
		s, left = w.resolveGeneric(left)
	}
	switch s {
	case sharedSpace:
		return w.sharedSegment(n, left)
	case localSpace:
		return w.localSegment(n, left)
	case paramSpace:
		return w.paramSegment(n, left)
	}
	return w.globalSegment(slot, n, left, kind)
}

// resolveGeneric finds the window of the first lane's generic address and the lanes with addresses
// in the same, and makes addresses of the window's space of them.
func (w *warp) resolveGeneric(left uint32) (space, uint32) {
	a := w.ea[firstLane(left)]
	for _, s := range [...]space{sharedSpace, localSpace, paramSpace} {
		base := window(s)
		if a-base >= windowSize {
			continue
		}
		group := uint32(0)
		for m := left; m != 0; m &= m - 1 {
			i := firstLane(m)
			if w.ea[i]-base < windowSize {
				w.ea[i] -= base
				group |= 1 << i
			}
		}
		return s, group
	}
	group := uint32(0)
	for m := left; m != 0; m &= m - 1 {
		i := firstLane(m)
		if w.ea[i]-sharedWindow >= 3*windowSize {
			group |= 1 << i
		}
	}
	return globalSpace, group
}

func (w *warp) globalSegment(slot int, n uint64, left uint32, kind accessKind) segment {
	lane := firstLane(left)
	al := w.cta.cache[slot]
	if al == nil || w.ea[lane]-al.base >= al.size {
		if al = w.cta.mem.find(w.ea[lane]); al == nil {
			w.failLane(lane, "global access out of range: %d bytes at %#x: %s", n, w.ea[lane],
				w.cta.mem.describe(w.ea[lane]))
		}
		w.cta.cache[slot] = al
	}
	if kind&writes != 0 {
		if al.readOnly {
			w.failLane(lane, "write to constant memory at %#x", w.ea[lane])
		}
		if w.cta.check == nil {
			al.touch()
		}
	}
	base, last := al.base, al.size-min(n, al.size)
	if al.size < n {
		w.failLane(lane, "global access out of range: %d bytes in an allocation of %d", n, al.size)
	}
	if left == allLanes && w.ops.offsets(&w.ea, base, last, n-1) {
		w.ops.addresses64(&w.ea, &w.ea, -base)
		return segment{globalSpace, left, al.start, al, &al.known}
	}
	return w.globalGroup(al, n, left)
}

// globalGroup is globalSegment for lanes that may be in other allocations, or wrong.
func (w *warp) globalGroup(al *allocation, n uint64, left uint32) segment {
	group := uint32(0)
	for m := left; m != 0; m &= m - 1 {
		i := firstLane(m)
		off := w.ea[i] - al.base
		if off >= al.size {
			continue
		}
		if off&(n-1) != 0 {
			w.failLane(i, "misaligned access of %d bytes at %#x", n, w.ea[i])
		}
		if n > al.size-off {
			w.failLane(i, "global access out of range: %d bytes at byte %d of an allocation of %d",
				n, off, al.size)
		}
		w.ea[i] = off
		group |= 1 << i
	}
	return segment{globalSpace, group, al.start, al, &al.known}
}

func (w *warp) sharedSegment(n uint64, left uint32) segment {
	size := uint64(len(w.cta.shared)) - sharedBase
	if left != allLanes || size < n || !w.ops.offsets(&w.ea, sharedBase, size-n, n-1) {
		for m := left; m != 0; m &= m - 1 {
			w.checkShared(firstLane(m), n, size)
		}
	}
	return segment{space: sharedSpace, group: left, base: w.cta.start}
}

func (w *warp) checkParam(lane int, n, size uint64) {
	a := w.ea[lane]
	if size < n || a > size-n {
		w.failLane(lane, "parameter access out of range: %d bytes at %d of %d", n, a, size)
	}
	if a&(n-1) != 0 {
		w.failLane(lane, "misaligned access of %d bytes at parameter byte %d", n, a)
	}
}

func (w *warp) checkShared(lane int, n, size uint64) {
	a := w.ea[lane]
	if size < n || a-sharedBase > size-n {
		w.failLane(lane, "shared access out of range: %d bytes at %d, of %d bytes from %d on", n, a,
			size, sharedBase)
	}
	if a&(n-1) != 0 {
		w.failLane(lane, "misaligned access of %d bytes at shared %#x", n, a)
	}
}

func (w *warp) localSegment(n uint64, left uint32) segment {
	size := uint64(w.kernel.Local)
	for m := left; m != 0; m &= m - 1 {
		i := firstLane(m)
		a := w.ea[i]
		if n > size || a > size-n {
			w.failLane(i, "local access out of range: %d bytes at %d of %d", n, a, size)
		}
		if a&(n-1) != 0 {
			w.failLane(i, "misaligned access of %d bytes at local %#x", n, a)
		}
		w.ea[i] = a + uint64(i)*size
	}
	return segment{space: localSpace, group: left,
		base: unsafe.Pointer(unsafe.SliceData(w.local)), owner: &w.localKnown}
}

func (w *warp) paramSegment(n uint64, left uint32) segment {
	size := uint64(w.kernel.ParamBytes)
	if left != allLanes || size < n || !w.ops.offsets(&w.ea, 0, size-n, n-1) {
		for m := left; m != 0; m &= m - 1 {
			w.checkParam(firstLane(m), n, size)
		}
	}
	return segment{space: paramSpace, group: left, base: w.cta.params}
}

// count adds an access to the launch's counts.
func (w *warp) count(s *segment, n uint64, kind accessKind) {
	switch s.space {
	case globalSpace:
		bytes := uint64(bits.OnesCount32(s.group)) * n
		if kind&reads != 0 {
			w.cta.stats.GlobalRead += bytes
		}
		if kind&writes != 0 {
			w.cta.stats.GlobalWritten += bytes
		}
	case sharedSpace:
		w.cta.stats.SharedAccesses++
		if w.cta.banks {
			w.cta.stats.BankConflicts += w.conflicts(n, s.group)
		}
	}
}

// conflicts counts the passes beyond those that the bytes alone need. Accesses of 8 bytes are made
// for half the lanes at a time, those of 16 for a quarter.
func (w *warp) conflicts(n uint64, group uint32) (extra uint64) {
	part := lanes * 4 / int(max(4, n))
	for first := 0; first < lanes; first += part {
		var words [lanes][]uint64
		most := 0
		for i := first; i < first+part; i++ {
			if group>>i&1 == 0 {
				continue
			}
			for a := w.ea[i] / 4; a <= (w.ea[i]+n-1)/4; a++ {
				bank := &words[a%lanes]
				if !slices.Contains(*bank, a) {
					*bank = append(*bank, a)
				}
				most = max(most, len(*bank))
			}
		}
		extra += uint64(max(0, most-1))
	}
	return extra
}
