package ptx

// instruction decodes a statement by its opcode.
func (d *decoder) instruction(st *statement) {
	t := typ{}
	if ts := st.types(); len(ts) > 0 {
		t = ts[0]
	}
	if d.arithmetic(st, t) || d.movement(st, t) || d.warpWide(st) {
		return
	}
	switch st.opcode {
	case "bra":
		d.branch()
	case "brx":
		d.branchIndex()
	case "call":
		d.call()
	case "ret", "exit":
		d.leave()
	case "trap", "brkpt":
		d.cur.ends = st.guard == "" && st.opcode == "trap"
		d.op(execTrap, none)
	case "membar", "fence":
		d.fence()
	case "griddepcontrol", "nanosleep", "prefetch", "prefetchu", "pmevent", "applypriority",
		"discard", "setmaxnreg", "stacksave", "stackrestore":
		d.nothing()
	default:
		d.failf("unknown instruction")
	}
}

// arithmetic decodes what computes, and says whether the opcode is one of those.
func (d *decoder) arithmetic(st *statement, t typ) bool {
	switch st.opcode {
	case "add", "sub", "mul", "min", "max", "addc", "subc":
		if t.float() {
			d.floatArith(t)
		} else {
			d.intArith(t)
		}
	case "fma":
		d.floatArith(t)
	case "mad", "madc":
		if t.float() {
			d.floatArith(t)
		} else {
			d.mad(t)
		}
	case "div", "rem":
		if t.float() {
			d.floatArith(t)
		} else {
			d.divide(t)
		}
	case "neg", "abs":
		if t.float() {
			d.floatArith(t)
		} else {
			d.unaryInt(t)
		}
	case "sad":
		d.sumOfDifferences(t)
	case "dp4a", "dp2a":
		d.dotProduct()
	case "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh":
		d.floatFunction(t)
	case "and", "or", "xor", "not":
		d.logic(t)
	case "cnot", "popc", "clz", "brev", "bfind":
		d.unaryInt(t)
	case "shl", "shr":
		d.shift(t)
	case "bfe", "bfi", "lop3", "prmt", "shf":
		d.fields(t)
	case "copysign":
		d.copySign(t)
	case "testp":
		d.testProperty(t)
	default:
		return false
	}
	if t.bits == 0 && st.opcode != "prmt" {
		d.failf("a type is wanted")
	}
	return true
}

// movement decodes what moves, compares and converts.
func (d *decoder) movement(st *statement, _ typ) bool {
	switch st.opcode {
	case "mov":
		d.move()
	case "cvt":
		d.convert()
	case "cvta":
		d.convertAddress()
	case "isspacep":
		d.isSpace()
	case "selp", "slct":
		d.selectOp()
	case "setp":
		d.setPredicate()
	case "set":
		d.set()
	case "ld", "ldu":
		d.load()
	case "st":
		d.store()
	case "atom", "red":
		d.atomic()
	case "createpolicy":
		d.policy()
	default:
		return false
	}
	return true
}

// warpWide decodes what a warp or a block does together.
func (d *decoder) warpWide(st *statement) bool {
	switch st.opcode {
	case "shfl":
		d.shuffle()
	case "vote":
		d.vote()
	case "match":
		d.match()
	case "redux":
		d.redux()
	case "activemask":
		d.activeMask()
	case "elect":
		d.elect()
	case "bar", "barrier":
		d.bar()
	case "ldmatrix", "stmatrix":
		d.matrixMove()
	case "mma":
		d.matrixMultiply()
	case "cp":
		if st.has("bulk") {
			d.bulkInstruction()
		} else {
			d.copyAsync()
		}
	case "mbarrier":
		d.mbarrierInstruction()
	case "wgmma":
		d.warpGroup()
	default:
		return false
	}
	return true
}

// policy decodes createpolicy, whose result is for cache hints only.
func (d *decoder) policy() {
	if len(d.st.args) > 0 {
		d.op(apply1(mov[lanes64]), d.dst(d.st.args[0], u64Type), d.zero(bank64))
	}
}

// sumOfDifferences decodes sad.
func (d *decoder) sumOfDifferences(t typ) {
	if !d.arity(4, 4) || !t.integer() {
		return
	}
	d.perLane(t, t, func(a, b, c uint64) uint64 {
		x, y := t.extended(a), t.extended(b)
		if t.signed() && int64(x) < int64(y) || !t.signed() && x < y {
			x, y = y, x
		}
		return t.truncated(x - y + c)
	})
}

// dotProduct decodes dp4a: four products of bytes and a sum.
func (d *decoder) dotProduct() {
	ts := d.st.types()
	if len(ts) != 2 || !d.arity(4, 4) || d.st.opcode != "dp4a" || ts[0].bits != 32 {
		d.failf("unknown instruction")
		return
	}
	x, y := typ{ts[0].class, 8, 1}, typ{ts[1].class, 8, 1}
	d.perLane(u32Type, u32Type, func(a, b, c uint64) uint64 {
		for k := range 4 {
			c += x.extended(a>>(8*k)) * y.extended(b>>(8*k))
		}
		return u32Type.truncated(c)
	})
}

// copySign decodes copysign: the sign of a with the magnitude of b.
func (d *decoder) copySign(t typ) {
	if !d.arity(3, 3) || !t.float() || t.bits < 32 {
		d.failf("unknown type")
		return
	}
	sign := uint64(1) << (t.bits - 1)
	d.perLane(t, t, func(a, b, _ uint64) uint64 { return a&sign | b&^sign })
}

// testProperty decodes testp.
func (d *decoder) testProperty(t typ) {
	name := d.st.hasAny("finite", "infinite", "number", "notanumber", "normal", "subnormal")
	if !d.arity(2, 2) || name == "" || !t.float() || t.bits != 32 {
		d.failf("unknown instruction")
		return
	}
	d.op(perLane(operands{d: bankPred, a: bank32}, func(a, _, _ uint64) uint64 {
		if hasProperty(name, uint32(a)&0x7fffffff) {
			return 1
		}
		return 0
	}), d.dst(d.st.args[0], predType), d.src(d.st.args[1], t))
}

func hasProperty(name string, a uint32) bool {
	const infinity, least = 0x7f800000, 0x00800000
	switch name {
	case "finite":
		return a < infinity
	case "infinite":
		return a == infinity
	case "number":
		return a <= infinity
	case "notanumber":
		return a > infinity
	case "normal":
		return a >= least && a < infinity
	}
	return a != 0 && a < least
}

// isSpace decodes isspacep: whether a generic address lies in a window.
func (d *decoder) isSpace() {
	if !d.arity(2, 2) {
		return
	}
	s := d.space()
	d.op(perLane(operands{d: bankPred, a: bank64}, func(a, _, _ uint64) uint64 {
		in := a-window(s) < windowSize
		if s == globalSpace || s == constSpace {
			in = a-sharedWindow >= 3*windowSize
		}
		if in {
			return 1
		}
		return 0
	}), d.dst(d.st.args[0], predType), d.src(d.st.args[1], u64Type))
}
