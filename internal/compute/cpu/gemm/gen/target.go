package main

import (
	"bytes"
	"fmt"
	"strings"
)

// shape is a kernel's number of rows of x and of panels of weights.
type shape struct {
	rows, panels int
	again        bool // for weights that are in a cache
}

// target is an instruction set together with a kind of weights.
type target struct {
	set    string // avx2, avx512 or amx
	kind   string // bf16, f16, f32, or of bf16 weights and rounded x: block, dot
	vector int    // bytes of a vector
	regs   int    // vector registers
	rows   int
	shapes []shape
}

func (t *target) name() string { return t.set + "_" + t.kind }

// nr is the number of rows of W in a panel: two vectors of sums.
func (t *target) nr() int { return 2 * t.vector / 4 }

// function returns the name of a kernel.
func (t *target) function(s shape) string {
	kind := strings.ToUpper(t.kind[:1]) + t.kind[1:]
	name := fmt.Sprintf("%s%s_%dx%d", t.set, kind, s.rows, s.panels)
	if s.again {
		name += "Again"
	}
	return name
}

// targets lists the kernels. A tile of few rows takes several panels: that many independent sums
// are needed to hide the latency of the multiply-add, and that many streams to reach the bandwidth
// of the memory. Many rows are cut into tiles of six by four vectors (with sixteen registers: by
// two), of weights that are float32 or were widened to it: those take the fewest instructions for
// each product. Tiles after the first find the weights in a cache.
func targets() []*target {
	var all []*target
	for _, kind := range []string{"bf16", "f16", "f32"} {
		all = append(all, &target{set: "avx2", kind: kind, vector: 32, regs: 16, rows: 6,
			shapes: shapes([]int{4, 2, 2, 1, 1, 1})})
	}
	for _, kind := range []string{"bf16", "f16", "f32", "dot"} {
		all = append(all, &target{set: "avx512", kind: kind, vector: 64, regs: 32, rows: 12,
			shapes: shapes([]int{4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1})})
	}
	// In the order of AMX's tiles, which multiply more rows.
	all = append(all, &target{set: "amx", kind: "block", vector: 64, regs: 32, rows: 4,
		shapes: shapes([]int{4, 4, 2, 2})})
	for _, t := range all {
		if t.kind == "f32" {
			t.shapes = append(t.shapes, shape{squareRows, t.vector / 32, true})
		}
	}
	return all
}

// squareRows are those of the tiles that many rows are cut into.
const squareRows = 6

// shapes lists all widths 1, 2, 4 up to the widest of each height.
func shapes(widest []int) []shape {
	var all []shape
	for i, most := range widest {
		for panels := 1; panels <= most; panels *= 2 {
			all = append(all, shape{rows: i + 1, panels: panels})
		}
	}
	return all
}

// many are the fields of a set that say what multiplies many rows.
func (t *target) many() string {
	switch t.kind {
	case "block":
		return fmt.Sprintf("many: &amxTILES, from: %d, ", t.rows+1)
	case "f32":
		square := t.shapes[len(t.shapes)-1]
		return fmt.Sprintf("square: %d, again: %s, ", square.rows, t.function(square))
	case "bf16", "f16":
		return fmt.Sprintf("many: &%sF32, from: many, widen: %s, ", t.set, t.widening())
	}
	return ""
}

// widening returns the name of what widens panels, or "" where none is widened.
func (t *target) widening() string {
	if t.kind != "bf16" && t.kind != "f16" {
		return ""
	}
	return "widen" + strings.ToUpper(t.kind) + strings.ToUpper(t.set)
}

// tables returns the Go file that declares the kernels and lists them by shape.
func tables(all []*target) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%spackage gemm\n\nimport \"unsafe\"\n", header)
	for _, t := range all {
		fmt.Fprintf(&b, "\nvar %s%s = kernelSet{nr: %d, rows: %d, vector: true, %skernels: "+
			"[maxRows + 1][maxWidth + 1]kernel{\n", t.set, strings.ToUpper(t.kind), t.nr(), t.rows,
			map[string]string{"dot": "halves: true, "}[t.kind]+t.many())
		row := 0
		for _, s := range t.shapes {
			if s.again {
				continue
			}
			if s.rows != row {
				if row > 0 {
					fmt.Fprintf(&b, "},\n")
				}
				fmt.Fprintf(&b, "%d: {", s.rows)
				row = s.rows
			}
			fmt.Fprintf(&b, "%d: %s, ", s.panels, t.function(s))
		}
		fmt.Fprintf(&b, "},\n}}\n")
	}
	for _, t := range all {
		for _, s := range t.shapes {
			fmt.Fprintf(&b, "\n//go:noescape\nfunc %s(w unsafe.Pointer, wStride uintptr, x "+
				"unsafe.Pointer, xStride uintptr, pairs, flags int, c unsafe.Pointer, cStride "+
				"uintptr, soon unsafe.Pointer, soonStep uintptr)\n", t.function(s))
		}
		if name := t.widening(); name != "" {
			fmt.Fprintf(&b, "\n//go:noescape\nfunc %s(dst, src unsafe.Pointer, pairs int)\n", name)
		}
	}
	return b.Bytes()
}
