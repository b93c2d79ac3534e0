package layers

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Format is a layout in which checkpoints have quantised matrices.
type Format interface {
	// open opens what the part's matrix is stored in. It is nil where the checkpoint has the module
	// plainly, or after an error, which the opener has.
	open(o *opener, p *part) matrix
}

// Stored is the scheme of checkpoints that are quantised: Of is the layout of a module, nil for a
// plain one. Outside says that it is asked of routers and of what turns vectors back to tokens,
// too: else these are plain.
type Stored struct {
	Of      func(module string) Format
	Outside bool
}

// matrix is a quantised matrix.
type matrix interface {
	decoder
	// form is the codes of all of it, of which Code and Scale are nil; Offset is not, if there is
	// one.
	form() *compute.Codes
	// sound is an error about a scale or a zero point of rows that decode would fail at.
	sound(rows run) error
	// prefetch has the system read rows, in columns lo to hi.
	prefetch(rows run, lo, hi int)
	// stored is how many bytes as many rows and columns have.
	stored(rows, cols int) int64
}

// decoder makes codes.
type decoder interface {
	// decode makes rows of dst from row at on: those of the matrix, from a column on.
	decode(dst *compute.Codes, at int, rows run, col int) error
}

// run is n rows of a matrix, each step-th from first on.
type run struct{ first, n, step int }

func (r run) row(i int) int { return r.first + i*r.step }

// part is at most n of the run's rows from the i-th on.
func (r run) part(i, n int) run { return run{r.row(i), min(n, r.n-i), r.step} }

// runs are the rows of parts of one matrix.
func runs(parts []part) (list []run) {
	for i := range parts {
		p := &parts[i]
		r := run{p.rowLo, p.rowHi - p.rowLo, 1}
		if s := p.stack; s != nil {
			r.first, r.step = s.index*s.rows+s.first+p.rowLo*s.step, s.step
		}
		last := run{}
		if len(list) > 0 {
			last = list[len(list)-1]
		}
		switch ahead := r.first - last.first; {
		case last.n == 1 && r.n == 1 && ahead > 0: // heads are reordered row by row
			list[len(list)-1] = run{last.first, 2, ahead}
		case last.n > 0 && ahead == last.n*last.step && (r.n == 1 || r.step == last.step):
			list[len(list)-1].n += r.n
		default:
			list = append(list, r)
		}
	}
	return list
}

// block is parts, one after the other, that are of one matrix.
type block struct {
	matrix
	parts []part
	runs  []run
	codes compute.Codes
}

// blocks opens the matrices of parts; those that are plain are nil.
func (s Stored) blocks(o *opener, parts []part) (list []block, err error) {
	for len(parts) > 0 {
		n := 1
		for n < len(parts) && parts[n].besides(&parts[0]) {
			n++
		}
		b := block{parts: parts[:n]}
		parts = parts[n:]
		p := &b.parts[0]
		if f := s.Of(p.module); f != nil {
			b.matrix = f.open(o, p)
		}
		if o.err != nil {
			return nil, o.err
		}
		if b.matrix != nil {
			if err := b.shape(); err != nil {
				return nil, err
			}
		}
		list = append(list, b)
	}
	return list, nil
}

// besides tells whether two parts are of one matrix.
func (p *part) besides(q *part) bool {
	if p.turned || q.turned || p.module != q.module && (p.stack == nil || q.stack == nil) {
		return false
	}
	return p.stack == nil || p.stack.tensor == q.stack.tensor && p.stack.index == q.stack.index
}

// shape gives the block's codes their form and the rows their places.
func (b *block) shape() error {
	p, form := &b.parts[0], b.form()
	b.runs, b.codes = runs(b.parts), *form
	c := &b.codes
	c.Rows, c.Cols = 0, p.colHi-p.colLo
	for _, r := range b.runs {
		c.Rows += r.n
	}
	if c.Cols != form.Cols {
		c.From, c.Of = p.colLo, form.Cols
	}
	if c.Group > 0 {
		c.Lead = p.colLo % c.Group
	}
	if c.Super > 0 {
		c.SuperLead = p.colLo / c.Group % c.Super
	}
	if c.Order != nil && c.Cols != form.Cols {
		return fmt.Errorf("module %q: its g_idx puts input features in an order of groups "+
			"(desc_act), which tensor parallel ranks cannot divide: --tensor-parallel-size 1 can",
			p.module)
	}
	return nil
}

