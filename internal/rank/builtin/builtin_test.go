package builtin

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// TestFolder compares the embedded model with the files on disk, tensor by tensor.
func TestFolder(t *testing.T) {
	embedded := Folder()
	disk, err := checkpoint.Dir(filepath.Join("..", "..", "..", "testdata", "models", Name))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range embedded.Names() {
		a, err := embedded.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := disk.ReadFile(name)
		if err != nil || !bytes.Equal(a, b) || len(a) == 0 {
			t.Errorf("%s differs from testdata/models/%s, or is empty: %v", name, Name, err)
		}
	}
	c, err := checkpoint.Open(embedded)
	if err != nil {
		t.Fatal(err)
	}
	d, err := checkpoint.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if !slices.Equal(c.Names(), d.Names()) {
		t.Fatalf("tensors %v, want %v", c.Names(), d.Names())
	}
	for _, name := range c.Names() {
		a, errA := c.Tensor(name)
		b, errB := d.Tensor(name)
		if errA != nil || errB != nil || !bytes.Equal(a.Data, b.Data) || !slices.Equal(a.Shape,
			b.Shape) {
			t.Errorf("%s: %v, %v", name, errA, errB)
		}
		c.Release(a)
		if !bytes.Equal(a.Data, b.Data) {
			t.Errorf("%s changed when it was released", name)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	raw, err := Folder().ReadFile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	c, err := model.ReadConfig(raw)
	if err != nil || c.Architecture != "Qwen3ForCausalLM" || c.VocabSize != 2048 {
		t.Errorf("%+v, %v", c, err)
	}
	raw, err = Folder().ReadFile("generation_config.json")
	if err != nil {
		t.Fatal(err)
	}
	if g, err := checkpoint.ReadGenerationConfig(raw); err != nil || !slices.Equal(g.EOS,
		[]int{2047, 2045}) {
		t.Errorf("%+v, %v", g, err)
	}
}

// TestNoCopy measures that opening the model leaves its 7 MB of weights out of the heap.
func TestNoCopy(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c, err := checkpoint.Open(Folder())
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > uint64(c.Bytes()/10) {
		t.Errorf("%d bytes were allocated to open %d bytes of weights", grown, c.Bytes())
	}
}

// TestReadOnly looks up the memory map for the pages that the weights lie in.
func TestReadOnly(t *testing.T) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip("no /proc/self/maps on this system")
	}
	perms, ok := permissions(maps, weights)
	if !ok || perms[1] != '-' {
		t.Errorf("the weights lie in memory with permissions %q", perms)
	}
}
