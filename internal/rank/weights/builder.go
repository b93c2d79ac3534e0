package weights

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Piece is a tensor that comes, or a part of one: what a rank of a trainer has of it.
type Piece struct {
	Name  string
	DType checkpoint.DType
	Shape []int
	// Offset is where the part begins in the tensor, one number per dimension; nil is a whole
	// tensor.
	Offset []int
	// CRC is the CRC-32 (IEEE) of its bytes, row by row, if it is known beforehand.
	CRC *uint32
	// Position is where the piece lies in adopted memory.
	Position int64
}

// Builder receives new weights. Its memory is that of the model, however many bytes it is sent. One
// goroutine at a time uses it.
type Builder struct {
	id       string
	expected map[string]*incoming
	own      memory
	adopted  []memory
	// spare lends own, and receives it back.
	spare *Spare
}

// incoming is a tensor that the model has.
type incoming struct {
	checkpoint.Spec
	dtype checkpoint.DType // Invalid until a piece has come
	// optional says that an update may lack it.
	optional bool
	// offset is where it has room in the builder's own memory.
	offset int64
	// boxes are the parts that have come, done how many elements they have together.
	boxes []box
	done  int64
	// segment is 0 for the builder's own memory, else the number of what was adopted; position is
	// where it lies there.
	segment  int
	position int64
}

// box is a part of a tensor, from lo to before hi in each dimension.
type box struct{ lo, hi []int }

// maxPieces bounds the parts of one tensor.
const maxPieces = 1024

// widest is the size of the largest element that weights may have.
const widest = 4

// NewBuilder makes room for the tensors of a model, which takes memory as they come: that of spare,
// if it has some.
func NewBuilder(specs []checkpoint.Spec, spare *Spare) (*Builder, error) {
	b := &Builder{id: newID(), expected: make(map[string]*incoming, len(specs)), spare: spare}
	offsets, size := layOut(specs)
	for i, s := range specs {
		b.expected[s.Name] = &incoming{Spec: s, offset: offsets[i]}
	}
	own, err := spare.acquire(b.id, size)
	if err != nil {
		return nil, err
	}
	b.own = own[0]
	return b, nil
}

// MayLack says that an update may lack tensors.
func (b *Builder) MayLack(specs []checkpoint.Spec) {
	for i := range specs {
		b.expected[specs[i].Name].optional = true
	}
}

func newID() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// layOut says where each tensor has room in a builder's memory, whatever its type is, and how large
// that is.
func layOut(specs []checkpoint.Spec) (offsets []int64, size int64) {
	return pack(len(specs), func(i int) int64 { return elements(specs[i].Shape) * widest })
}

func elements(shape []int) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= int64(d)
	}
	return n
}

// Close frees the memory that the builder still owns.
func (b *Builder) Close() {
	if b.own.file != nil {
		b.spare.release(b.own)
	}
	closeAll(b.adopted)
	b.own, b.adopted = memory{}, nil
}

// MismatchError lists the differences between weights and the model's tensors.
type MismatchError struct {
	// First are the first ten differences, Count how many there are.
	First []string
	Count int
}

// Error is in one line.
func (e *MismatchError) Error() string {
	text := fmt.Sprintf("the weights differ from the model's in %d tensors: %s", e.Count,
		strings.Join(e.First, "; "))
	if e.Count > len(e.First) {
		text += "; …"
	}
	return text
}

func (e *MismatchError) add(format string, args ...any) {
	e.Count++
	if len(e.First) < 10 {
		e.First = append(e.First, fmt.Sprintf(format, args...))
	}
}

func (e *MismatchError) err() error {
	if e.Count == 0 {
		return nil
	}
	return e
}

// Passes says that a tensor of this name is no part of the model and does not count: what training
// frameworks have in their state beside the weights. tied is of a model whose head is its
// embedding, beside of one that is part of a whole with encoders.
func Passes(name string, tied, beside bool) bool {
	return strings.HasSuffix(name, ".rotary_emb.inv_freq") ||
		strings.Contains(name, ".self_attn.indexer.") || // of which nothing is computed
		tied && checkpoint.LanguageModel(name) == "lm_head.weight" ||
		beside && checkpoint.OfEncoder(name)
}

// find is the model's tensor of a name. A model that stands for itself has names without the
// prefix.
func (b *Builder) find(name string) *incoming {
	name = checkpoint.LanguageModel(name)
	if t := b.expected[name]; t != nil {
		return t
	}
	return b.expected["model."+name]
}

