package ptx

// branch decodes bra.
func (d *decoder) branch() {
	if !d.arity(1, 1) {
		return
	}
	d.cur.ends = d.st.guard == ""
	d.jump(d.st.args[0].name)
}

// jump emits a branch to a label.
func (d *decoder) jump(label string) {
	to, ok := d.st.scope.label(label)
	if !ok {
		d.failf("no label %s", label)
		return
	}
	d.cur.fix = &fixup{frame: d.frame, to: []int{to}}
	d.op(execBranch, none)
}

// branchIndex decodes brx.idx.
func (d *decoder) branchIndex() {
	if !d.arity(2, 2) {
		return
	}
	labels := d.st.scope.branchTargets(d.st.args[1].name)
	if labels == nil {
		d.failf("no list of targets %s", d.st.args[1].name)
		return
	}
	fix := &fixup{frame: d.frame}
	for _, l := range labels {
		to, ok := d.st.scope.label(l)
		if !ok {
			d.failf("no label %s", l)
			return
		}
		fix.to = append(fix.to, to)
	}
	in := inst{exec: execBranchIndex, d: none, a: d.src(d.st.args[0], u32Type), b: none, c: none,
		ext: &extra{}}
	d.cur.fix, d.cur.ends = fix, d.st.guard == ""
	d.emit(in)
}

// leave decodes ret and exit. A device function stands where it is called: ret goes to its end.
func (d *decoder) leave() {
	d.cur.ends = d.st.guard == ""
	if d.st.opcode == "exit" || d.frame.fn.entry {
		d.op(execExit, none)
		return
	}
	d.cur.fix = &fixup{frame: d.frame, to: []int{len(d.frame.fn.body)}}
	d.op(execBranch, none)
}

// call decodes a call: parameters are copied to where the function has its own, and results back.
func (d *decoder) call() {
	args := d.st.args
	var results, params []operand
	if len(args) > 0 && args[0].kind == vectorOperand {
		results, args = args[0].elems, args[1:]
	}
	if len(args) > 1 && args[1].kind == vectorOperand {
		params = args[1].elems
	}
	f := d.mod.callee(d.st)
	if f == nil && len(args) > 0 {
		d.failf("the module has no function %s", args[0].name)
		return
	}
	if f == nil || len(results) != len(f.returns) || len(params) != len(f.params) ||
		d.st.guard != "" {
		d.failf("other parameters than the function's, or a call under a condition")
		return
	}
	for i, o := range params {
		d.copyParam(f.params[i], d.st.scope.variable(o.name))
	}
	if d.err != nil {
		return
	}
	st := d.st
	if err := d.function(f); err != nil {
		d.err = err
		return
	}
	d.st = st
	for i, o := range results {
		d.copyParam(d.st.scope.variable(o.name), f.returns[i])
	}
}

// copyParam emits a copy of a parameter in local memory.
func (d *decoder) copyParam(to, from *variable) {
	if to == nil || from == nil || !to.inLocal || !from.inLocal || to.size != from.size {
		d.failf("a parameter that does not fit the function's")
		return
	}
	size := uint64(d.kernel.Local)
	a, b, n := to.at, from.at, from.size
	d.op(func(w *warp, _ *inst, mask uint32) {
		for m := mask; m != 0; m &= m - 1 {
			lane := uint64(firstLane(m)) * size
			copy(w.local[lane+a:lane+a+n], w.local[lane+b:])
			if w.localKnown.has(lane+b, n) {
				w.localKnown.set(lane+a, n, size*lanes)
			}
		}
	}, none)
}

// fence decodes membar and fence.
func (d *decoder) fence() {
	if d.st.hasAny("proxy", "mbarrier_init") != "" || d.st.hasPrefix("proxy") {
		d.proxyFence()
		return
	}
	wide := d.st.hasAny("gl", "sys", "gpu", "cluster") != ""
	d.op(func(w *warp, _ *inst, _ uint32) { w.fence(wide) }, none)
}

func (d *decoder) proxyFence() {
	d.op(func(w *warp, _ *inst, _ uint32) { w.proxyFence() }, none)
}
