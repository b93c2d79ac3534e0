package ptx

import "math/bits"

// initialised says which bytes of a range were written: a bit for each, made when the first is set.
type initialised struct {
	all  bool
	bits []uint64
}

// set marks n bytes of a range of size.
func (k *initialised) set(at, n, size uint64) {
	if k.all || n == 0 {
		return
	}
	if n == size {
		k.all, k.bits = true, nil
		return
	}
	k.grow(size)
	k.each(at, n, func(word, mask uint64) bool {
		k.bits[word] |= mask
		return true
	})
}

// clear marks n bytes as not written.
func (k *initialised) clear(at, n, size uint64) {
	if k.all {
		k.all = false
		k.grow(size)
		for i := range k.bits {
			k.bits[i] = ^uint64(0)
		}
	}
	if k.bits == nil {
		return
	}
	k.each(at, n, func(word, mask uint64) bool {
		k.bits[word] &^= mask
		return true
	})
}

func (k *initialised) grow(size uint64) {
	if k.bits == nil {
		k.bits = make([]uint64, (size+63)/64)
	}
}

// has says whether n bytes are all written.
func (k *initialised) has(at, n uint64) bool {
	if k.all || n == 0 {
		return true
	}
	if k.bits == nil {
		return false
	}
	return k.each(at, n, func(word, mask uint64) bool { return k.bits[word]&mask == mask })
}

// short is has for up to 16 bytes that do not cross a multiple of 64.
func (k *initialised) short(at, n uint64) bool {
	if k.all {
		return true
	}
	if k.bits == nil {
		return false
	}
	mask := (uint64(1)<<n - 1) << (at & 63)
	return k.bits[at>>6]&mask == mask
}

// setShort is set for up to 16 bytes that do not cross a multiple of 64.
func (k *initialised) setShort(at, n, size uint64) {
	if k.all {
		return
	}
	k.grow(size)
	k.bits[at>>6] |= (uint64(1)<<n - 1) << (at & 63)
}

// first is the first byte of n that is not written, from at; n if all are.
func (k *initialised) first(at, n uint64) uint64 {
	for i := range n {
		if !k.short(at+i, 1) {
			return i
		}
	}
	return n
}

// each calls f for the words of n bytes, with their bits, until f says no.
func (k *initialised) each(at, n uint64, f func(word, mask uint64) bool) bool {
	for n > 0 {
		bit := at & 63
		count := min(64-bit, n)
		mask := (^uint64(0) >> (64 - count)) << bit
		if !f(at>>6, mask) {
			return false
		}
		at, n = at+count, n-count
	}
	return true
}

// copyFrom copies the marks of n bytes, as the bytes themselves are copied.
func (k *initialised) copyFrom(at uint64, from *initialised, fromAt, n, size uint64) {
	if from.has(fromAt, n) {
		k.set(at, n, size)
		return
	}
	marks := make([]bool, n)
	for i := range marks {
		marks[i] = from.short(fromAt+uint64(i), 1)
	}
	for i, set := range marks {
		if set {
			k.setShort(at+uint64(i), 1, size)
		} else {
			k.clear(at+uint64(i), 1, size)
		}
	}
}

// reset marks all as not written.
func (k *initialised) reset() {
	k.all = false
	clear(k.bits)
}

func firstLane(mask uint32) int { return bits.TrailingZeros32(mask) }
