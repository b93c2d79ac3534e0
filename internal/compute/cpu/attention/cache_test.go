package attention

import (
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
)

// Every element written is found where the layout says, rounded to nearest even; nothing else
// changes; a negative slot writes nothing.
func TestWriteLayout(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	for _, kind := range kinds {
		for _, dim := range []int{2, 16, 20, 64, 130, 256, 300} {
			cfg := compute.CacheShape{Layers: []compute.CacheLayer{{Heads: 1, Dim: 40},
				{Heads: 2, Dim: dim}}, Blocks: 3, BlockSize: 32, DType: kind}
			c, err := NewCache(cfg)
			if err != nil {
				t.Fatal(err)
			}
			const ldExtra = 5
			ld := 2*dim + ldExtra
			slots := []int32{95, -1, 0, 17, 40}
			k, v := randomRows(r, len(slots)*ld), randomRows(r, len(slots)*ld)
			for i := range c.data {
				c.data[i] = blank
			}
			c.Write(1, len(slots), k, v, ld, slots, compute.CacheScales{})
			written, p := make([]bool, len(c.data)), &c.layers[1]
			// vector wants the numbers of a position from the tile at at on, element d of row
			// place(d) at lane(d).
			vector := func(what string, at, pos int, x []float32, place func(d int) (row, at int)) {
				scale := 1.
				if kind.Scaled() {
					from := at + p.scales + 4*pos
					scale = float64(cast[float32](c.data[from:][:4])[0])
					mark(written, from, 4)
				}
				want := stored(kind, x, 0)
				for d, want := range want {
					var numbers [tile]float32
					row, i := place(d)
					from := at + row*tile*kind.Size()
					widen(kind, c.data[from:], &numbers)
					if got := float64(numbers[i]) * scale; got != want {
						t.Fatalf("%v dim %d, %s at %d: number %d is %v, want %v", kind, dim, what,
							at, d, got, want)
					}
					mark(written, from+lane(kind, i)*kind.Size(), kind.Size())
				}
			}
			for i, slot := range slots {
				if slot < 0 {
					continue
				}
				block, off := int(slot)/32, int(slot)%32
				for h := range 2 {
					at, pos, head := p.tileOffset(block, off)+h*p.head, off%tile, i*ld+h*dim
					vector("key", at, pos, k[head:][:dim], func(d int) (int, int) {
						return d, pos
					})
					vector("value", at+p.values, pos, v[head:][:dim], func(d int) (int, int) {
						return d/tile*tile + pos, d % tile
					})
				}
			}
			for i, b := range c.data {
				if b != blank && !written[i] {
					t.Fatalf("%v dim %d: byte %d is changed", kind, dim, i)
				}
			}
			if err := c.Free(); err != nil {
				t.Error(err)
			}
			if err := c.Free(); err != nil {
				t.Errorf("second Free: %v", err)
			}
		}
	}
}

const blank = 0xa5

// mark notes n bytes from one on.
func mark(written []bool, at, n int) {
	for i := range n {
		written[at+i] = true
	}
}

func TestNewCacheErrors(t *testing.T) {
	good := compute.CacheShape{Layers: []compute.CacheLayer{{Heads: 1, Dim: 2}}, Blocks: 1,
		BlockSize: 16, DType: compute.Float32}
	layers := func(n int, l compute.CacheLayer) func(c *compute.CacheShape) {
		return func(c *compute.CacheShape) { c.Layers = slices.Repeat([]compute.CacheLayer{l}, n) }
	}
	for name, spoil := range map[string]func(c *compute.CacheShape){
		"layers":     layers(0, compute.CacheLayer{}),
		"blocks":     func(c *compute.CacheShape) { c.Blocks = -1 },
		"heads":      layers(1, compute.CacheLayer{Dim: 2}),
		"block size": func(c *compute.CacheShape) { c.BlockSize = 24 },
		"no size":    func(c *compute.CacheShape) { c.BlockSize = 0 },
		"dimension":  layers(1, compute.CacheLayer{Heads: 1, Dim: 17}),
		"kind":       func(c *compute.CacheShape) { c.DType = 5 },
		"slots":      func(c *compute.CacheShape) { c.Blocks = math.MaxInt32 },
		"overflow":   layers(1, compute.CacheLayer{Heads: 1 << 40, Dim: 1 << 40}),
		"sum":        layers(9, compute.CacheLayer{Heads: 1 << 20, Dim: 1 << 34}),
		"refused":    layers(3, compute.CacheLayer{Heads: 1 << 20, Dim: 1 << 34}),
	} {
		cfg := good
		spoil(&cfg)
		c, err := NewCache(cfg)
		if err == nil {
			t.Errorf("%s: no error", name)
			c.Free()
		}
	}
	c, err := NewCache(good)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c.Config(), good) {
		t.Errorf("Config() = %+v", c.Config())
	}
	if err := c.Free(); err != nil {
		t.Error(err)
	}
}

