package stages

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// What bench measures on a GPU: rounds go through all steps in turn, so that all meet the same
// weather.
const (
	rounds       = 7
	stepsOfRound = 8
	// reserve is memory that stays free beside the cache, copied what bandwidth is measured with.
	reserve = 4 << 30
	copied  = 1 << 30
)

// bench measures steps of models with dummy weights beside their floors, by the bandwidth that the
// device has for copies before and after. On a machine for PTX it counts bytes and instructions.
func (r *run) bench(ctx context.Context) error {
	if r.tiny() {
		return r.count(ctx)
	}
	before, err := r.bandwidth(copied)
	if err != nil {
		return err
	}
	r.report(Row{Name: "copy bandwidth before", Unit: "GB/s", Ours: figure(before / 1e9),
		Listed: true, Note: "bytes read and written"})
	operations := 1e12 * r.Peers[productName]
	note := "no peer measured operations a second: floors are of bytes alone"
	if operations > 0 {
		note = "floors are of bytes and of the peer's operations a second"
	}
	measured := measured()
	if len(r.Shapes) > 0 {
		measured = slices.DeleteFunc(measured, func(s Shape) bool {
			return !slices.Contains(r.Shapes, s.Name)
		})
	}
	for i := range measured {
		if err := r.benchShape(ctx, &measured[i], before, operations); err != nil {
			return fmt.Errorf("%s: %w", measured[i].Name, err)
		}
	}
	after, err := r.bandwidth(copied)
	if err != nil {
		return err
	}
	r.report(Row{Name: "copy bandwidth after", Unit: "GB/s", Ours: figure(after / 1e9),
		Listed: true, Note: "bytes read and written"})
	r.summary = note
	return nil
}

// bandwidth is how many bytes a second the device reads and writes when it copies so many.
func (r *run) bandwidth(bytes uint64) (_ float64, err error) {
	const copies, tries = 8, 5
	c, err := r.Driver.Open(r.Ordinal)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	s, err := c.NewStream()
	if err != nil {
		return 0, err
	}
	var at [2]driver.Ptr
	for i := range at {
		if at[i], err = c.Alloc(bytes); err != nil {
			return 0, err
		}
		if err := c.Fill(at[i], byte(i), bytes, s); err != nil {
			return 0, err
		}
	}
	var rates []float64
	for range tries {
		if err := c.Synchronize(s); err != nil {
			return 0, err
		}
		start := time.Now()
		for i := range copies {
			if err := c.Copy(at[i%2], at[1-i%2], bytes, s); err != nil {
				return 0, err
			}
		}
		if err := c.Synchronize(s); err != nil {
			return 0, err
		}
		rates = append(rates, float64(2*bytes*copies)/time.Since(start).Seconds())
	}
	return median(rates), nil
}

// step is what is measured: a batch, and the rows whose logits it computes.
type step struct {
	name  string
	work  Work
	batch *compute.Batch
	rows  []int32
	times []float64 // milliseconds
	alone []float64 // of a step that is waited for
	host  []float64 // until all was enqueued
	calls uint64    // launches
}

// benchShape measures the steps of a shape in turn.
func (r *run) benchShape(ctx context.Context, shape *Shape, bandwidth, operations float64) (
	err error) {
	cfg, err := shape.config()
	if err != nil {
		return err
	}
	start := time.Now()
	most := slices.Max(shape.batches)
	if most, err = r.fits(shape, most); err != nil {
		return err
	}
	s, err := r.session(shape, cfg, r.Seed, most, shape.context)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r.reportTime(shape.Name+" load", time.Since(start), "dummy weights, made on the host")
	if err := s.fill(shape, r.Seed); err != nil {
		return err
	}
	var list []*step
	for _, n := range shape.batches {
		if n > most {
			r.report(Row{Name: shape.decodeName(n), Listed: true,
				Note: "skipped: the device's memory has no room for its cache"})
			continue
		}
		list = append(list, s.decode(shape, n))
	}
	for _, n := range shape.prefills {
		if n > most*s.blocks*blockSize {
			r.report(Row{Name: shape.prefillName(n), Listed: true,
				Note: "skipped: the device's memory has no room for its cache"})
			continue
		}
		list = append(list, s.prefill(shape, n))
	}
	if err := s.rounds(ctx, list); err != nil {
		return err
	}
	for _, x := range list {
		r.report(Row{Name: x.name, Unit: "ms", Ours: figure(median(x.times)),
			Floor: figure(x.work.Milliseconds(bandwidth, operations)), Peer: r.Peers.of(x.name),
			Listed: true, Note: fmt.Sprintf("%d launches, %.0f µs to enqueue, %.3f ms alone, "+
				"%.3f to %.3f ms in %d rounds", x.calls, 1000*median(x.host), median(x.alone),
				slices.Min(x.times), slices.Max(x.times), len(x.times))})
	}
	return nil
}

