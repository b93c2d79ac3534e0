package ptx

import "fmt"

// sharedBase is where the shared memory of a kernel begins: the first KiB is the system's (PTX ISA
// 10, %reserved_smem_offset_end), so that an address of zero is none of the kernel's.
const sharedBase = 1024

// MaxShared is the most bytes of shared memory, static and dynamic, that a block can have: 227 KiB.
const MaxShared = 227 << 10

// layout sets the places of the variables that a kernel and the functions it calls use.
func (d *decoder) layout(f *function) error {
	at, dynamicAlign := uint64(sharedBase), uint64(16)
	place := func(v *variable) {
		switch {
		case v.space == sharedSpace && v.external:
			dynamicAlign = max(dynamicAlign, uint64(v.align))
		case v.space == sharedSpace:
			if _, ok := d.shared[v]; !ok {
				at = alignUp(at, uint64(v.align))
				d.shared[v] = at
				at += v.size
			}
		}
	}
	if err := d.walk(f, map[*function]bool{}, place); err != nil {
		return err
	}
	if at-sharedBase > MaxShared {
		return fmt.Errorf("line %d: %d bytes of static shared memory", f.line, at-sharedBase)
	}
	if d.local > 1<<20 {
		return fmt.Errorf("line %d: %d bytes of local memory", f.line, d.local)
	}
	d.kernel.StaticShared = uint32(at - sharedBase)
	d.kernel.dynamicAt = uint32(alignUp(at, dynamicAlign))
	d.kernel.Local = uint32(alignUp(d.local, 16))
	return nil
}

// walk visits the shared variables that a function's instructions name, and those of the functions
// that it calls, and gives its local variables their places. Registers start anew.
func (d *decoder) walk(f *function, active map[*function]bool, place func(*variable)) error {
	if d.walked++; d.walked > 1<<12 {
		return fmt.Errorf("line %d: too many calls", f.line)
	}
	if active[f] {
		return fmt.Errorf("line %d: %s calls itself", f.line, f.name)
	}
	active[f] = true
	defer delete(active, f)
	seen := map[*scope]bool{}
	d.enter(f.scope, seen)
	if !f.entry {
		d.placeLocal(f.params)
		d.placeLocal(f.returns)
	}
	for i := range f.body {
		st := &f.body[i]
		d.enter(st.scope, seen)
		visit(st.args, func(name string) {
			if v := st.scope.variable(name); v != nil {
				place(v)
			}
		})
		if callee := d.mod.callee(st); callee != nil {
			if err := d.walk(callee, active, place); err != nil {
				return err
			}
		}
	}
	return nil
}

// enter forgets the registers of an earlier kernel, and places a scope's local variables.
func (d *decoder) enter(s *scope, seen map[*scope]bool) {
	if seen[s] || s == nil || s == d.mod.scope {
		return
	}
	seen[s] = true
	clear(s.resolved)
	d.enter(s.parent, seen)
	var locals []*variable
	for _, v := range s.ordered {
		if v.space == localSpace || v.space == paramSpace && v.inBody {
			locals = append(locals, v)
		}
	}
	d.placeLocal(locals)
}

// placeLocal gives variables a place in local memory. Parameters of calls are there too.
func (d *decoder) placeLocal(all []*variable) {
	for _, v := range all {
		d.local = alignUp(d.local, uint64(v.align))
		v.at, v.inLocal = d.local, true
		d.local += v.size
	}
}

func visit(args []operand, f func(name string)) {
	for i := range args {
		if args[i].name != "" {
			f(args[i].name)
		}
		visit(args[i].elems, f)
	}
}

// callee is the function that a statement calls, nil if it calls none.
func (m *Module) callee(st *statement) *function {
	if st.opcode != "call" {
		return nil
	}
	for _, o := range st.args {
		if f := m.functions[o.name]; o.kind == nameOperand && f != nil {
			return f
		}
	}
	return nil
}
