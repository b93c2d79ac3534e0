package cuda

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// coded is what a quantised weight has beside its codes. Those of a group are multiplied as the
// numbers that they stand for, in the type that models run in; the group's sum by its scale, and
// the sum of its inputs by its offset.
type coded struct {
	codeType compute.CodeType
	values   [16]float32
	// Where numbers of 4 bits, scales and offsets are, as kernels.QuantisedParams have them.
	numbers, scale, offset driver.Ptr
	order                  driver.Ptr // of input features; 0 as they are
	group, lead, ld        int
}

// bits are those of a code.
func (c *coded) bits() int { return codeBits(c.codeType) }

func codeBits(t compute.CodeType) int {
	if t == compute.Code4 {
		return 4
	}
	return 8
}

// alike says that kernels take two weights' codes for the same.
func (c *coded) alike(b *coded) bool {
	if c == nil || b == nil {
		return c == b
	}
	return c.codeType == b.codeType && c.values == b.values && c.group == b.group &&
		c.lead == b.lead && c.ld == b.ld && (c.offset == 0) == (b.offset == 0) &&
		(c.order == 0) == (b.order == 0)
}

// What codes stand for, as kernels name it.
const (
	linear   = 0 // integers that follow each other
	e2m1     = 1
	tabled   = 2
	integers = 3 // of 8 bits
	e4m3     = 4
)

// e2m1Values are the numbers of e2m1 ("OCP Microscaling Formats (MX) Specification", 5.3.3).
var e2m1Values = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}

// form is what the codes stand for, and what kernels add to them or multiply them by, as they lie
// in numbers of a type, to have that.
func (c *coded) form(dtype compute.DType) (form int32, shift float64) {
	wide := dtype == compute.BFloat16
	switch {
	case c.codeType == compute.Code8:
		return integers, 0
	case c.codeType == compute.CodeE4M3 && wide:
		return e4m3, 0x1p120
	case c.codeType == compute.CodeE4M3:
		return e4m3, 0x1p8
	case c.values == e2m1Values && c.offset != 0:
		return tabled, 0
	case c.values == e2m1Values && wide:
		return e2m1, 0x1p126
	case c.values == e2m1Values:
		return e2m1, 0x1p14
	}
	first := c.values[0]
	if first != float32(int8(first)) {
		return tabled, 0
	}
	for i, v := range c.values {
		if v != first+float32(i) {
			return tabled, 0
		}
	}
	if wide {
		return linear, float64(first) - 128
	}
	return linear, float64(first) - 1024
}

// params are for a kernel of a type.
func (c *coded) params(dtype compute.DType) kernels.QuantisedParams {
	form, shift := c.form(dtype)
	pair := int32(rounded(float32(shift), dtype))
	p := kernels.QuantisedParams{Numbers: c.numbers, Scale: uint64(c.scale),
		Offset: uint64(c.offset), Group: int32(c.group), Lead: int32(c.lead), Ldscale: int32(c.ld),
		Form: form, Shift: pair | pair<<16}
	if c.group < tileIn {
		p.Smaller = int32(tileIn / c.group)
	}
	return p
}

// Codes lie in tiles of so many output by input features, and wide is the group that all of these
// are in.
const (
	tileOut = 16
	tileIn  = 64
	wide    = 1 << 30
)

// fits says that kernels can take codes as they are: groups are of whole products, and divide a
// tile where they are smaller, and e4m3 has no offsets. Others are kept as numbers, and so are all
// where models run in float32.
func fits(c *compute.Codes, dtype compute.DType) bool {
	return dtype != compute.Float32 && c.Group%product == 0 &&
		!(c.Type == compute.CodeE4M3 && c.Offset != nil) &&
		(c.Group >= tileIn || c.Group == 0 || tileIn%c.Group == 0)
}

// codedWidth is what a chunk of input features is padded to: it begins with a product of the group
// that its first feature is in (skipped in gemm.cu).
func codedWidth(c *compute.Codes, chunks int) (padded int) {
	for i := range chunks {
		begin, end := c.Cols*i/chunks, c.Cols*(i+1)/chunks
		if c.Group > 0 {
			begin -= (c.Lead + begin) % product
		}
		padded = max(padded, (end-begin+product-1)/product*product)
	}
	return padded
}

