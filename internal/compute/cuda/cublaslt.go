package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// CUBLASLt is how a device may use the library.
type CUBLASLt struct {
	// Open opens it, when it is needed; nil for none.
	Open func() (driver.CUBLASLt, error)
	// Fast says that sums of products may be made in any order: what a row gets then depends on how
	// many rows there are.
	Fast bool
}

// library is what cuBLASLt computes of a device's products: those of many rows by plain weights,
// where it takes less time, and only to the bits of the device's own kernels unless it is to be
// fast. Which those are shows when the first weight of a shape is there: the numbers of a step
// change neither.
type library struct {
	products  driver.Products // nil for none
	version   int
	why       string // there is none
	fast      bool
	workspace driver.Ptr
	began     driver.Event
	ended     driver.Event
	shapes    map[matrixShape]*shapePlan
	tried     []LibraryTrial
	// measuring says what a product at hand is computed by: a trial knows.
	measuring *driver.Algorithm
	own       bool
}

// LibraryTrial is what the library showed of so many rows by a matrix: how many Algorithms it has
// for them, how many of these have the Same bits as own kernels, and how long a product takes by
// these, and by the algorithm that was chosen, 0 where none was. Times are 0 on a device without a
// clock.
type LibraryTrial struct {
	Out, In, Chunks, Rows int
	Algorithms, Same      int
	Own, Library          time.Duration
}

// LibraryTrials are those of all shapes of weights so far.
func (d *Device) LibraryTrials() []LibraryTrial { return d.library.tried }

// CUBLASLt is why the library computes no product, "" where it may.
func (d *Device) CUBLASLt() string { return d.library.why }

// matrixShape is a weight's, In of all its chunks.
type matrixShape struct{ out, in, chunks int }

// shapePlan is what computes products of a shape: for up to so many rows of rowClasses an
// algorithm, or the device's own kernels.
type shapePlan struct {
	by   [len(rowClasses)]*driver.Algorithm
	fits map[productShape]bool // whether an algorithm can
}

// productShape is what else whether an algorithm can compute a product depends on.
type productShape struct{ rows, ldx, ldy, class int }

// rowClasses are for how many rows an algorithm is chosen.
var rowClasses = [...]int{128, 256, 512, 1024, 2048, 4096}

// fewestByLibrary is how many rows the library is for at least: with fewer, reading the weights
// takes the time, and own kernels do that well.
const fewestByLibrary = 65

// mostFits bounds how many answers of a shape are kept.
const mostFits = 4096

// classOf is the class of so many rows.
func classOf(rows int) int {
	for i, most := range rowClasses {
		if rows <= most {
			return i
		}
	}
	return len(rowClasses) - 1
}

// openLibrary opens the library, if there is one.
func (d *Device) openLibrary(o CUBLASLt) error {
	l := &d.library
	l.fast = o.Fast
	if o.Open == nil {
		l.why = "it is left out"
		return nil
	}
	if d.dtype == compute.Float32 {
		l.why = "it multiplies 16 bits"
		return nil
	}
	lt, err := o.Open()
	if err != nil {
		l.why = err.Error()
		return nil
	}
	p, err := lt.Open(d.ctx)
	if err != nil {
		l.why = err.Error()
		return nil
	}
	l.products, l.version, l.shapes = p, lt.Version(), map[matrixShape]*shapePlan{}
	if l.workspace = d.alloc(driver.CUBLASLtWorkspace, "cuBLASLt"); d.err != nil {
		return d.err
	}
	if l.began, err = d.ctx.NewEvent(); err != nil {
		return err
	}
	l.ended, err = d.ctx.NewEvent()
	return err
}

// closeLibrary ends what openLibrary made but for memory, which ends with the context.
func (d *Device) closeLibrary() {
	if p := d.library.products; p != nil {
		d.library.products = nil
		d.check(p.Close())
	}
}

// describe says what the library computes, "" for nothing.
func (l *library) describe() string {
	if l.products == nil {
		if l.fast {
			return "--cuda-fast changes nothing without cuBLASLt: " + l.why
		}
		return ""
	}
	used := 0
	for _, p := range l.shapes {
		for _, a := range p.by {
			if a != nil {
				used++
				break
			}
		}
	}
	text := fmt.Sprintf("%d of %d shapes by cuBLASLt %s", used, len(l.shapes),
		driver.CUBLASLtVersion(l.version))
	if l.fast {
		return text + ", in orders of its own (--cuda-fast)"
	}
	return text + ", to the same bits"
}

// shape is a weight's.
func (w *weight) shape() matrixShape { return matrixShape{w.out, w.chunks * w.padded, w.chunks} }