func TestWriteRejectsBadSlots(t *testing.T) {
	c, err := NewCache(compute.CacheShape{Layers: []compute.CacheLayer{{Heads: 1, Dim: 16}},
		Blocks: 2, BlockSize: 16, DType: compute.BFloat16})
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, 16)
	for name, f := range map[string]func(){
		"slot":  func() { c.Write(0, 1, x, x, 16, []int32{32}, compute.CacheScales{}) },
		"layer": func() { c.Write(1, 1, x, x, 16, []int32{0}, compute.CacheScales{}) },
		"short": func() { c.Write(0, 1, x[:15:15], x, 16, []int32{0}, compute.CacheScales{}) },
	} {
		mustPanic(t, name, f)
	}
	mustPanic(t, "freed", func() {
		if err := c.Free(); err != nil {
			t.Error(err)
		}
		c.Write(0, 1, x, x, 16, []int32{0}, compute.CacheScales{})
	})
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

// TestBytesPerBlock wants the memory of a cache to be what its shape says, which the driver relies
// on.
func TestBytesPerBlock(t *testing.T) {
	for _, cfg := range []compute.CacheShape{
		{Layers: []compute.CacheLayer{{Heads: 8, Dim: 128}, {Heads: 1, Dim: 34}}, Blocks: 7,
			BlockSize: 16, DType: compute.BFloat16},
		{Layers: []compute.CacheLayer{{Heads: 3, Dim: 64}}, Blocks: 7, BlockSize: 32,
			DType: compute.Float32},
		{Layers: []compute.CacheLayer{{Heads: 3, Dim: 20}, {Kind: compute.Latent, Heads: 1, Dim: 72,
			Values: 64}}, Blocks: 7, BlockSize: 32, DType: compute.Int8},
		{Layers: []compute.CacheLayer{{Heads: 1, Dim: 20}, {Kind: compute.Latent, Heads: 1, Dim: 72,
			Values: 64}}, Blocks: 7, BlockSize: 16, DType: compute.Float16},
		{Layers: []compute.CacheLayer{{Heads: 1, Dim: 20}, {Kind: compute.State, Heads: 3,
			Dim: 13}}, Blocks: 7, BlockSize: 16, DType: compute.BFloat16, States: 5},
	} {
		c, err := NewCache(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if want := cfg.Blocks*cfg.BytesPerBlock() +
			cfg.States*compute.StateBytes(cfg.Layers); len(c.data) != want {
			t.Errorf("a cache of %+v takes %d bytes, not %d", cfg, len(c.data), want)
		}
		c.Free()
	}
}

func residentKiB(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc/self/status on this system")
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Skip("no VmRSS")
	return 0
}

// Blocks that were never written cost no resident memory.
func TestMemoryIsLazy(t *testing.T) {
	before := residentKiB(t)
	cfg := compute.CacheShape{Layers: slices.Repeat([]compute.CacheLayer{{Heads: 4, Dim: 128}}, 4),
		Blocks: 4096, BlockSize: 16, DType: compute.BFloat16}
	c, err := NewCache(cfg) // 512 MiB
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, 4*128)
	for i := range x {
		x[i] = 1
	}
	for layer := range 4 {
		c.Write(layer, 1, x, x, len(x), []int32{int32(1000 + layer)}, compute.CacheScales{})
	}
	if grown := residentKiB(t) - before; grown > 32<<10 {
		t.Errorf("%d MiB resident for one position of %d MiB", grown>>10,
			cfg.BytesPerBlock()*cfg.Blocks>>20)
	}
	if err := c.Free(); err != nil {
		t.Error(err)
	}
}