// name implements Scheme: which layout a module has is the checkpoint's configuration's to say.
func (s Stored) name() string { return "stored" }

// weight implements Scheme.
func (s Stored) weight(l *Loader, chunks int, parts []part) (compute.Weight, int64, error) {
	o := opener{l: l}
	defer o.release()
	blocks, err := s.blocks(&o, parts)
	if err != nil {
		return nil, 0, err
	}
	var d decoding
	read := l.decode(&d, blocks)
	if d.err != nil {
		return nil, 0, d.err
	}
	var made []compute.Weight
	for some := range alike(blocks) {
		w, bytes, err := l.weightOf(chunks, some)
		if err != nil {
			for _, w := range made {
				w.Free()
			}
			return nil, 0, err
		}
		made, read = append(made, w), read+bytes
	}
	return l.dev.Join(made...), read, nil
}

// weightOf makes a weight of decoded blocks that are alike, and returns how many bytes were read of
// plain ones.
func (l *Loader) weightOf(chunks int, blocks []block) (compute.Weight, int64, error) {
	p := blocks[0].parts[0]
	switch {
	case blocks[0].matrix == nil:
		return Plain{}.weight(l, chunks, partsOf(blocks))
	case p.turned:
		w, err := l.dev.Pack(chunks, l.unpacked(blocks, true)...)
		if err != nil {
			err = fmt.Errorf("module %q: %w", p.module, err)
		}
		return w, 0, err
	}
	w, err := l.dev.PackCodes(chunks, codesOf(blocks)...)
	if bad := (*compute.NotFinite)(nil); errors.As(err, &bad) {
		return nil, 0, &NotFinite{blocks[bad.Source].parts[0].module, err}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("module %q: %w", p.module, err)
	}
	return w, 0, nil
}

// bytes implements Scheme.
func (s Stored) bytes(l *Loader, chunks int, parts []part) (held, read int64, err error) {
	o := opener{l: l}
	defer o.release()
	blocks, err := s.blocks(&o, parts)
	if err != nil {
		return 0, 0, err
	}
	if err := l.scale.inspect(blocks); err != nil {
		return 0, 0, err
	}
	var scratch int64
	for some := range alike(blocks) {
		p := some[0].parts[0]
		if some[0].matrix == nil {
			n, bytes, err := Plain{}.bytes(l, chunks, partsOf(some))
			if err != nil {
				return 0, 0, err
			}
			held, read = held+n, read+bytes
			continue
		}
		for i := range some {
			c := &some[i].codes
			read += some[i].stored(c.Rows, c.Cols)
			scratch += unpackedBytes(c)
			if p.turned {
				scratch += 4 * int64(c.Rows) * int64(c.Cols)
			}
			if p.turned { // its outputs are what is given
				l.scale.given = max(l.scale.given, c.Rows)
			} else {
				l.scale.given = max(l.scale.given, c.Cols)
			}
		}
		var n int64
		if p.turned {
			n, err = l.scale.planner.PackedBytes(chunks, l.unpacked(some, false)...)
		} else {
			n, err = l.scale.planner.CodesBytes(chunks, codesOf(some)...)
		}
		if err != nil {
			return 0, 0, fmt.Errorf("module %q: %w", p.module, err)
		}
		held += n
	}
	l.scale.Tensors = max(l.scale.Tensors, read)
	l.scale.Unpacked = max(l.scale.Unpacked, scratch)
	return held, read, nil
}