// codedSizes are the bytes of codes, and of scales or of offsets, of which each has size, with room
// between them to be aligned.
func codedSizes(c *compute.Codes, rows, chunks, size int) (codes, scales int) {
	tiles := (rows + tileOut - 1) / tileOut
	steps := (codedWidth(c, chunks) + tileIn - 1) / tileIn
	codes = tiles * chunks * steps * tileOut * tileIn * codeBits(c.Type) / 8
	return codes, (c.Groups()*tiles*tileOut*size + ringAlign - 1) / ringAlign * ringAlign
}

// restBytes are those of what follows: the numbers of codes of 4 bits, and the order, which codes
// that are only weighed may have.
func restBytes(c *compute.Codes) int {
	order := len(c.Order)
	if c.Code == nil {
		order = c.Cols
	}
	return ringAlign + 4*order
}

// rowsOf are the rows of stacked codes.
func rowsOf(sources []compute.Codes) (n int) {
	for i := range sources {
		n += sources[i].Rows
	}
	return n
}

// CodesBytes implements layers.Planner.
func (p Planner) CodesBytes(chunks int, sources ...compute.Codes) (n int64, err error) {
	for first, some := range compute.Alike(sources) {
		c := &some[0]
		if err := c.Check(); err != nil {
			return 0, fmt.Errorf("source %d: %w", first, err)
		}
		rows := rowsOf(some)
		if !fits(c, p.DType) {
			n += int64(p.DType.Size()*rows) * int64(chunks) * int64(paddedWidth(c.Cols, chunks))
			continue
		}
		codes, scales := codedSizes(c, rows, chunks, 4)
		if c.Offset != nil {
			scales *= 2
		}
		n += int64(codes) + int64(scales) + int64(restBytes(c))
	}
	return n, nil
}

// Int8Bytes implements layers.Planner.
func (p Planner) Int8Bytes(chunks int, sources ...compute.Source) (int64, error) {
	var list []compute.Codes
	for i := range sources {
		list = append(list, int8Codes(&sources[i]))
	}
	return p.CodesBytes(chunks, list...)
}

// PackCodes makes a weight of stacked quantised rectangles. Those that lie beside each other and
// are alike are one matrix.
func (d *Device) PackCodes(chunks int, sources ...compute.Codes) (compute.Weight, error) {
	var parts []compute.Weight
	for first, some := range compute.Alike(sources) {
		w, err := d.packAlike(chunks, some)
		if err != nil {
			for _, w := range parts {
				w.Free()
			}
			if bad := (*compute.NotFinite)(nil); errors.As(err, &bad) {
				bad.Source += first
			}
			return nil, err
		}
		parts = append(parts, w)
	}
	return d.Join(parts...), nil
}

// packAlike makes a weight of codes that are alike.
func (d *Device) packAlike(chunks int, sources []compute.Codes) (compute.Weight, error) {
	for i := range sources {
		if err := sources[i].Check(); err != nil {
			return nil, fmt.Errorf("source %d of a weight: %w", i, err)
		}
		if sources[i].Code == nil {
			return nil, fmt.Errorf("source %d of a weight has no codes", i)
		}
		if err := d.soundCodes(&sources[i]); err != nil {
			return nil, &compute.NotFinite{Source: i, Err: err}
		}
	}
	c := &sources[0]
	if !fits(c, d.dtype) {
		return d.packUnpacked(chunks, sources)
	}
	rows := rowsOf(sources)
	scale, offset := transposed(sources, false), transposed(sources, true)
	codes, scales := codedSizes(c, rows, chunks, scale.size)
	offsets := 0
	if c.Offset != nil {
		_, offsets = codedSizes(c, rows, chunks, offset.size)
	}
	w := d.newWeight(codes + scales + offsets + restBytes(c))
	w.out, w.in, w.chunks, w.padded = rows, c.Cols, chunks, codedWidth(c, chunks)
	q := &coded{codeType: c.Type, values: c.Values, group: c.Group, lead: c.Lead,
		ld: (rows + tileOut - 1) / tileOut * tileOut}
	if w.codes = q; q.group == 0 {
		q.group, q.lead = wide, 0
	}
	at := w.data + driver.Ptr(codes)
	q.scale = at | scale.odd()
	err := d.send(at, scale.bytes)
	if at += driver.Ptr(scales); err == nil && c.Offset != nil {
		q.offset = at | offset.odd()
		err = d.send(at, offset.bytes)
		at += driver.Ptr(offsets)
	}
	if q.numbers = at; err == nil {
		err = d.send(at, floatBytes(c.Values[:]))
	}
	if at += ringAlign; err == nil && c.Order != nil {
		q.order = at
		err = d.send(at, unsafe.Slice((*byte)(unsafe.Pointer(&c.Order[0])), 4*len(c.Order)))
	}
	if err == nil {
		err = d.sendCodes(w, sources)
	}
	if err = errors.Join(err, d.err); err != nil {
		w.Free()
		return nil, err
	}
	return w, nil
}

