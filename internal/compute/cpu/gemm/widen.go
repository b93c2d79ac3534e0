package gemm

import "unsafe"

const (
	// wideSteps are those of K that are widened at a time: with them two panels stay in the L2
	// cache while the rows pass by.
	wideSteps = 3072
	// wideRows are the rows of x that one widening serves, or more, but not twice as many. For
	// fewer it costs more than it gains.
	wideRows = many
	// wideChunks are the chunks a thread has at least where weights are widened, for an even
	// finish.
	wideChunks = 4
)

// widens tells whether panels are widened to float32: it takes many rows, and a chunk has so many
// that there may be too few chunks for many threads. A kernel then has fewer instructions for each
// product, and other tiles, which take fewer still.
func (t *mulTask) widens() bool {
	return t.panels/2*(t.rows/wideRows) >= wideChunks*t.threads
}

// prepareWide gives each thread memory for widened weights.
func (s *Scratch) prepareWide(t *mulTask) {
	t.numberSize = t.width * t.wideStride() / 4
	t.numbers = unsafe.Pointer(&alignedSlice(&s.numbers, t.threads*t.numberSize)[0])
}

// wideStride is the bytes from a widened panel to the next.
func (t *mulTask) wideStride() int {
	steps := min(t.depth, t.m.packed[t.m.pieces])
	return int(spread(uintptr(steps * t.kernels.nr * 4)))
}

// sumWide is sum for weights that are widened: as many pieces of K at a time as have room, and all
// of them tile after tile.
func (t *mulTask) sumWide(b *block) {
	var list [maxPieces]steps
	n, wide := 0, 0
	for i := range t.m.pieces {
		for at, length := 0, t.length(i); at == 0 || at < length; at += t.depth {
			if n > 0 && wide+min(length-at, t.depth) > t.depth {
				t.multiply(b, list[:n])
				n, wide = 0, 0
			}
			s := &list[n]
			t.locate(s, b, i, at, length)
			t.widened(b, s, wide)
			n, wide = n+1, wide+(s.count+1)&^1
		}
	}
	t.multiply(b, list[:n])
}

// widened makes weights those of the thread's memory, from a step of it on.
func (t *mulTask) widened(b *block, s *steps, step int) {
	s.next = nil
	if s.count == 0 { // a piece of a short K
		return
	}
	to := unsafe.Add(t.numbers, b.thread*t.numberSize*4+step*t.kernels.nr*4)
	stride := t.wideStride()
	for panel := range b.width {
		t.widen(unsafe.Add(to, panel*stride), unsafe.Add(s.w, panel*int(s.stride)),
			ceilDiv(s.count, 2))
	}
	if b.next < t.panels {
		s.next = unsafe.Add(s.w, (b.next-b.panel)*int(s.stride))
	}
	s.w, s.stride, s.soon = to, uintptr(stride), to
}

// fetchNext has a tile fetch its share of what the thread widens next: memory is read while the
// cores multiply.
func (t *mulTask) fetchNext(b *block, s *steps, tile int) {
	size := s.count * t.m.stepBytes()      // of a panel
	at := tile * (s.count / 8 * cacheLine) // a line for every four pairs
	for panel := range min(b.width, t.panels-b.next) {
		if at < size {
			s.soon, s.soonStep = unsafe.Add(s.next, panel*int(t.m.stride)+at), cacheLine
			return
		}
		at -= size
	}
}