// product describes a product to the library: of all chunks at once where they are whole.
func (w *weight) product(g *gemm, ld int) driver.Product {
	p := driver.Product{Float16: w.d.dtype == compute.Float16, Out: w.out, In: w.padded,
		Rows: g.rows, Chunks: w.chunks, LDW: w.chunks * w.padded, LDX: ld, LDY: g.ld,
		Apart: g.chunk, Add: g.add != 0, Divided: w.d.library.fast}
	if g.whole {
		p.In, p.Chunks, p.Apart = p.LDW, 1, 0
	}
	return p
}

// replicated is how many output features matrices have at most that ranks may have all of, as
// routers of experts: what is not to the same bits on all of them leads rows to other experts.
const replicated = mostExperts

// forLibrary says whether the library may compute products of a weight.
func (w *weight) forLibrary() bool {
	l := &w.d.library
	return l.products != nil && w.codes == nil && w.in == w.chunks*w.padded && w.out%4 == 0 &&
		!(l.fast && w.out <= replicated)
}

// byLibrary is the algorithm that computes a product, nil where own kernels do.
func (w *weight) byLibrary(g *gemm, x driver.Ptr, ld int) *driver.Algorithm {
	l := &w.d.library
	if l.own || !w.forLibrary() || g.experts != 0 || g.bias != 0 || g.rows < fewestByLibrary ||
		(x|g.dst)%driver.ProductAlign != 0 || ld%8 != 0 || g.ld%4 != 0 || g.chunk%4 != 0 ||
		w.chunks > 1 && g.whole != l.fast {
		return nil
	}
	if l.measuring != nil {
		return l.measuring
	}
	plan := l.shapes[w.shape()]
	if plan == nil {
		return nil
	}
	class := classOf(g.rows)
	a := plan.by[class]
	if a == nil {
		return nil
	}
	as := productShape{g.rows, ld, g.ld, class}
	fits, known := plan.fits[as]
	if !known {
		if len(plan.fits) >= mostFits {
			clear(plan.fits)
		}
		p := w.product(g, ld)
		fits = l.products.Fits(&p, a)
		plan.fits[as] = fits
	}
	if !fits {
		return nil
	}
	return a
}

// launchLibrary enqueues a product by the library.
func (w *weight) launchLibrary(g *gemm, a *driver.Algorithm, x driver.Ptr, ld int) {
	d := w.d
	d.flush()
	if d.err != nil {
		return
	}
	d.count(1)
	p := w.product(g, ld)
	d.check(d.library.products.Multiply(&p, a, g.dst, x, w.data, d.library.workspace, d.stream))
}

// What plans are made by: algorithms that are tried for a class, runs that are timed of each after
// one that is not, the bytes that results may have, and rows whose bits are compared.
const (
	mostTried    = 6
	timedRuns    = 3
	mostResults  = 256 << 20
	comparedSome = 80
)

// worthwhile is what the library's share of own kernels' time may be: a choice is kept for good,
// and a measurement has its noise.
const worthwhile = 0.97

// plan decides what computes products of a weight's shape, unless that is known.
func (w *weight) plan() error {
	d := w.d
	l := &d.library
	if !w.forLibrary() || l.shapes[w.shape()] != nil {
		return nil
	}
	classes := 1
	for classes < len(rowClasses) && 4*rowClasses[classes]*w.out <= mostResults {
		classes++
	}
	t := &trial{w: w, same: map[driver.Algorithm]bool{}}
	defer t.free()
	if telling, err := t.begin(rowClasses[classes-1]); err != nil || !telling {
		return err
	}
	plan := &shapePlan{fits: map[productShape]bool{}}
	timed := true
	for i := range plan.by {
		if i >= classes || !timed {
			plan.by[i] = plan.by[i-1]
			continue
		}
		var err error
		if plan.by[i], timed, err = t.fastest(rowClasses[i]); err != nil {
			return err
		}
	}
	l.shapes[w.shape()] = plan
	return nil
}

// trial computes products of a weight by own kernels and by the library.
type trial struct {
	w    *weight
	x, y compute.Tensor            // of many rows
	some compute.Tensor            // what rows become whose bits are compared
	want []float32                 // their bits
	same map[driver.Algorithm]bool // whether an algorithm has own kernels' bits
}

