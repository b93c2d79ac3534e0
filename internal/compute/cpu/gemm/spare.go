package gemm

import (
	"fmt"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// Spare is the memory of matrices that are not multiplied by any more, for Pack to use again: the
// system takes longer to find memory than packing takes. What it has not is mapped, that of small
// matrices together: those of adapters are read one after the other. The zero Spare is empty. One
// goroutine at a time uses it, and frees what was packed with it.
type Spare struct {
	list  []Matrix
	small offheap.Arena
}

// Release keeps the memory of a matrix, which must not be used afterwards.
func (s *Spare) Release(m *Matrix) {
	s.list = append(s.list, *m)
	*m = Matrix{}
}

// Empty says that nothing is kept.
func (s *Spare) Empty() bool { return len(s.list) == 0 }

// Drop returns the memory to the system.
func (s *Spare) Drop() {
	for i := range s.list {
		s.list[i].Free()
	}
	s.list = nil
}

// place gives a matrix that has been laid out its memory: that of one that was laid out as it is,
// where what Pack does not write, because it is padding, is zero already, or else the system's.
func (s *Spare) place(m *Matrix) (err error) {
	size := m.panels() * int(m.stride)
	if s == nil {
		m.mem, err = offheap.Map(size, offheap.HugePages) // all of it is written, then streamed
	} else if m.mem = s.acquire(m); m.mem.Bytes() == nil {
		m.mem, err = s.small.Map(size)
	}
	if err != nil {
		return fmt.Errorf("packed weights: %w", err)
	}
	m.base = unsafe.Pointer(unsafe.SliceData(m.mem.Bytes()))
	return nil
}

// acquire returns memory that is kept of a matrix that is laid out as m is, or none.
func (s *Spare) acquire(m *Matrix) offheap.Memory {
	for i := range s.list {
		if o := &s.list[i]; o.layout() == m.layout() {
			mem := o.mem
			last := len(s.list) - 1
			s.list[i], s.list[last] = s.list[last], Matrix{}
			s.list = s.list[:last]
			return mem
		}
	}
	return offheap.Memory{}
}

// layout is all that says where in the packed form an element lies.
type layout struct {
	n, k, nr, pieces int
	kind             Kind
	start, packed    [maxPieces + 1]int
	stride           uintptr
	codes            codeLayout
}

// codeLayout says where in a packed form of codes an element lies.
type codeLayout struct {
	form             form
	offset, head     uintptr
	group, lead      int
	super, superLead int
}

func (m *Matrix) layout() layout {
	return layout{n: m.n, k: m.k, nr: m.kernels.nr, pieces: m.pieces, kind: m.kind, start: m.start,
		packed: m.packed, stride: m.stride, codes: m.codes.layout()}
}

// layout is the zero value for a matrix without codes.
func (c *codes) layout() codeLayout {
	if c == nil {
		return codeLayout{}
	}
	return codeLayout{form: c.form, offset: c.offset, head: c.head, group: c.group, lead: c.lead,
		super: c.super, superLead: c.superLead}
}

// Reserve keeps memory for matrices that are laid out as these are, and has the system find it now.
// On an error nothing more is kept than before.
func (s *Spare) Reserve(p *pool.Pool, like []*Matrix) error {
	var t touch
	var twins []Matrix
	for _, m := range like {
		twin := *m
		var err error
		if twin.mem, err = offheap.Map(m.Bytes(), offheap.HugePages); err != nil {
			for i := range twins {
				twins[i].Free()
			}
			return fmt.Errorf("reserve memory for weights: %w", err)
		}
		twin.base = unsafe.Pointer(unsafe.SliceData(twin.mem.Bytes()))
		twins = append(twins, twin)
		for b := twin.mem.Bytes(); len(b) > 0; {
			n := min(len(b), touchSize)
			t = append(t, b[:n])
			b = b[n:]
		}
	}
	p.Run(t, len(t))
	s.list = append(s.list, twins...)
	return nil
}

// touch has the system find memory, a part per chunk.
type touch [][]byte

// touchSize is a whole number of huge pages.
const touchSize = 32 << 20

// Do touches a part.
func (t touch) Do(part, _ int) { offheap.Populate(t[part]) }
