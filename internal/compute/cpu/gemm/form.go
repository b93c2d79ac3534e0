package gemm

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// Form is what a matrix is but for its packed bytes, for a program that stores both: FromForm makes
// the matrix again, in the same build of the program.
type Form struct {
	N, K, Chunks int
	Kind         Kind
	Rounded      bool `json:",omitempty"`
	// Start is where each chunk of K begins, and K.
	Start []int
	// PanelRows are the rows of a panel.
	PanelRows int
	// Codes is nil for a matrix that is not quantised.
	Codes *CodesForm `json:",omitempty"`
}

// CodesForm is what a Form has of codes: see compute.Codes. Layout is how they lie in a panel.
type CodesForm struct {
	Type        compute.CodeType
	Values      [16]float32
	Group, Lead int
	// Super is 0 of codes that have factors but not in their panels.
	Super, SuperLead int `json:",omitempty"`
	Offsets          bool
	Flags            int
	Layout           uint8
	Order            []int32 `json:",omitempty"`
}

// Form returns the matrix' form, and its packed bytes, which must not be written and are valid
// until Free.
func (m *Matrix) Form() (Form, []byte) {
	f := Form{N: m.n, K: m.k, Chunks: m.pieces, Kind: m.kind, Rounded: m.rounded,
		Start: slices.Clone(m.start[:m.pieces+1]), PanelRows: m.kernels.nr}
	if c := m.codes; c != nil {
		f.Codes = &CodesForm{Type: c.kind, Values: c.values, Group: c.group, Lead: c.lead,
			Super: c.super, SuperLead: c.superLead, Offsets: c.offset > 0, Flags: c.flags,
			Layout: uint8(c.form), Order: c.given(m.k)}
	}
	return f, m.mem.Bytes()
}

// given is the order of columns that order was called with; nil where they are those of x.
func (c *codes) given(k int) []int32 {
	if c.columns == nil {
		return nil
	}
	order := make([]int32, k)
	for _, r := range c.runs {
		copy(order[r.from:], c.columns[r.packed:r.packed+r.length])
	}
	return order
}

// FromForm makes the matrix of a form and of its packed bytes, on the instruction set that it was
// packed for. The bytes stay the caller's, who neither writes nor frees them before the matrix is
// freed. An error wraps ErrOptions or ErrSource.
func FromForm(set isa.ISA, f Form, packed []byte) (*Matrix, error) {
	opt := Options{Kind: f.Kind, Chunks: f.Chunks, ISA: set, Rounded: f.Rounded}
	if err := opt.check(); err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSource, err)
	}
	m := &Matrix{n: f.N, k: f.K, kind: f.Kind, rounded: f.Rounded, pieces: f.Chunks,
		flags: follows(),
		mem:   offheap.Borrowed(packed), base: unsafe.Pointer(unsafe.SliceData(packed))}
	copy(m.start[:], f.Start)
	if c := f.Codes; c != nil {
		m.codes = &codes{flags: c.Flags}
		like := compute.Codes{Type: c.Type, Values: c.Values, Group: c.Group, Lead: c.Lead,
			Super: c.Super, SuperLead: c.SuperLead}
		if c.Offsets {
			like.Offset = []float32{}
		}
		m.kernels = m.codes.choose(set, &like, form(c.Layout).dots())
		m.codes.cutRuns(f.Start)
		m.stride = spread(m.codes.place(m.kernels.nr, c.Offsets))
		m.codes.order(m.k, c.Order)
	} else {
		m.kernels = kernelsFor(opt)
		m.layOut()
	}
	if m.kernels.nr != f.PanelRows || f.Codes != nil && m.codes.form != form(f.Codes.Layout) {
		return nil, fmt.Errorf("%w: packed for other kernels than those of %v", ErrOptions, set)
	}
	if want := m.panels() * int(m.stride); len(packed) != want ||
		uintptr(m.base)%cacheLine != 0 {
		return nil, fmt.Errorf("%w: %d bytes of %d x %d, want %d at a cache line", ErrSource,
			len(packed), f.N, f.K, want)
	}
	return m, nil
}

// check returns an error about the first value that no matrix has.
func (f *Form) check() error {
	switch {
	case f.N < 1 || f.K < 1 || f.N > maxBytes/f.K/8:
		return fmt.Errorf("shape %d x %d", f.N, f.K)
	case len(f.Start) != f.Chunks+1 || f.Start[0] != 0 || f.Start[f.Chunks] != f.K ||
		!slices.IsSorted(f.Start):
		return fmt.Errorf("%d columns cut at %v", f.K, f.Start)
	case (f.Kind == I8) && f.Codes == nil:
		return fmt.Errorf("%v without codes", f.Kind)
	case f.Codes == nil:
		return nil
	}
	c := compute.Codes{Type: f.Codes.Type, Rows: f.N, Cols: f.K, Group: f.Codes.Group,
		Lead: f.Codes.Lead, Super: f.Codes.Super, SuperLead: f.Codes.SuperLead}
	if err := c.Check(); err != nil {
		return err
	}
	if len(f.Codes.Order) != 0 && len(f.Codes.Order) != f.K {
		return fmt.Errorf("the order of %d columns of %d", len(f.Codes.Order), f.K)
	}
	for _, v := range f.Codes.Order {
		if v < 0 || int(v) >= f.K {
			return fmt.Errorf("column %d of %d in the order of columns", v, f.K)
		}
	}
	return nil
}

// Borrowed tells whether the packed bytes are another owner's (FromForm): not to be written.
func (m *Matrix) Borrowed() bool { return m.mem.Borrowed() }
