package ptx

import "strings"

// knownSpecial says whether a special register has a value that does not change while a block runs.
func knownSpecial(name string) bool {
	base, axis, dotted := strings.Cut(name, ".")
	switch base {
	case "%tid", "%ntid", "%ctaid", "%nctaid":
		return dotted && (axis == "x" || axis == "y" || axis == "z")
	case "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid":
		return dotted && (axis == "x" || axis == "y" || axis == "z")
	case "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%dynamic_smem_size",
		"%total_smem_size", "%cluster_ctarank", "%cluster_nctarank",
		"%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge":
		return !dotted
	}
	return false
}

// setSpecials fills the registers that have special registers' values in all blocks.
func (w *warp) setSpecials() {
	for _, s := range w.kernel.specials {
		w.setSpecial(s)
	}
}

// setCTASpecials fills those that are different in each block, or launch of a shape.
func (w *warp) setCTASpecials() {
	for _, s := range w.kernel.specials {
		switch base, _, _ := strings.Cut(s.name, "."); base {
		case "%ctaid", "%clusterid", "%nctaid", "%nclusterid":
			w.setSpecial(s)
		}
	}
}

func (w *warp) setSpecial(s special) {
	r := &w.r32[s.reg]
	if s.name[1] == 'c' || s.name[1] == 'n' { // the same in all lanes
		fill(r[:], w.specialValue(s.name, 0))
		return
	}
	for i := range r {
		r[i] = w.specialValue(s.name, uint32(i))
	}
}

// specialValue is a special register in a lane (PTX ISA 10). A block is a cluster of its own.
func (w *warp) specialValue(name string, lane uint32) uint32 {
	l := w.cta.launch
	base, axis, _ := strings.Cut(name, ".")
	dim := 0
	if axis != "" {
		dim = int(axis[0] - 'x')
	}
	linear := uint32(w.id)*lanes + lane
	switch base {
	case "%tid":
		return [3]uint32{linear % l.block[0], linear / l.block[0] % l.block[1],
			linear / l.block[0] / l.block[1]}[dim]
	case "%ntid":
		return l.block[dim]
	case "%ctaid", "%clusterid":
		return w.cta.id[dim]
	case "%nctaid", "%nclusterid":
		return l.grid[dim]
	case "%cluster_nctaid", "%cluster_nctarank", "%nsmid":
		return 1
	case "%laneid":
		return lane
	case "%warpid":
		return uint32(w.id)
	case "%nwarpid":
		return uint32(l.warps)
	case "%dynamic_smem_size":
		return l.shared - l.kernel.dynamicAt
	case "%total_smem_size":
		return l.shared - sharedBase
	case "%lanemask_eq":
		return 1 << lane
	case "%lanemask_lt":
		return 1<<lane - 1
	case "%lanemask_le":
		return 2<<lane - 1
	case "%lanemask_gt":
		return -(2 << lane)
	case "%lanemask_ge":
		return -(1 << lane)
	}
	return 0 // %smid, ranks in a cluster of one
}

// execClock is a mov from a register that counts (%clock, %globaltimer): instructions of the block.
func execClock(wide bool) func(*warp, *inst, uint32) {
	return func(w *warp, in *inst, mask uint32) {
		now := w.cta.steps + uint64(w.quota-w.budget)
		for m := mask; m != 0; m &= m - 1 {
			if i := firstLane(m); wide {
				w.r64[in.d][i] = now
			} else {
				w.r32[in.d][i] = uint32(now)
			}
		}
	}
}