// unpackedBytes is what codes take while a weight is made of them.
func unpackedBytes(c *compute.Codes) int64 {
	return int64(c.Rows)*int64(c.Cols) + 4*int64(numbersOf(c))
}

// numbersOf is how many scales, offsets and factors codes have.
func numbersOf(c *compute.Codes) int {
	n := c.Rows * (c.Groups() + c.Supers())
	if c.Offset != nil {
		n *= 2
	}
	return n
}

// alike visits blocks by those, side by side, that one weight is made of.
func alike(blocks []block) func(yield func(some []block) bool) {
	kind := func(b *block) int {
		switch {
		case b.matrix == nil:
			return 0
		case b.parts[0].turned:
			return 1
		}
		return 2
	}
	return func(yield func(some []block) bool) {
		for len(blocks) > 0 {
			n := 1
			for n < len(blocks) && kind(&blocks[n]) == kind(&blocks[0]) {
				n++
			}
			if !yield(blocks[:n]) {
				return
			}
			blocks = blocks[n:]
		}
	}
}

func partsOf(blocks []block) (list []part) {
	for i := range blocks {
		list = append(list, blocks[i].parts...)
	}
	return list
}

func codesOf(blocks []block) (list []compute.Codes) {
	for i := range blocks {
		list = append(list, blocks[i].codes)
	}
	return list
}

// unpacked are turned blocks as plain sources, which have data if they have been decoded.
func (l *Loader) unpacked(blocks []block, decoded bool) (list []compute.Source) {
	for i := range blocks {
		c := &blocks[i].codes
		s := compute.Source{DType: compute.Float32, Rows: c.Cols, RowHi: c.Cols, Cols: c.Rows,
			ColHi: c.Rows, RowStride: 1, ColStride: c.Cols}
		if decoded {
			u := unpacking{c, make([]byte, 4*c.Rows*c.Cols)}
			l.dev.Pool().Run(&u, c.Rows)
			s.Data = u.data
		}
		list = append(list, s)
	}
	return list
}

// unpacking is codes that are made float32.
type unpacking struct {
	*compute.Codes
	data []byte
}

// Do makes a row.
func (u *unpacking) Do(row, _ int) {
	groups := u.Groups()
	for col := range u.Cols {
		g := row * groups
		if u.Group > 0 {
			g += (u.Lead + col) / u.Group
		}
		v := u.Number(u.Code[row*u.Cols+col]) * u.Scale[g]
		if u.Offset != nil {
			v += u.Offset[g]
		}
		to := col
		if u.Order != nil {
			to = int(u.Order[col])
		}
		putUint32(u.data[4*(row*u.Cols+to):], math.Float32bits(v))
	}
}

// decoding is codes that are made of matrices.
type decoding struct {
	codes  []compute.Codes
	pieces []piece
	errs   []error
	err    error
}

// piece is rows that a thread decodes at once.
type piece struct {
	decoder
	codes, at int
	rows      run
	col       int
}

// pieceRows is how many rows a thread decodes at once: enough to read whole lines of what lies
// output by output.
const pieceRows = 64

// decode decodes the blocks that have a matrix, and returns how many bytes were read. The codes are
// valid until the next call.
func (l *Loader) decode(d *decoding, blocks []block) (read int64) {
	for i := range blocks {
		b := &blocks[i]
		if b.matrix == nil {
			continue
		}
		at, col := 0, b.parts[0].colLo
		for _, r := range b.runs {
			b.prefetch(r, col, col+b.codes.Cols)
			d.add(b.matrix, at, r, col)
			at += r.n
		}
		d.codes = append(d.codes, b.codes)
		read += b.stored(b.codes.Rows, b.codes.Cols)
	}
	l.fill(d)
	n := 0
	for i := range blocks {
		if b := &blocks[i]; b.matrix != nil {
			b.codes = d.codes[n]
			n++
		}
	}
	return read
}

// add adds rows of a matrix to the codes that are next to be added.
func (d *decoding) add(m decoder, at int, r run, col int) {
	for i := 0; i < r.n; i += pieceRows {
		d.pieces = append(d.pieces, piece{m, len(d.codes), at + i, r.part(i, pieceRows), col})
	}
}