// fits is how many sequences the device has room for, at most so many.
func (r *run) fits(shape *Shape, most int) (int, error) {
	c, err := r.Driver.Open(r.Ordinal)
	if err != nil {
		return 0, err
	}
	free, _, err := c.MemInfo()
	if err := errors.Join(err, c.Close()); err != nil {
		return 0, err
	}
	room := float64(free) - 2*(shape.layerNumbers(shape.all())+2*shape.headNumbers()) - reserve
	n := int(room / (float64(shape.context) * shape.positionBytes()))
	if n < 1 {
		return 0, fmt.Errorf("%d MiB of device memory are too few", free>>20)
	}
	return min(n, most), nil
}

// fill gives all positions of the cache keys and values, so that attention meets numbers.
func (s *session) fill(shape *Shape, seed uint64) error {
	const most = 4096
	l := shape.layer()
	width := l.Heads * l.Dim
	random := rand.New(rand.NewPCG(seed, 1))
	total := s.total()
	n := min(most, total)
	var kv compute.Tensor
	s.device.Resize(&kv, n, 2*width)
	for i, v := 0, kv.Floats(); i < len(v); i++ {
		v[i] = float32(random.NormFloat64())
	}
	kv.Memory.Filled()
	keys, values := kv.Columns(0, width), kv.Columns(width, width)
	if l.Kind == compute.Latent {
		values = compute.View{}
	}
	slots := make([]int32, n)
	for from := 0; from+n <= total; from += n {
		for i := range slots {
			slots[i] = int32(from + i)
		}
		for layer := range shape.Layers {
			s.device.WriteCache(s.cache, layer, keys, values, compute.CacheScales{}, slots)
		}
	}
	return s.device.Err()
}

// total is how many positions the cache has.
func (s *session) total() int { return s.sequences * s.blocks * blockSize }

// decode is a step of a row for each of n sequences, at their last position.
func (s *session) decode(shape *Shape, n int) *step {
	x := &step{name: shape.decodeName(n), work: shape.decoding(n, shape.context)}
	var pieces []piece
	for q := range n {
		pieces = append(pieces, piece{sequence: q, start: shape.context - 1,
			tokens: tokens(1, shape.Vocabulary, q)})
		x.rows = append(x.rows, int32(q))
	}
	x.batch = s.batch(pieces...)
	return x
}

// prefill is a step of a prompt, which has the blocks of several sequences.
func (s *session) prefill(shape *Shape, n int) *step {
	whole := *s
	whole.blocks = (n + blockSize - 1) / blockSize
	return &step{name: shape.prefillName(n), work: shape.prefilling(n), rows: []int32{int32(n - 1)},
		batch: whole.batch(piece{tokens: tokens(n, shape.Vocabulary, 1)})}
}

// rounds measures steps in turn, after one of each that is not counted.
func (s *session) rounds(ctx context.Context, list []*step) error {
	for i := range rounds + 1 {
		for _, x := range list {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := s.measure(x, i > 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure computes a step several times without waiting in between, as a scheduler that is ahead
// does, and once alone.
func (s *session) measure(x *step, counted bool) error {
	n := stepsOfRound
	if x.batch.Rows() > 1024 {
		n = 2
	}
	alone, host, calls, err := s.timed(x, 1)
	if err != nil {
		return err
	}
	several, _, _, err := s.timed(x, n)
	if err != nil || !counted {
		return err
	}
	x.alone, x.host, x.calls = append(x.alone, alone), append(x.host, host), calls
	x.times = append(x.times, several/float64(n))
	return nil
}

// timed is how many milliseconds n steps took, how many until they were enqueued, and the launches.
func (s *session) timed(x *step, n int) (all, host float64, calls uint64, err error) {
	before := s.launches()
	start := time.Now()
	for range n {
		if _, err := s.enqueue(x.batch, x.rows); err != nil {
			return 0, 0, 0, err
		}
	}
	host = milliseconds(time.Since(start))
	err = s.wait()
	return milliseconds(time.Since(start)), host, s.launches() - before, err
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// launches is how many kernels were launched ever.
func (s *session) launches() (n uint64) {
	for _, count := range s.device.Launches() {
		n += count
	}
	return n
}

// wait waits for all that was enqueued: a number is copied behind it.
func (s *session) wait() error {
	if s.one == nil {
		s.one = new(compute.Tensor)
		s.device.Resize(s.one, 1, 1)
	}
	s.device.Zero(s.one)
	s.one.Floats()
	return s.device.Err()
}
