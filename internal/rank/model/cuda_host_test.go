package model_test

import (
	"testing"
	"time"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// idleDriver has a device that does nothing: what a step costs the host is measured beside it.
type idleDriver struct{}

func (idleDriver) Version() int { return 13000 }

func (idleDriver) Devices() ([]driver.Info, error) {
	return []driver.Info{{Name: "idle", Major: 9, Multiprocessors: 132, Shared: 227 << 10,
		Memory: 1 << 40}}, nil
}

func (idleDriver) Reaches(int, int) (bool, error) { return true, nil }

func (idleDriver) Open(int) (driver.Context, error) { return &idleContext{next: 1 << 20}, nil }

type idleContext struct {
	next    driver.Ptr
	handles uintptr
	// sums is the kernel that adds the trial of two ranks, of which the other one brings twice the
	// numbers; summed says that what is read next are its sums.
	sums   driver.Function
	summed bool
	// So it is with gather, of which there have been so many trials.
	gather   driver.Function
	gathered bool
	trials   int
}

func (c *idleContext) handle() uintptr {
	c.handles++
	return c.handles
}

func (c *idleContext) Enter() error                             { return nil }
func (c *idleContext) Close() error                             { return nil }
func (c *idleContext) MemInfo() (free, total uint64, err error) { return 1 << 40, 1 << 40, nil }

func (c *idleContext) Alloc(bytes uint64) (driver.Ptr, error) {
	p := c.next
	c.next += driver.Ptr(bytes+511) &^ 255
	return p, nil
}

func (c *idleContext) Free(driver.Ptr) error { return nil }

func (c *idleContext) Pin(bytes int) ([]byte, error) {
	return make([]byte, bytes), nil
}

func (c *idleContext) Unpin([]byte) error { return nil }

func (c *idleContext) Export(driver.Ptr) (h driver.Handle, err error) { return h, nil }
func (c *idleContext) CloseImport(driver.Ptr) error                   { return nil }

func (c *idleContext) Import(driver.Handle) (driver.Ptr, error) {
	return c.Alloc(driver.ExportGrain)
}

func (c *idleContext) Load([]byte) (driver.Module, error) {
	return driver.Module(c.handle()), nil
}

func (c *idleContext) TensorMap(*driver.Tensor) (m driver.TensorMap, err error) { return m, nil }

func (c *idleContext) AllowShared(driver.Function, int) error { return nil }

func (c *idleContext) NewStream() (driver.Stream, error) {
	return driver.Stream(c.handle()), nil
}

func (c *idleContext) Launch(l *driver.Launch, _ driver.Stream) error {
	c.summed, c.gathered = l.Function == c.sums, l.Function == c.gather
	return nil
}

func (c *idleContext) Synchronize(driver.Stream) error { return nil }

func (c *idleContext) NewEvent() (driver.Event, error) {
	return driver.Event(c.handle()), nil
}

func (c *idleContext) Record(driver.Event, driver.Stream) error         { return nil }
func (c *idleContext) Elapsed(_, _ driver.Event) (time.Duration, error) { return 0, nil }
func (c *idleContext) BeginCapture(driver.Stream) error                 { return nil }
func (c *idleContext) Replay(driver.Graph, driver.Stream) error         { return nil }
func (c *idleContext) Destroy(driver.Graph) error                       { return nil }

func (c *idleContext) EndCapture(driver.Stream) (driver.Graph, error) {
	return driver.Graph(c.handle()), nil
}

func (c *idleContext) Function(_ driver.Module, name string) (driver.Function, error) {
	f := driver.Function(c.handle())
	switch name {
	case kernels.SumRanks.Name():
		c.sums = f
	case kernels.GatherRanks.Name():
		c.gather = f
	}
	return f, nil
}

func (c *idleContext) Resources(driver.Function) (registers, shared, local int, err error) {
	return 0, 0, 0, nil
}

func (c *idleContext) Upload(driver.Ptr, []byte, driver.Stream) error { return nil }

func (c *idleContext) Download(b []byte, _ driver.Ptr, _ driver.Stream) error {
	v := unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4)
	for i := range v {
		switch n := len(v) / 2; {
		case c.summed:
			v[i] *= 3
		case c.gathered:
			v[i] = float32((1 + i/n) * (i%n%1000 + c.trials))
		}
	}
	if c.gathered {
		c.gathered, c.trials = false, c.trials+1
	}
	return nil
}

func (c *idleContext) Copy(dst, src driver.Ptr, bytes uint64, s driver.Stream) error {
	return nil
}

func (c *idleContext) Fill(dst driver.Ptr, value byte, bytes uint64, s driver.Stream) error {
	return nil
}

// lone stands for a group whose other ranks are always there already, and say what this one does.
type lone struct{ size int }

func (lone) AllReduce(*compute.Tensor) error          { return nil }
func (lone) Gather(_, _ *compute.Tensor, _ int) error { return nil }

func (lone) AllToAll(_, _ []float32, _, _ []int) error { return nil }

func (l lone) AllGather(dst, x []float32) error {
	for r := range l.size {
		copy(dst[r*len(x):], x)
	}
	return nil
}

