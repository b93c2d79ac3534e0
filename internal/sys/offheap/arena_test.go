package offheap

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// TestArena takes and frees memory in a random order: what one writes no other has, all of it is
// zero at first, and none stays behind.
func TestArena(t *testing.T) {
	before, want := InUse(), int64(0)
	var a Arena
	r := rand.New(rand.NewPCG(1, 2))
	type piece struct {
		Memory
		mark byte
	}
	var list []piece
	free := func(i int) {
		p := list[i]
		if !bytes.Equal(p.Bytes(), bytes.Repeat([]byte{p.mark}, len(p.Bytes()))) {
			t.Errorf("memory of %d bytes was written by another", len(p.Bytes()))
		}
		want -= int64(len(p.Bytes()))
		for range 2 {
			if err := p.Free(); err != nil || p.Bytes() != nil {
				t.Errorf("Free: %v, leaves %d bytes", err, len(p.Bytes()))
			}
		}
		list = append(list[:i], list[i+1:]...)
	}
	for i := range 300 {
		size := 1 + r.IntN(partAtMost/8)
		switch r.IntN(20) {
		case 0:
			size = partAtMost
		case 1:
			size = partAtMost + 1
		}
		m, err := a.Map(size)
		if err != nil {
			t.Fatal(err)
		}
		b := m.Bytes()
		if len(b) != size || cap(b) != size || m.Borrowed() {
			t.Fatalf("%d bytes with room for %d, borrowed %v, want %d", len(b), cap(b),
				m.Borrowed(), size)
		}
		if at := uintptr(unsafe.Pointer(&b[0])); at%partAlign != 0 {
			t.Errorf("begins at %#x, want a multiple of %d", at, partAlign)
		}
		if !bytes.Equal(b, make([]byte, size)) {
			t.Fatal("not zeroed")
		}
		p := piece{m, byte(i + 1)}
		for i := range b {
			b[i] = p.mark
		}
		list = append(list, p)
		want += int64(size)
		if got := InUse() - before; got != want {
			t.Fatalf("%d bytes in use, want %d", got, want)
		}
		for len(list) > 20 || len(list) > 0 && r.IntN(3) == 0 {
			free(r.IntN(len(list)))
		}
	}
	for len(list) > 0 {
		free(len(list) - 1)
	}
	if c := a.open; InUse() != before || c.parts != 0 {
		t.Errorf("%d bytes stay in use, %d parts of the last mapping", InUse()-before, c.parts)
	}
}
