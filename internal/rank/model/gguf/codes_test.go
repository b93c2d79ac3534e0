package gguf

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// goldBlocks are random blocks of every quantised type, and what the gguf package makes of them.
func goldBlocks(t *testing.T) map[Type]struct{ Blocks, Numbers []byte } {
	t.Helper()
	raw, err := os.ReadFile("testdata/blocks.json")
	if err != nil {
		t.Fatal(err)
	}
	var byName map[string]struct{ Blocks, Numbers []byte }
	if err := json.Unmarshal(raw, &byName); err != nil {
		t.Fatal(err)
	}
	all := map[Type]struct{ Blocks, Numbers []byte }{}
	for i := range types {
		if i.known() && i.Quantised() {
			gold, ok := byName[i.String()]
			if !ok {
				t.Fatalf("no blocks of %v", i)
			}
			all[i] = gold
		}
	}
	return all
}

// TestDecode makes the numbers of the gguf package of every type of blocks, bit for bit.
func TestDecode(t *testing.T) {
	for kind, gold := range goldBlocks(t) {
		got := make([]float32, len(gold.Numbers)/4)
		kind.Decode(got, gold.Blocks)
		for i, v := range got {
			want := math.Float32frombits(binary.LittleEndian.Uint32(gold.Numbers[4*i:]))
			if v != want {
				t.Errorf("%v: number %d is %v, not %v", kind, i, v, want)
				break
			}
		}
	}
}

// TestUnpack makes codes of columns that begin and end within blocks and groups, which stand for
// the same numbers as the whole row.
func TestUnpack(t *testing.T) {
	const cols, rows = 256, 2
	for kind, gold := range goldBlocks(t) {
		all := make([]float32, rows*cols)
		kind.Decode(all, gold.Blocks)
		size := len(gold.Blocks) / rows
		for _, cut := range [][2]int{{0, 256}, {64, 192}, {0, 100}, {100, 256}, {37, 41},
			{8, 250}} {
			lo, hi := cut[0], cut[1]
			c := kind.Form(rows, lo, hi)
			if err := c.Check(); err != nil {
				t.Fatalf("%v, weighed: %v", kind, err)
			}
			cells := c.Rows * c.Groups()
			c.Code, c.Scale = make([]byte, c.Rows*c.Cols), make([]float32, cells)
			c.Factor = make([]float32, c.Rows*c.Supers())
			if c.Offset != nil {
				c.Offset, c.OffsetFactor = make([]float32, cells), slices.Clone(c.Factor)
			}
			for r := range rows {
				kind.Unpack(&c, r, gold.Blocks[r*size:(r+1)*size], lo)
			}
			if err := c.Check(); err != nil {
				t.Fatalf("%v: %v", kind, err)
			}
			for r := range rows {
				for col := range hi - lo {
					got, want := elementOf(&c, r, col), all[r*cols+lo+col]
					if got != want {
						t.Fatalf("%v, columns %v: [%d, %d] is %v, not %v", kind, cut, r, col, got,
							want)
					}
					if !multiples(&c, r, col) {
						t.Fatalf("%v, columns %v: [%d, %d] has other factors", kind, cut, r, col)
					}
				}
			}
		}
	}
}

// elementOf is an element of codes.
func elementOf(c *compute.Codes, r, col int) float32 {
	at := r*c.Groups() + (c.Lead+col)/c.Group
	v := c.Number(c.Code[r*c.Cols+col]) * c.Scale[at]
	if c.Offset != nil {
		v += c.Offset[at]
	}
	return v
}

// multiples tells whether the scale and the offset of an element are integers of 8 bits times their
// factors.
func multiples(c *compute.Codes, r, col int) bool {
	g := (c.Lead + col) / c.Group
	of := func(v, factors []float32) bool {
		if v == nil {
			return true
		}
		got, factor := v[r*c.Groups()+g], factors[r*c.Supers()+(c.SuperLead+g)/c.Super]
		return float32(int8(math.Round(float64(got/factor))))*factor == got
	}
	return c.Super == 0 || of(c.Scale, c.Factor) && of(c.Offset, c.OffsetFactor)
}

// TestFinite puts an infinity and a NaN at every byte of blocks, and wants what is seen of the
// scales alone to be what the numbers are.
func TestFinite(t *testing.T) {
	for kind, gold := range goldBlocks(t) {
		numbers, wrong := make([]float32, kind.Block()), 0
		for _, with := range [][]byte{nil, {0, 0x7c}, {0, 0xfc}, {1, 0x7e}, {0xff}} {
			for at := range kind.Bytes() - max(1, len(with)) + 1 {
				block := slices.Clone(gold.Blocks[:kind.Bytes()])
				copy(block[at:], with)
				kind.Decode(numbers, block)
				want := half.AllFinite(numbers)
				if got := kind.Finite(block); got != want {
					t.Fatalf("%v: finite is %v with %x at byte %d, not %v", kind, got, with, at,
						want)
				}
				if !want {
					wrong++
				}
			}
		}
		if wrong == 0 {
			t.Errorf("%v: no block was made wrong", kind)
		}
	}
}