// sendCodes has the device put the codes of stacked sources where kernels read them.
func (d *Device) sendCodes(w *weight, sources []compute.Codes) error {
	steps := (w.padded + tileIn - 1) / tileIn
	bits, to := w.codes.bits(), w.data
	source, row := 0, 0 // to be sent next
	for left := w.out; left > 0; {
		piece, err := d.staging.next(d)
		if err != nil {
			return fmt.Errorf("pinned memory to load through: %w", err)
		}
		rows := min(left, len(piece)/w.in/tileOut*tileOut)
		if rows == 0 {
			return fmt.Errorf("a row of %d input features", w.in)
		}
		for n := 0; n < rows; {
			c := &sources[source]
			some := min(rows-n, c.Rows-row)
			copy(piece[n*w.in:], c.Code[row*w.in:(row+some)*w.in])
			n += some
			if row += some; row == c.Rows {
				source, row = source+1, 0
			}
		}
		raw := d.raw.grow(d, len(piece))
		if d.err != nil {
			return d.err
		}
		if err := d.ctx.Upload(raw, piece[:rows*w.in], d.stream); err != nil {
			return err
		}
		words := (rows + tileOut - 1) / tileOut * w.chunks * steps * tileOut * tileIn * bits / 32
		elements(d, kernels.PackCodes, words, kernels.PackCodesParams{Bytes: raw, W: to,
			Rows: int32(rows), In: int32(w.in), Chunks: int32(w.chunks), Steps: int32(steps),
			Bits: int32(bits), Group: int32(w.codes.group), Lead: int32(w.codes.lead)})
		to += driver.Ptr(4 * words)
		left -= rows
	}
	return nil
}

// factors are scales, or offsets, [groups][rows], rows padded: float16 where that has all of them.
type factors struct {
	bytes []byte
	size  int // of each
}

// odd is what marks an address of float16.
func (f factors) odd() driver.Ptr {
	if f.size == 2 {
		return 1
	}
	return 0
}

// transposed are the scales of stacked sources, or their offsets, row beside row.
func transposed(sources []compute.Codes, offsets bool) factors {
	groups, rows := sources[0].Groups(), rowsOf(sources)
	ld := (rows + tileOut - 1) / tileOut * tileOut
	wide, at, exact := make([]float32, groups*ld), 0, true
	for i := range sources {
		c := &sources[i]
		list := c.Scale
		if offsets {
			list = c.Offset
		}
		for j, v := range list {
			wide[j%groups*ld+at+j/groups] = v
			exact = exact && half.FromF16(half.ToF16(v)) == v
		}
		at += c.Rows
	}
	if !exact {
		return factors{floatBytes(wide), 4}
	}
	narrow := make([]uint16, len(wide))
	for i, v := range wide {
		narrow[i] = half.ToF16(v)
	}
	return factors{unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(narrow))),
		2*len(narrow)), 2}
}

// send sends bytes through pinned memory.
func (d *Device) send(to driver.Ptr, b []byte) error {
	for len(b) > 0 {
		if d.err != nil {
			return d.err
		}
		piece, err := d.staging.next(d)
		if err != nil {
			return fmt.Errorf("pinned memory to load through: %w", err)
		}
		n := copy(piece, b)
		if err := d.ctx.Upload(to, piece[:n], d.stream); err != nil {
			return err
		}
		b, to = b[n:], to+driver.Ptr(n)
	}
	return nil
}