// idleModel is a model on a device that does nothing, and a step of so many sequences; it may be
// the first of several ranks, which hold whole experts of a mixture, and of as many places as two,
// and its sequences have adapters, as many as there are, and none.
func idleModel(t testing.TB, name string, eager bool, sequences, ranks, places,
	adapters int) (*cuda.Device, func()) {
	cfg, weights := shipped(name).open(t)
	d, err := cuda.New(cuda.Options{Driver: idleDriver{}, DType: compute.BFloat16, Threads: 1,
		PTX: true, Eager: eager})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	g := layers.Group{Size: ranks}
	if ranks > 1 {
		c := d.NewComm(0, ranks, lone{ranks}, lone{ranks})
		if err := c.Connect(t.Context().Done()); err != nil || c.Why() != "" {
			t.Fatal(c.Why(), err)
		}
		g.Comm = c
		if cfg.Experts() > 0 {
			g.Experts = &layers.ExpertGroup{Shares: ranks, Redundant: 1}
		}
	}
	if places > 1 {
		c := d.NewPlaces(0, places, lone{places}, lone{places})
		if err := c.Connect(t.Context().Done()); err != nil || c.Why() != "" {
			t.Fatal(c.Why(), err)
		}
		g.DP = &layers.RowGroup{Size: places, Visits: c}
		g.Experts = &layers.ExpertGroup{Shares: ranks * places, Redundant: 1}
	}
	m, err := model.Load(cfg, model.FromCheckpoint(weights), d, model.Options{Group: g})
	if err != nil {
		t.Fatal(err)
	}
	for i := range adapters {
		a := newAdapter(t, cfg, uint64(i), func(string) bool { return true })
		a.load(t, m, uint32(1+i))
	}
	c, err := d.NewCache(compute.CacheShape{Layers: model.CacheLayers(cfg, 0, cfg.Layers, ranks),
		Blocks: 64, BlockSize: blockSize, DType: compute.BFloat16, States: 8})
	if err != nil {
		t.Fatal(err)
	}
	b := new(compute.Batch)
	for range places {
		b.Split.Places = append(b.Split.Places, int32(sequences))
	}
	for q := range sequences {
		b.Tokens, b.Position = append(b.Tokens, 5), append(b.Position, 7)
		b.Seq, b.Slots = append(b.Seq, int32(q)), append(b.Slots, int32(q*blockSize+7))
		b.Tables, b.States = append(b.Tables, []int32{int32(q)}), append(b.States, int32(q%8))
		if id := q % (adapters + 1); id > 0 {
			b.Adapters = append(b.Adapters, compute.AdapterRows{Adapter: uint32(id),
				From: int32(q), To: int32(q + 1)})
		}
	}
	return d, func() {
		if err := forward(m, b, c); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCUDALaunches counts the launches of a decoding step: no more than 12 a layer, whatever the
// number of ranks, 2 more of several places, and 10 with adapters, whatever their number.
func TestCUDALaunches(t *testing.T) {
	for _, c := range []struct {
		name                    string
		ranks, places, adapters int
	}{{"llama-tiny", 1, 1, 0}, {"qwen3-tiny", 1, 1, 0}, {"gemma2-tiny", 1, 1, 0},
		{"qwen3moe-tiny", 1, 1, 0}, {"llama-tiny", 2, 1, 0}, {"gemma2-tiny", 2, 1, 0},
		{"fp8-block-tiny", 1, 1, 0}, {"awq-g64-tiny", 1, 1, 0}, {"qwen3moe-tiny", 2, 1, 0},
		{"qwen3moe-tiny", 1, 2, 0}, {"qwen3moe-tiny", 2, 2, 0},
		{"llama-tiny", 1, 1, 1}, {"llama-tiny", 1, 1, 3}, {"llama-tiny", 2, 1, 3}} {
		name, most := c.name, 12.0
		if c.adapters > 0 {
			most += 10
		}
		if c.places > 1 {
			most += 2
		}
		d, step := idleModel(t, name, true, 5, c.ranks, c.places, c.adapters)
		step()
		before := d.Launches()
		step()
		total := uint64(0)
		for k, n := range d.Launches() {
			total += n - before[k]
		}
		cfg, _ := shipped(name).open(t)
		total -= 3 // the embedding, the angles of all layers, and the sum of the last one
		perLayer := float64(total) / float64(cfg.Layers)
		t.Logf("%s by %d x %d, %d adapters: %d launches, %.1f a layer", name, c.places, c.ranks,
			c.adapters, total, perLayer)
		if perLayer > most {
			t.Errorf("%s by %d x %d, %d adapters: %.1f launches a layer", name, c.places, c.ranks,
				c.adapters, perLayer)
		}
	}
}

// TestCUDAReplayAllocatesNothing counts the allocations of a step that is a graph's, with rows that
// fill it up, also with adapters.
func TestCUDAReplayAllocatesNothing(t *testing.T) {
	for _, c := range []struct {
		name                    string
		ranks, places, adapters int
	}{{"qwen3-tiny", 1, 1, 0}, {"llama-tiny", 2, 1, 3}, {"qwen3moe-tiny", 2, 1, 0},
		{"qwen3moe-tiny", 2, 2, 0}} {
		d, step := idleModel(t, c.name, false, 13, c.ranks, c.places, c.adapters)
		for range 5 {
			step()
		}
		if d.Replays() == 0 {
			t.Fatal("no step was a graph's")
		}
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%s by %d x %d: %v allocations a step", c.name, c.places, c.ranks, n)
		}
	}
}

// BenchmarkCUDAHost is what a step costs the host beside a device that does nothing: replayed, with
// rows that fill the graph up, and launch by launch.
func BenchmarkCUDAHost(b *testing.B) {
	for _, c := range []struct {
		name  string
		eager bool
		ranks int
	}{{"replayed", false, 1}, {"eager", true, 1}, {"replayed, 2 ranks", false, 2},
		{"eager, 2 ranks", true, 2}} {
		b.Run(c.name, func(b *testing.B) {
			_, step := idleModel(b, "llama-tiny", c.eager, 57, c.ranks, 1, 0)
			for range 5 {
				step()
			}
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}