// Check compares pieces with the model before anything of them is read. All differences together
// are one *MismatchError.
func (b *Builder) Check(pieces []Piece) error {
	var bad MismatchError
	seen := map[*incoming][]box{}
	for i := range pieces {
		p := &pieces[i]
		t := b.find(p.Name)
		switch {
		case t == nil:
			bad.add("%s is none of the model's", clip(p.Name))
		case !p.DType.Weight():
			bad.add("%s has type %v, not BF16, F16 or F32", clip(p.Name), p.DType)
		case p.Offset == nil && !slices.Equal(p.Shape, t.Shape):
			bad.add("%s has shape %v, the model's %v", clip(p.Name), p.Shape, t.Shape)
		case p.Offset != nil && !p.inside(t.Shape):
			bad.add("%s has a part of shape %v at %v, the model's shape is %v", clip(p.Name),
				p.Shape, p.Offset, t.Shape)
		case t.dtype != checkpoint.Invalid && t.dtype != p.DType:
			bad.add("%s has type %v, a part before had %v", clip(p.Name), p.DType, t.dtype)
		case len(t.boxes)+len(seen[t]) == maxPieces:
			bad.add("%s comes in more than %d parts", clip(p.Name), maxPieces)
		case slices.ContainsFunc(t.boxes, p.box().overlaps),
			slices.ContainsFunc(seen[t], p.box().overlaps):
			bad.add("%s comes twice", clip(p.Name))
		default:
			seen[t] = append(seen[t], p.box())
		}
	}
	return bad.err()
}

// clip bounds a name that was sent.
func clip(name string) string {
	const most = 200
	if len(name) > most {
		name = name[:most] + "…"
	}
	return fmt.Sprintf("%q", name)
}

func (p *Piece) inside(shape []int) bool {
	if len(p.Shape) != len(shape) || len(p.Offset) != len(shape) {
		return false
	}
	for i, n := range shape {
		if p.Offset[i] < 0 || p.Shape[i] < 0 || p.Offset[i] > n || p.Shape[i] > n-p.Offset[i] {
			return false
		}
	}
	return true
}

func (p *Piece) box() box {
	b := box{lo: p.Offset, hi: make([]int, len(p.Shape))}
	if b.lo == nil {
		b.lo = make([]int, len(p.Shape))
	}
	for i := range b.hi {
		b.hi[i] = b.lo[i] + p.Shape[i]
	}
	return b
}

// overlaps says that two parts of one tensor share an element.
func (b box) overlaps(o box) bool {
	for i := range b.lo {
		if b.lo[i] >= o.hi[i] || o.lo[i] >= b.hi[i] {
			return false
		}
	}
	return true
}

// ErrChecksum is wrapped by the error about a tensor whose bytes are not those that were sent.
var ErrChecksum = errors.New("wrong checksum")

// Receive reads the bytes of a piece that Check has passed, and returns their CRC-32. An error
// leaves the piece undone.
func (b *Builder) Receive(r io.Reader, p *Piece) (uint32, error) {
	t := b.find(p.Name)
	size := int64(p.DType.Size())
	crc := uint32(0)
	err := p.runs(t.Shape, func(at, n int64) error {
		dst := b.own.data[t.offset+at*size : t.offset+(at+n)*size]
		for len(dst) > 0 {
			part := dst[:min(len(dst), receiveSize)]
			if _, err := io.ReadFull(r, part); err != nil {
				return fmt.Errorf("tensor %s: %w", clip(p.Name), err)
			}
			crc = crc32.Update(crc, crc32.IEEETable, part)
			dst = dst[len(part):]
		}
		return nil
	})
	if err == nil && p.CRC != nil && *p.CRC != crc {
		err = wrongCRC(p.Name, *p.CRC, crc)
	}
	if err != nil {
		return 0, err
	}
	return crc, nil
}

// maxDiscard bounds what is read of a tensor that does not count.
const maxDiscard = int64(1) << 40

// Size is how many bytes a piece has, or the error of one that can have none or too many.
func (p *Piece) Size() (int64, error) {
	if !p.DType.Weight() {
		return 0, fmt.Errorf("%s has type %v, not BF16, F16 or F32", clip(p.Name), p.DType)
	}
	size := int64(p.DType.Size())
	for _, n := range p.Shape {
		if n < 0 || n > 0 && size > maxDiscard/int64(n) {
			return 0, fmt.Errorf("%s has shape %v", clip(p.Name), p.Shape)
		}
		size *= int64(n)
	}
	return size, nil
}

// Discard reads the bytes of a piece that does not count, and returns their CRC-32.
func Discard(r io.Reader, p *Piece) (uint32, error) {
	size, err := p.Size()
	if err != nil {
		return 0, err
	}
	sum := crc32.NewIEEE()
	if _, err := io.CopyN(sum, r, size); err != nil {
		return 0, fmt.Errorf("tensor %s: %w", clip(p.Name), err)
	}
	return sum.Sum32(), nil
}

// receiveSize is how much is read at a time: it is in the processor's cache when it is summed.
const receiveSize = 256 << 10

func wrongCRC(name string, want, got uint32) error {
	return fmt.Errorf("tensor %s: %w: its CRC-32 is %08x, %08x was sent", clip(name), ErrChecksum,
		got, want)
}

// Done counts a piece that was received.
func (b *Builder) Done(p *Piece) {
	t := b.find(p.Name)
	t.dtype = p.DType
	t.boxes = append(t.boxes, p.box())
	t.done += elements(p.Shape)
}

