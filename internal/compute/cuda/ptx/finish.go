package ptx

// finish resolves branches, numbers registers and fills in the kernel.
func (d *decoder) finish() error {
	for i := range d.code {
		fix := d.notes[i].fix
		if fix == nil {
			continue
		}
		var targets []int32
		for _, to := range fix.to {
			targets = append(targets, int32(fix.frame.start[to]))
		}
		if d.code[i].ext != nil {
			d.code[i].ext.targets = targets
		} else {
			d.code[i].imm = uint64(targets[0])
		}
	}
	d.order()
	k := d.kernel
	k.code = d.code
	for i := range d.notes {
		k.lines = append(k.lines, d.notes[i].st.line)
		k.texts = append(k.texts, d.notes[i].st.text)
	}
	d.renumber()
	return nil
}

// renumber gives each virtual register its place in its bank.
func (d *decoder) renumber() {
	k := d.kernel
	places, count := d.allocate()
	place := func(r *int32) {
		if *r != none {
			*r = places[*r]
		}
	}
	for i := range d.code {
		in := &d.code[i]
		for _, r := range []*int32{&in.d, &in.a, &in.b, &in.c, &in.guard} {
			place(r)
		}
		if in.ext == nil {
			continue
		}
		for j := range in.ext.dsts {
			place(&in.ext.dsts[j])
		}
		for j := range in.ext.srcs {
			place(&in.ext.srcs[j])
		}
	}
	for i := range k.constants {
		place(&k.constants[i].reg)
	}
	for i := range k.specials {
		place(&k.specials[i].reg)
	}
	k.regs32, k.regs64 = int(count[bank32])+2, int(count[bank64])
	k.preds = int(count[bankPred])
}
