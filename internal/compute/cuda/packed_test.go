package cuda_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
)

// TestPacked stores weights of all kinds and makes them again: products have the same bits, and
// what is stored once more the same bytes.
func TestPacked(t *testing.T) {
	offsets := inOrder(someCodes(compute.Code4, 32))
	offsets.Offset = offsets.Scale
	inexact := someCodes(compute.Code8, 16) // whose scales float16 does not have
	halves := someCodes(compute.CodeE4M3, 0)
	for i := range halves.Scale {
		halves.Scale[i] = 0.25
	}
	from := onDouble(t, compute.BFloat16)
	to := onDouble(t, compute.BFloat16)
	plain := make([]float32, 40*160)
	for i := range plain {
		plain[i] = float32(i%13) - 6
	}
	for name, codes := range map[string][]compute.Codes{"plain": nil, "with offsets": {offsets},
		"bytes": {inexact}, "e4m3": {halves, halves}, "joined": {offsets, inexact}} {
		for _, c := range codes {
			for i := range c.Code {
				c.Code[i] = byte(i % 15)
			}
		}
		for _, chunks := range []int{1, 4} {
			w, err := from.PackCodes(chunks, codes...)
			if codes == nil {
				w, err = from.Pack(chunks, f32(plain, 40, 160))
			}
			if err != nil {
				t.Fatal(err)
			}
			parts, err := from.Packed(w)
			if err != nil {
				t.Fatal(err)
			}
			stored := read(t, parts)
			again, err := to.FromPacked(stored)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if want, got := product(from, w), product(to, again); !slices.Equal(want, got) {
				t.Errorf("%s in %d chunks: other products", name, chunks)
			}
			more, err := to.Packed(again)
			if err != nil {
				t.Fatal(err)
			}
			for i, p := range read(t, more) {
				if !bytes.Equal(p.Form, stored[i].Form) || !bytes.Equal(p.Data, stored[i].Data) {
					t.Errorf("%s in %d chunks: part %d is stored otherwise", name, chunks, i)
				}
			}
			stored[0].Data = stored[0].Data[1:]
			if _, err := to.FromPacked(stored); err == nil {
				t.Errorf("%s: too few bytes are a weight", name)
			}
		}
	}
}

func f32(v []float32, rows, cols int) compute.Source {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return compute.Source{Data: b, DType: compute.Float32, Rows: rows, RowHi: rows, Cols: cols,
		ColHi: cols}
}

// read has the bytes of parts in the host's memory, read beside a device.
func read(t *testing.T, parts []compute.Packed) (list []compute.Packed) {
	t.Helper()
	for i := range parts {
		p := &parts[i]
		one := compute.Packed{Form: p.Form}
		failed := make(chan error)
		go func() {
			failed <- p.Read(func(piece []byte) error {
				one.Data = append(one.Data, piece...)
				return nil
			})
		}()
		if err := <-failed; err != nil || len(one.Data) != p.Size() {
			t.Fatalf("%d of %d bytes, %v", len(one.Data), p.Size(), err)
		}
		list = append(list, one)
	}
	return list
}

// product is what a weight makes of some numbers.
func product(d *cuda.Device, w compute.Weight) []float32 {
	var x, y compute.Tensor
	d.Resize(&x, 3, w.In())
	for i := range x.Floats() {
		x.Floats()[i] = float32(i%11) - 5
	}
	x.Memory.Filled()
	d.Resize(&y, 3, w.Out())
	w.Product(y.All(), x.All(), nil)
	return y.Floats()
}
