package gemm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// A matrix that is packed where others were has the bits of one in new memory, padding too.
func TestSpare(t *testing.T) {
	p := newPool(t, 2)
	r := rand.New(rand.NewPCG(5, 6))
	for _, v := range variants() {
		for _, chunks := range []int{1, 4} {
			var spare Spare
			opt := v.options(chunks)
			opt.Spare = &spare
			// The last two take as much memory, and are laid out otherwise.
			shapes := [][2]int{{37, 301}, {37, 301}, {16, 64}, {64, 16}}
			var retired []*Matrix
			for _, s := range shapes {
				q := newProblem(r, v.kind, s[0], s[1], 1)
				retired = append(retired, mustPack(t, p, opt, q.source()))
			}
			var old []*byte
			for _, m := range retired {
				old = append(old, &m.mem.Bytes()[0])
				spare.Release(m)
			}
			for i, s := range []int{3, 0, 2, 1} {
				q := newProblem(r, v.kind, shapes[s][0], shapes[s][1], 1)
				again := mustPack(t, p, opt, q.source())
				fresh := mustPack(t, p, v.options(chunks), q.source())
				what := fmt.Sprintf("%v in %d chunks, %d", v, chunks, i)
				samePacked(t, what, again, fresh)
				if at := &again.mem.Bytes()[0]; !(at == old[s] || s < 2 && at == old[1-s]) {
					t.Errorf("%s: the memory is new", what)
				}
				again.Free()
				fresh.Free()
			}
			if !spare.Empty() {
				t.Errorf("%v: %d are left", v, len(spare.list))
			}
		}
	}
}

// Memory that was reserved is used, and nothing of it stays.
func TestReserve(t *testing.T) {
	p := newPool(t, 2)
	r := rand.New(rand.NewPCG(7, 8))
	v := variants()[0]
	q := newProblem(r, v.kind, 300, 400, 1)
	var spare Spare
	opt := v.options(1)
	m := mustPack(t, p, opt, q.source())
	if err := spare.Reserve(p, []*Matrix{m, m}); err != nil {
		t.Fatal(err)
	}
	opt.Spare = &spare
	twin := mustPack(t, p, opt, q.source())
	samePacked(t, "the twin", twin, m)
	if len(spare.list) != 1 {
		t.Errorf("%d are left of two", len(spare.list))
	}
	spare.Drop()
	if !spare.Empty() {
		t.Error("something is left")
	}
	third := mustPack(t, p, opt, q.source())
	samePacked(t, "without any", third, m)
}

func samePacked(t *testing.T, what string, got, want *Matrix) {
	t.Helper()
	if !bytes.Equal(got.mem.Bytes(), want.mem.Bytes()) {
		t.Errorf("%s: the packed bytes differ", what)
	}
}