// fill decodes the pieces on the device's threads. Codes lie in memory that all weights of a loader
// share.
func (l *Loader) fill(d *decoding) {
	code, numbers := 0, 0
	for i := range d.codes {
		c := &d.codes[i]
		code += c.Rows * c.Cols
		numbers += numbersOf(c)
	}
	l.scratch.code = slices.Grow(l.scratch.code[:0], code)[:code]
	l.scratch.numbers = slices.Grow(l.scratch.numbers[:0], numbers)[:numbers]
	freeCode, freeNumbers := l.scratch.code, l.scratch.numbers
	next := func(n int) (v []float32) {
		v, freeNumbers = freeNumbers[:n:n], freeNumbers[n:]
		return v
	}
	for i := range d.codes {
		c := &d.codes[i]
		n := c.Rows * c.Cols
		c.Code, freeCode = freeCode[:n:n], freeCode[n:]
		c.Scale, c.Factor = next(c.Rows*c.Groups()), next(c.Rows*c.Supers())
		if c.Offset != nil {
			c.Offset, c.OffsetFactor = next(c.Rows*c.Groups()), next(c.Rows*c.Supers())
		}
	}
	d.errs = make([]error, len(d.pieces))
	l.dev.Pool().Run(d, len(d.pieces))
	for _, err := range d.errs {
		if err != nil {
			d.err = err
			break
		}
	}
}

// Do decodes a piece.
func (d *decoding) Do(i, _ int) {
	p := &d.pieces[i]
	d.errs[i] = p.decode(&d.codes[p.codes], p.at, p.rows, p.col)
}

// scratch is what codes lie in until a weight is made of them.
type scratch struct {
	code    []byte
	numbers []float32
}

// Trim frees what only loading needs.
func (l *Loader) Trim() { l.scratch = scratch{} }

// opener opens the tensors of a matrix. The first error stays.
type opener struct {
	l    *Loader
	held []checkpoint.Tensor
	err  error
}

func (o *opener) release() {
	for _, t := range o.held {
		o.l.src.Release(t)
	}
}

func (o *opener) fail(format string, args ...any) {
	if o.err == nil {
		o.err = fmt.Errorf(format, args...)
	}
}

// tensor opens a tensor of a type; Invalid is one of those that weights have.
func (o *opener) tensor(name string, dtype checkpoint.DType, shape ...int) checkpoint.Tensor {
	if o.err != nil {
		return checkpoint.Tensor{}
	}
	var t checkpoint.Tensor
	if dtype == checkpoint.Invalid {
		t, o.err = o.l.src.Tensor(name, shape...)
	} else {
		t, o.err = o.l.src.Stored(name, dtype, shape...)
	}
	if o.err == nil {
		o.held = append(o.held, t)
	}
	return t
}

// header is a tensor's type and shape, where the checkpoint has it.
func (o *opener) header(name string) (t checkpoint.Tensor, ok bool) { return o.l.src.Header(name) }

// has tells whether the checkpoint has a tensor, which is missing where it has the one beside it.
// Neither is there of dummy weights.
func (o *opener) has(name, beside string) bool {
	if _, ok := o.header(name); ok {
		return true
	}
	if _, ok := o.header(beside); ok {
		o.tensor(name, checkpoint.Invalid)
	}
	return false
}

// plain tells whether the checkpoint has a module plainly, and not in a tensor that belongs to its
// layout. Experts that are stored together are so in no layout that asks.
func (o *opener) plain(p *part, coded string) bool {
	name, _ := p.tensor()
	t, ok := o.header(name)
	if p.stack != nil {
		if ok && !t.DType.Weight() {
			o.fail("tensor %q: experts that are stored together are not read quantised so", name)
		}
		return true
	}
	if _, ok := o.header(p.module + coded); ok {
		return false
	}
	return ok && t.DType.Weight()
}