// begin makes inputs of so many rows and computes some by own kernels. It
// returns false of a weight whose results are not numbers, or mostly zeros: they tell nothing.
func (t *trial) begin(rows int) (telling bool, err error) {
	d, w := t.w.d, t.w
	d.Resize(&t.x, rows, w.in)
	d.Resize(&t.y, rows, w.out)
	d.Resize(&t.some, comparedSome, w.out)
	piece, err := d.staging.next(d)
	if err != nil {
		return false, fmt.Errorf("pinned memory for inputs: %w", err)
	}
	to, left := of(t.x.Memory).half(true), 2*rows*w.in
	piece = piece[:min(1<<20, left)] // the same ones again, in other places of a row
	numbers := unsafe.Slice((*uint16)(unsafe.Pointer(&piece[0])), len(piece)/2)
	random := rand.New(rand.NewPCG(90, uint64(w.in)))
	for i := range numbers {
		numbers[i] = rounded(ofAnySize(random), d.dtype)
	}
	for left > 0 && d.err == nil {
		n := min(len(piece), left)
		d.check(d.ctx.Upload(to, piece[:n], d.stream))
		to += driver.Ptr(n)
		left -= n
	}
	t.compute(nil, &t.some, comparedSome)
	t.want = slices.Clone(t.some.Floats())
	zeros := 0
	for _, v := range t.want {
		switch {
		case v != v || math.IsInf(float64(v), 0):
			return false, d.err
		case v == 0:
			zeros++
		}
	}
	return 2*zeros < len(t.want), d.err
}

// compute makes a product of some rows by an algorithm, or by own kernels for nil.
func (t *trial) compute(a *driver.Algorithm, y *compute.Tensor, rows int) {
	l := &t.w.d.library
	l.measuring, l.own = a, a == nil
	to, x := y.All(), t.x.All()
	to.Rows, x.Rows = rows, rows
	t.w.multiply(to, x, 0, 0)
	t.w.d.flush()
	l.measuring, l.own = nil, false
}

// took is how long a product takes, 0 on a device without a clock.
func (t *trial) took(a *driver.Algorithm, rows int) (time.Duration, error) {
	d := t.w.d
	l := &d.library
	t.compute(a, &t.y, rows)
	if d.err != nil {
		return 0, d.err
	}
	d.check(d.ctx.Record(l.began, d.stream))
	for range timedRuns {
		t.compute(a, &t.y, rows)
	}
	if d.err == nil {
		d.check(d.ctx.Record(l.ended, d.stream))
	}
	if d.wait(); d.err != nil {
		return 0, d.err
	}
	all, err := d.ctx.Elapsed(l.began, l.ended)
	return all / timedRuns, err
}

// fastest is the algorithm that takes less time than own kernels for so many rows, nil for none.
func (t *trial) fastest(rows int) (best *driver.Algorithm, timed bool, err error) {
	own, err := t.took(nil, rows)
	if err != nil {
		return nil, false, err
	}
	l := &t.w.d.library
	p := t.product(rows)
	list, err := l.products.Algorithms(&p, mostTried)
	if err != nil {
		return nil, false, fmt.Errorf("ways to compute %d rows by %d x %d: %w", rows, t.w.out,
			t.w.in, err)
	}
	tried := LibraryTrial{Out: t.w.out, In: t.w.in, Chunks: t.w.chunks, Rows: rows, Own: own,
		Algorithms: len(list)}
	limit := time.Duration(worthwhile * float64(own))
	for i := range list {
		a := &list[i]
		same, err := t.sameBits(a)
		if err != nil {
			return nil, false, err
		}
		if same {
			tried.Same++
		} else if !l.fast {
			continue
		}
		took, err := t.took(a, rows)
		if err != nil {
			return nil, false, err
		}
		if took < limit || own == 0 && best == nil {
			best, limit, tried.Library = a, took, took
		}
	}
	l.tried = append(l.tried, tried)
	return best, own > 0, nil
}

// product is that of so many rows, as the library sees it.
func (t *trial) product(rows int) driver.Product {
	w := t.w
	g := gemm{ld: w.out, chunk: rows * w.out, rows: rows, whole: w.d.library.fast && w.chunks > 1}
	return w.product(&g, w.in)
}

// sameBits says whether an algorithm has own kernels' bits.
func (t *trial) sameBits(a *driver.Algorithm) (bool, error) {
	if same, known := t.same[*a]; known {
		return same, nil
	}
	p := t.product(comparedSome)
	same := t.w.d.library.products.Fits(&p, a)
	if same {
		t.compute(a, &t.some, comparedSome)
		for i, v := range t.some.Floats() {
			same = same && math.Float32bits(v) == math.Float32bits(t.want[i])
		}
	}
	t.same[*a] = same
	return same, t.w.d.err
}

// free gives the trial's memory back.
func (t *trial) free() {
	d := t.w.d
	d.wait()
	for _, x := range []*compute.Tensor{&t.x, &t.y, &t.some} {
		if m, ok := x.Memory.(*memory); ok {
			d.release(m.buffers)
		}
	}
}
