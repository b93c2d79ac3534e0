package shm

import (
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/sys/memfile"

	"github.com/eagleray/eagleray/internal/link/collective"
)

func TestJoinRefuses(t *testing.T) {
	for _, ranks := range []int{0, -1, collective.MaxMembers + 1} {
		if _, err := Create(ranks, 4096); err == nil {
			t.Errorf("a group of %d was created", ranks)
		}
	}
	if _, err := Create(2, 0); err == nil {
		t.Error("a segment for nothing was created")
	}
	f, err := Create(2, 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, _ := f.Stat(); info.Size() != Size(2, 8192) {
		t.Errorf("%d bytes, want %d", info.Size(), Size(2, 8192))
	}
	if err := f.Truncate(1 << 20); err == nil {
		t.Error("the segment could be resized")
	}
	g, err := Join(f, 0, 2, 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, c := range [][3]int{{0, 2, 8192}, {2, 2, 8192}, {-1, 2, 8192}, {1, 4, 8192},
		{1, 2, 4096}, {1, 4, 4096}, {1, 5, 8192}} {
		if g, err := Join(f, c[0], c[1], c[2]); err == nil {
			g.Close()
			t.Errorf("rank %d of %d with %d bytes was let in", c[0], c[1], c[2])
		}
	}

	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := Join(plain, 0, 2, 8192); err == nil {
		t.Error("a plain file was joined")
	}
	empty, err := memfile.Create("other", Size(2, 8192))
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if _, err := Join(empty, 0, 2, 8192); err == nil || !strings.Contains(err.Error(), "seals") {
		t.Errorf("unsealed segment: %v", err)
	}
	if err := memfile.Seal(empty); err != nil {
		t.Fatal(err)
	}
	if _, err := Join(empty, 0, 2, 8192); err == nil || !strings.Contains(err.Error(), "magic") {
		t.Errorf("segment without a header: %v", err)
	}
}

func TestLayout(t *testing.T) {
	if got := unsafe.Sizeof(mark{}); got != markSize {
		t.Errorf("a mark has %d bytes, want %d", got, markSize)
	}
	for ranks := 1; ranks <= collective.MaxMembers; ranks++ {
		n := ringBytes(ranks)
		if n&(n-1) != 0 || n < pieceBytes || n < collective.MinMessageBuffer ||
			ranks <= 16 && n != collective.MessageBuffer {
			t.Errorf("%d ranks: rings of %d bytes", ranks, n)
		}
		if most := int64(4 << 30); Size(ranks, 1<<20) > most {
			t.Errorf("%d ranks: segment of %d bytes", ranks, Size(ranks, 1<<20))
		}
	}
	if offAbortText+maxAbortText > page {
		t.Error("the abort text does not fit in its page")
	}
}
