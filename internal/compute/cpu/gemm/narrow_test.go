package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// TestRowForms wants products of rows that were narrow to have the bits of those of the rows
// themselves, whatever these are: rows that are zero, tiny, huge, or no numbers.
func TestRowForms(t *testing.T) {
	const n, rows = 35, 24
	seen := map[compute.RowForm]bool{}
	r := rand.New(rand.NewPCG(41, 41))
	check := func(what string, set isa.ISA, m *Matrix, want compute.RowForm) {
		t.Helper()
		form := m.RowForm()
		if form != want {
			t.Errorf("%s: form %d, not %d", what, form, want)
		}
		seen[form] = true
		x, k := awkward(r, rows, m.K()), m.K()
		again, narrow := make([]float32, len(x)), make([]float32, form.Words(k))
		for row := range rows {
			for _, vector := range []bool{set != isa.Portable, false} {
				before := slices.Clone(narrow)
				Narrow(narrow, x[row*k:][:k], form, vector)
				Widen(again[row*k:][:k], narrow, form)
				if !vector && set != isa.Portable {
					sameSlice(t, what+", in Go", narrow, before)
				}
			}
		}
		var s Scratch
		got, all := make([]float32, rows*n), make([]float32, rows*n)
		for _, count := range []int{1, 3, rows} {
			m.Mul(nil, &s, all[:count*n], n, x, k, count, nil)
			m.Mul(nil, &s, got[:count*n], n, again, k, count, nil)
			sameSlice(t, fmt.Sprintf("%s, %d rows", what, count), got[:count*n], all[:count*n])
		}
	}
	for _, v := range variants() {
		if v.kind == I8 { // as PackCodes makes them, below
			continue
		}
		for _, k := range []int{64, 600, 31} {
			form := compute.FloatRow
			if v.rounded && k%2 == 0 {
				form = compute.FlushedBF16Row
				if v.set == isa.AVX512BF16 {
					form = compute.BF16Row
				}
			}
			q := newProblem(r, v.kind, n, k, 1)
			check(fmt.Sprintf("%v, %d columns", v, k), v.set,
				mustPack(t, nil, v.options(1), q.source()), form)
		}
	}
	for _, set := range codeSets() {
		for _, c := range set.cases() {
			for i, group := range []int{0, 16, 32, 64, 128, 100} {
				for j, k := range []int{512, 2880, 1000, 135} {
					if testing.Short() && (i+j)%4 != 1 {
						continue
					}
					m := mustPackCodes(t, nil, set, 1, newCodes(r, c, n, k, group, 0))
					check(fmt.Sprintf("%v %v, groups of %d, %d columns", set, c, group, k),
						set.ISA, m, spansOf(set, c, k, group))
				}
			}
		}
	}
	for _, form := range []compute.RowForm{compute.FloatRow, 16, 32, 128} {
		if !seen[form] {
			t.Errorf("form %d was not tested", form)
		}
	}
}

// spansOf is the form of rows for codes of groups.
func spansOf(set codeSet, c codeCase, k, group int) compute.RowForm {
	switch {
	case !set.rounded, c.order, k%8 != 0, group%8 != 0:
		return compute.FloatRow
	case group == 64 && k == 1000 && !c.super && c.kind == compute.Code8:
		return 32
	case group == 16, group == 32, group == 64:
		return compute.RowForm(min(group, 32))
	case c.kind == compute.Code8:
		return 128
	}
	return 32
}

// awkward is rows of all magnitudes: some have nothing else, some a single odd number.
func awkward(r *rand.Rand, rows, k int) []float32 {
	x := make([]float32, rows*k)
	odd := []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
		math.MaxFloat32, 0x1p-126, math.Float32frombits(0x007fffff), -0x1p-130, 0x1p-119,
		math.Nextafter32(0x1p-119, 0), float32(math.Copysign(0, -1))}
	for row := range rows {
		size := math.Ldexp(1, r.IntN(250)-135)
		if row%4 == 0 {
			size = 1
		}
		for i := range k {
			x[row*k+i] = float32(r.NormFloat64() * size)
		}
		switch row % 6 {
		case 1:
			x[row*k+r.IntN(k)] = odd[r.IntN(len(odd))]
		case 2:
			clear(x[row*k:][:k])
		case 3: // several are the largest of a span
			for i := range k {
				x[row*k+i] = float32(1 - 2*(i&1))
			}
		}
	}
	return x
}

// BenchmarkRowForms makes a row of 2,048 narrow, and wide again.
func BenchmarkRowForms(b *testing.B) {
	x := randoms(rand.New(rand.NewPCG(43, 43)), 2048)
	again := make([]float32, len(x))
	for _, form := range []compute.RowForm{compute.FloatRow, compute.BF16Row,
		compute.FlushedBF16Row, 32, 128} {
		narrow := make([]float32, form.Words(len(x)))
		b.Run(fmt.Sprintf("%d/narrow", form), func(b *testing.B) {
			for b.Loop() {
				Narrow(narrow, x, form, isa.Best() != isa.Portable)
			}
		})
		b.Run(fmt.Sprintf("%d/widen", form), func(b *testing.B) {
			for b.Loop() {
				Widen(again, narrow, form)
			}
		})
	}
}
