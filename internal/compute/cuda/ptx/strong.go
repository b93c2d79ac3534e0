package ptx

import (
	"sync/atomic"
	"unsafe"
)

// loadStrong loads an element of each lane that may be another thread's at the same time: strong
// accesses are single-copy atomic up to 64 bits (PTX ISA 8.5). What they order is the host's as
// well as the machine's: blocks run on goroutines, and memory may be mapped by other processes.
//
// That is enough for release and acquire at any scope. A block runs on one goroutine at a time, in
// the order of its program; barriers of the block add nothing to that. Go's atomic stores and loads
// are sequentially consistent, and are made of instructions that order plain accesses before and
// after them (XCHG on AMD64, STLR and LDAR on ARM64), for processors, whichever process runs there
// and whatever virtual address it has: a load that sees the flag is followed by loads that see what
// was stored before the flag. The compiler moves no access across them.
func (a *access) loadStrong(w *warp, s *segment, r int32, base unsafe.Pointer) {
	for m := s.group; m != 0; m &= m - 1 {
		i := firstLane(m) & (lanes - 1)
		p := unsafe.Add(base, w.ea[i])
		var v uint64
		switch a.size {
		case 4:
			v = uint64(atomic.LoadUint32((*uint32)(p)))
		case 8:
			v = atomic.LoadUint64((*uint64)(p))
		default:
			v = peek(p, a.size)
		}
		w.setValue(a.dst, r, i, a.extend(v))
	}
}

// storeStrong stores an element of each lane as loadStrong loads one.
func (a *access) storeStrong(w *warp, s *segment, r int32, base unsafe.Pointer) {
	for m := s.group; m != 0; m &= m - 1 {
		i := firstLane(m) & (lanes - 1)
		p, v := unsafe.Add(base, w.ea[i]), w.value(a.dst, r, i)
		switch a.size {
		case 4:
			atomic.StoreUint32((*uint32)(p), uint32(v))
		case 8:
			atomic.StoreUint64((*uint64)(p), v)
		default:
			poke(p, a.size, v)
		}
	}
}