// runs calls f with each run of elements that the piece has in a row in a tensor of a shape: where
// it begins, and how many they are.
func (p *Piece) runs(shape []int, f func(at, n int64) error) error {
	if elements(p.Shape) == 0 {
		return nil
	}
	if p.Offset == nil {
		return f(0, elements(shape))
	}
	// The dimensions from inner on are in a row.
	inner, run := len(shape), int64(1)
	for inner > 0 && p.Shape[inner-1] == shape[inner-1] {
		inner--
		run *= int64(shape[inner])
	}
	if inner > 0 {
		inner--
		run *= int64(p.Shape[inner])
	}
	index := make([]int, inner)
	for {
		at := int64(0)
		for i, n := range shape {
			at *= int64(n)
			at += int64(p.Offset[i])
			if i < inner {
				at += int64(index[i])
			}
		}
		if err := f(at, run); err != nil {
			return err
		}
		i := inner - 1
		for ; i >= 0; i-- {
			if index[i]++; index[i] < p.Shape[i] {
				break
			}
			index[i] = 0
		}
		if i < 0 {
			return nil
		}
	}
}

// seals are required of adopted memory: no process can change it any more.
const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK

// Adopt adds pieces that Check has passed and that lie in sealed memory of another process. Whole
// tensors are not copied. The builder then owns the file.
func (b *Builder) Adopt(f *os.File, pieces []Piece) error {
	m := memory{file: f}
	keep := false
	defer func() {
		if !keep {
			m.close()
		}
	}()
	has, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || has&seals != seals {
		return errors.New("the memory that was handed over is not sealed against writing and " +
			"shrinking")
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	for i := range pieces {
		p := &pieces[i]
		size := elements(p.Shape) * int64(p.DType.Size())
		if p.Position < 0 || p.Position > info.Size() || size > info.Size()-p.Position {
			return fmt.Errorf("tensor %s is outside the %d bytes that were handed over",
				clip(p.Name), info.Size())
		}
	}
	if m.data, err = mapFile(f, info.Size(), unix.PROT_READ); err != nil {
		return err
	}
	err = each(len(pieces), func(i int) error {
		p := &pieces[i]
		size := elements(p.Shape) * int64(p.DType.Size())
		data := m.data[p.Position : p.Position+size]
		if p.Offset != nil {
			_, err := b.Receive(bytes.NewReader(data), p)
			return err
		}
		if p.CRC == nil {
			return nil
		}
		if crc := crc32.ChecksumIEEE(data); crc != *p.CRC {
			return wrongCRC(p.Name, *p.CRC, crc)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range pieces {
		p := &pieces[i]
		b.Done(p)
		if p.Offset != nil {
			continue
		}
		t := b.find(p.Name)
		t.segment, t.position = len(b.adopted)+1, p.Position
		keep = true
	}
	if keep {
		b.adopted = append(b.adopted, m)
	}
	return nil
}

// Load copies the tensors of files. A later write to the files changes nothing here.
func (b *Builder) Load(c *checkpoint.Checkpoint, pieces []Piece) error {
	err := each(len(pieces), func(i int) error {
		t, err := c.Tensor(pieces[i].Name)
		if err != nil {
			return err
		}
		defer c.Release(t)
		_, err = b.Receive(bytes.NewReader(t.Data), &pieces[i])
		return err
	})
	if err != nil {
		return err
	}
	for i := range pieces {
		b.Done(&pieces[i])
	}
	return nil
}

// each calls f for 0 to n-1, on as many threads as there are cores, and returns the first error.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var group sync.WaitGroup
	next := make(chan int)
	for range min(n, runtime.GOMAXPROCS(0)) {
		group.Go(func() {
			for i := range next {
				errs[i] = f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Finish returns the update of all pieces, which then owns the builder's memory. A *MismatchError
// lists the tensors of the model that are missing.
func (b *Builder) Finish() (*Update, error) {
	var bad MismatchError
	names := make([]string, 0, len(b.expected))
	for name := range b.expected {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch t := b.expected[name]; {
		case len(t.boxes) == 0 && t.optional:
		case len(t.boxes) == 0:
			bad.add("%s is missing", clip(name))
		case t.done < elements(t.Shape):
			bad.add("%s is not complete: %d of %d elements have come", clip(name), t.done,
				elements(t.Shape))
		}
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	u := &Update{ID: b.id, copies: &copies{hosts: map[string]*site{}},
		memory: append([]memory{b.own}, b.adopted...), spare: b.spare}
	var err error
	if u.Segments, err = segments(u.memory); err != nil {
		return nil, err
	}
	for _, name := range names {
		t := b.expected[name]
		if len(t.boxes) == 0 {
			continue
		}
		at := t.offset
		if t.segment > 0 {
			at = t.position
		}
		u.Tensors = append(u.Tensors, Tensor{Name: name, DType: t.dtype.String(), Shape: t.Shape,
			Segment: t.segment, Offset: at})
	}
	b.own, b.adopted = memory{}, nil
	u.digest = sync.OnceValue(u.hash)
	return u, nil
}