// soundCodes is an error that names a code or a factor that is no finite number.
func (d *Device) soundCodes(c *compute.Codes) error {
	groups := c.Groups()
	for i, s := range c.Scale {
		if s-s != 0 || c.Offset != nil && c.Offset[i]-c.Offset[i] != 0 {
			return fmt.Errorf("the scale or the offset of row %d, group %d, is not finite",
				i/groups, i%groups)
		}
	}
	if c.Type != compute.CodeE4M3 {
		return nil
	}
	s := scan{c: c}
	s.bad.Store(math.MaxInt64)
	d.pool.Run(&s, c.Rows)
	if at := s.bad.Load(); at < math.MaxInt64 {
		return fmt.Errorf("element [%d, %d] is NaN", int(at)/c.Cols, int(at)%c.Cols)
	}
	return nil
}

// scan finds the first code of e4m3 that is NaN.
type scan struct {
	c   *compute.Codes
	bad atomic.Int64
}

// Do looks at a row.
func (s *scan) Do(row, _ int) {
	from := row * s.c.Cols
	i := slices.IndexFunc(s.c.Code[from:from+s.c.Cols], func(b byte) bool { return b&0x7f == 0x7f })
	for at := int64(from + i); i >= 0; {
		if old := s.bad.Load(); old <= at || s.bad.CompareAndSwap(old, at) {
			return
		}
	}
}

// packUnpacked makes a plain weight of the numbers of codes.
func (d *Device) packUnpacked(chunks int, sources []compute.Codes) (compute.Weight, error) {
	var plain []compute.Source
	for i := range sources {
		c := &sources[i]
		u := unpacking{c, make([]float32, c.Rows*c.Cols)}
		d.pool.Run(&u, c.Rows)
		plain = append(plain, compute.Source{Data: floatBytes(u.numbers), DType: compute.Float32,
			Rows: c.Rows, RowHi: c.Rows, Cols: c.Cols, ColHi: c.Cols})
	}
	return d.Pack(chunks, plain...)
}

// unpacking is codes that are made numbers.
type unpacking struct {
	*compute.Codes
	numbers []float32
}

// Do makes a row.
func (u *unpacking) Do(row, _ int) {
	groups, to := u.Groups(), u.numbers[row*u.Cols:(row+1)*u.Cols]
	for c, code := range u.Code[row*u.Cols : (row+1)*u.Cols] {
		g := row * groups
		if u.Group > 0 {
			g += (u.Lead + c) / u.Group
		}
		v := float64(u.Number(code)) * float64(u.Scale[g])
		if u.Offset != nil {
			v += float64(u.Offset[g])
		}
		if u.Order != nil {
			c = int(u.Order[c])
		}
		to[c] = float32(v)
	}
}

// int8Codes are the codes of a source, of integers with a scale for each row, without numbers.
func int8Codes(s *compute.Source) compute.Codes {
	c := compute.Codes{Type: compute.Code8, Rows: s.RowHi - s.RowLo, Cols: s.ColHi - s.ColLo}
	if c.Cols != s.Cols {
		c.From, c.Of = s.ColLo, s.Cols
	}
	return c
}

// PackInt8 makes a weight of integers of 8 bits: round(w/scale), with the largest magnitude in a
// whole row of the source divided by 127 for a scale.
func (d *Device) PackInt8(chunks int, sources ...compute.Source) (compute.Weight, error) {
	ops := vec.New(isa.Best())
	var list []compute.Codes
	for i := range sources {
		q := quantising{s: &sources[i], c: int8Codes(&sources[i]), ops: ops}
		q.c.Code, q.c.Scale = make([]byte, q.c.Rows*q.c.Cols), make([]float32, q.c.Rows)
		d.pool.Run(&q, q.c.Rows)
		list = append(list, q.c)
	}
	return d.PackCodes(chunks, list...)
}

// quantising rounds rows of a source to integers.
type quantising struct {
	s   *compute.Source
	c   compute.Codes
	ops *vec.Ops
}

// Do rounds a row.
func (q *quantising) Do(row, _ int) {
	s, v := q.s, make([]float32, q.s.Cols)
	down, right := strides(s)
	data := s.Data[s.DType.Size()*(s.RowLo+row)*down:]
	for i := range v {
		v[i] = element(s, data[s.DType.Size()*i*right:])
	}
	scale := math.Float32frombits(q.ops.Largest(v)) / 127
	q.c.Scale[row] = scale
	if scale-scale == 0 {
		q.ops.RoundInt8(q.c.Code[row*q.c.Cols:(row+1)*q.c.Cols], v[s.ColLo:s.ColHi], scale)
	}
}
