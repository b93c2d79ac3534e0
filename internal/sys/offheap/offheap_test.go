package offheap

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"unsafe"
)

func TestMap(t *testing.T) {
	page := os.Getpagesize()
	for _, c := range []struct {
		size   int
		option Option
		align  int
	}{
		{1, 0, page},
		{3*page + 5, HugePages, page},
		{hugeFrom - 1, HugePages, page},
		{hugeFrom, HugePages, hugePage},
		{hugeFrom + hugePage/2 + 1, HugePages | NoReserve, hugePage},
		{hugeFrom, 0, page},
	} {
		t.Run(fmt.Sprintf("%d/%d", c.size, c.option), func(t *testing.T) {
			m, err := Map(c.size, c.option)
			if err != nil {
				t.Fatal(err)
			}
			b := m.Bytes()
			if len(b) != c.size || cap(b) != c.size {
				t.Fatalf("%d bytes with room for %d, want %d", len(b), cap(b), c.size)
			}
			if at := uintptr(unsafe.Pointer(&b[0])); at%uintptr(c.align) != 0 {
				t.Errorf("begins at %#x, want a multiple of %#x", at, c.align)
			}
			if !bytes.Equal(b, make([]byte, c.size)) {
				t.Error("not zeroed")
			}
			for i := range b {
				b[i] = 1
			}
			Drop(b)
			if !bytes.Equal(b, make([]byte, c.size)) {
				t.Error("not zeroed after Drop")
			}
			for range 2 {
				if err := m.Free(); err != nil || m.Bytes() != nil {
					t.Errorf("Free: %v, leaves %d bytes", err, len(m.Bytes()))
				}
			}
		})
	}
}

// TestNoReserve maps more than any machine has; without the option the system may refuse that.
func TestNoReserve(t *testing.T) {
	m, err := Map(1<<44, NoReserve)
	if err != nil {
		t.Skipf("the system does not overcommit: %v", err)
	}
	m.Bytes()[1<<43] = 1
	if err := m.Free(); err != nil {
		t.Error(err)
	}
}

func TestTooLarge(t *testing.T) {
	if _, err := Map(1<<62, 0); err == nil {
		t.Error("mapped 2^62 bytes")
	}
}
