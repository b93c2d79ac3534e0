package cpu

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
	"github.com/eagleray/eagleray/internal/sys/half"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// TestFromPacked wants of a weight's bytes the same products, and those bytes never written: not by
// what is packed after the weight is retired, nor by what is packed like it.
func TestFromPacked(t *testing.T) {
	d, err := New(Options{Threads: 2, DType: compute.BFloat16})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const rows, cols = 70, 96
	source := compute.Source{DType: compute.BFloat16, Rows: rows, Cols: cols, RowHi: rows,
		ColHi: cols}
	for i := range rows * cols {
		h := half.ToBF16(float32(i%37)/16 - 1)
		source.Data = append(source.Data, byte(h), byte(h>>8))
	}
	made, err := d.Pack(2, source)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := d.Packed(made)
	if err != nil || len(parts) != 1 {
		t.Fatalf("%d parts, %v", len(parts), err)
	}
	memory, err := offheap.Map(len(parts[0].Data), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Free()
	copy(memory.Bytes(), parts[0].Data)
	stored, err := d.FromPacked([]compute.Packed{{Form: parts[0].Form, Data: memory.Bytes()}})
	if err != nil {
		t.Fatal(err)
	}
	var x, a, b compute.Tensor
	for _, tensor := range []*compute.Tensor{&a, &b} {
		d.Resize(tensor, 3, rows)
	}
	d.Resize(&x, 3, cols)
	for i := range x.Floats() {
		x.Floats()[i] = float32(i%11) - 5
	}
	made.Product(a.All(), x.All(), nil)
	stored.Product(b.All(), x.All(), nil)
	if !slices.Equal(a.Floats(), b.Floats()) {
		t.Error("products differ from those of the weight that was made")
	}
	before := bytes.Clone(memory.Bytes())
	if err := d.Reserve([]compute.Weight{stored}); err != nil {
		t.Fatal(err)
	}
	d.Retire(stored)
	clear(source.Data)
	for range 3 {
		w, err := d.Pack(2, source)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Free()
	}
	if !bytes.Equal(before, memory.Bytes()) {
		t.Error("the bytes of a stored weight were written")
	}

	var form gemm.Form
	if err := json.Unmarshal(parts[0].Form, &form); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(f *gemm.Form){
		"rows":   func(f *gemm.Form) { f.N += 40 },
		"none":   func(f *gemm.Form) { f.N = 0 },
		"cols":   func(f *gemm.Form) { f.K++ },
		"chunks": func(f *gemm.Form) { f.Chunks = 4 },
		"start":  func(f *gemm.Form) { f.Start = []int{0, cols + 1, cols} },
		"kind":   func(f *gemm.Form) { f.Kind = gemm.I8 },
		"panel":  func(f *gemm.Form) { f.PanelRows = 8 },
		"type":   func(f *gemm.Form) { f.Codes = &gemm.CodesForm{Type: 9} },
		"order": func(f *gemm.Form) {
			f.Codes = &gemm.CodesForm{Type: compute.Code8, Order: make([]int32, 1)}
		},
		"codes": func(f *gemm.Form) { f.Codes = &gemm.CodesForm{Type: compute.Code8, Layout: 3} },
	} {
		f := form
		change(&f)
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		parts := []compute.Packed{{Form: text, Data: memory.Bytes()}}
		if _, err := d.FromPacked(parts); err == nil {
			t.Errorf("%s: a form that does not fit its bytes was taken", what)
		}
	}
}
