package ptx

import "unsafe"

// access is a decoded ld or st.
type access struct {
	space    space
	size     int // bytes of an element
	count    int
	signed   bool
	wide     bank // of the address
	dst      bank // of the elements' registers
	dstBits  int  // width of the registers that are loaded
	kind     accessKind
	acquire  bool
	release  bool
	scopeCTA bool
	scopeSys bool
}

func (a *access) bytes() uint64 { return uint64(a.size * a.count) }

func (a *access) load(w *warp, in *inst, mask uint32) {
	w.addresses(a.wide, in.a, in.imm)
	n := a.bytes()
	for left := mask; left != 0; {
		s := w.segment(a.space, in.ext.slot, n, left, a.kind)
		w.count(&s, n, a.kind)
		if w.cta.check != nil {
			w.check(&s, n, a.kind)
		}
		for k, r := range in.ext.dsts {
			a.loadElement(w, &s, r, unsafe.Add(s.base, k*a.size))
		}
		if w.cta.check != nil && a.kind&strong != 0 {
			w.observe(&s, a)
		}
		if a.acquire && a.scopeSys {
			w.poll()
		}
		left &^= s.group
	}
}

// loadElement loads one element of each lane's vector.
func (a *access) loadElement(w *warp, s *segment, r int32, base unsafe.Pointer) {
	switch {
	case a.kind&strong != 0:
		a.loadStrong(w, s, r, base)
	case a.size == 4 && a.dst == bank32 && s.group == allLanes:
		d := &w.r32[r]
		for i := range d {
			d[i] = *(*uint32)(unsafe.Add(base, w.ea[i]))
		}
	case a.size == 4 && a.dst == bank32:
		d := &w.r32[r]
		for m := s.group; m != 0; m &= m - 1 {
			i := firstLane(m) & (lanes - 1)
			d[i] = *(*uint32)(unsafe.Add(base, w.ea[i]))
		}
	case a.size == 8 && a.dst == bank64 && s.group == allLanes:
		d := &w.r64[r]
		for i := range d {
			d[i] = *(*uint64)(unsafe.Add(base, w.ea[i]))
		}
	case a.size == 2 && a.dst == bank32 && !a.signed && s.group == allLanes:
		d := &w.r32[r]
		for i := range d {
			d[i] = uint32(*(*uint16)(unsafe.Add(base, w.ea[i])))
		}
	case a.size == 2 && a.dst == bank32 && !a.signed:
		d := &w.r32[r]
		for m := s.group; m != 0; m &= m - 1 {
			i := firstLane(m) & (lanes - 1)
			d[i] = uint32(*(*uint16)(unsafe.Add(base, w.ea[i])))
		}
	default:
		for m := s.group; m != 0; m &= m - 1 {
			i := firstLane(m) & (lanes - 1)
			w.setValue(a.dst, r, i, a.extend(peek(unsafe.Add(base, w.ea[i]), a.size)))
		}
	}
}

// extend makes a register's value of what lies in memory.
func (a *access) extend(v uint64) uint64 {
	if !a.signed {
		return v
	}
	shift := 64 - 8*a.size
	return uint64(int64(v<<shift)>>shift) << (64 - a.dstBits) >> (64 - a.dstBits)
}

func peek(p unsafe.Pointer, size int) uint64 {
	switch size {
	case 1:
		return uint64(*(*uint8)(p))
	case 2:
		return uint64(*(*uint16)(p))
	case 4:
		return uint64(*(*uint32)(p))
	}
	return *(*uint64)(p)
}

func poke(p unsafe.Pointer, size int, v uint64) {
	switch size {
	case 1:
		*(*uint8)(p) = uint8(v)
	case 2:
		*(*uint16)(p) = uint16(v)
	case 4:
		*(*uint32)(p) = uint32(v)
	default:
		*(*uint64)(p) = v
	}
}

func (a *access) store(w *warp, in *inst, mask uint32) {
	w.addresses(a.wide, in.a, in.imm)
	n := a.bytes()
	for left := mask; left != 0; {
		s := w.segment(a.space, in.ext.slot, n, left, a.kind)
		w.count(&s, n, a.kind)
		if s.space == paramSpace {
			w.fail(s.group, "write to a kernel's parameters")
		}
		if w.cta.check != nil {
			if s.group&(s.group-1) != 0 {
				w.checkOverlap(a, in, &s)
			}
			w.check(&s, n, a.kind)
			if a.kind&strong != 0 {
				w.announce(&s, a, true)
			}
		}
		for k, r := range in.ext.srcs {
			a.storeElement(w, &s, r, unsafe.Add(s.base, k*a.size))
		}
		left &^= s.group
	}
}

func (a *access) storeElement(w *warp, s *segment, r int32, base unsafe.Pointer) {
	if a.kind&strong != 0 {
		a.storeStrong(w, s, r, base)
		return
	}
	if s.group == allLanes && a.dst == bank32 && a.size > 1 {
		a.storeAll(w, &w.r32[r], base)
		return
	}
	if a.size == 4 && a.dst == bank32 {
		v := &w.r32[r]
		for m := s.group; m != 0; m &= m - 1 {
			i := firstLane(m) & (lanes - 1)
			*(*uint32)(unsafe.Add(base, w.ea[i])) = v[i]
		}
		return
	}
	for m := s.group; m != 0; m &= m - 1 {
		i := firstLane(m) & (lanes - 1)
		poke(unsafe.Add(base, w.ea[i]), a.size, w.value(a.dst, r, i))
	}
}

// storeAll stores an element of two or four bytes of each lane of a whole warp.
func (a *access) storeAll(w *warp, v *lanes32, base unsafe.Pointer) {
	if a.size == 2 {
		for i, x := range v {
			*(*uint16)(unsafe.Add(base, w.ea[i])) = uint16(x)
		}
		return
	}
	for i, x := range v {
		*(*uint32)(unsafe.Add(base, w.ea[i])) = x
	}
}
