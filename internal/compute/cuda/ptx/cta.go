package ptx

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"unsafe"
)

const (
	// turn is how many instructions a warp executes before another may run, in round robin.
	turn = 4096
	// quantum is how many a block executes before other blocks may run on its goroutine: one that
	// waits for another block's memory does not wait for ever.
	quantum = 1 << 19
	// maxParked is how many such blocks a goroutine has before it starts no more.
	maxParked = 64
)

// cta is a block of threads that runs.
type cta struct {
	launch *launch
	mem    *Memory
	id     [3]uint32
	linear uint32
	// shared is the block's shared memory from address 0 on, the system's part included.
	shared   []byte
	start    unsafe.Pointer // of shared
	params   unsafe.Pointer
	warps    []*warp
	alive    int // warps that have not exited
	turn     int
	steps    uint64
	polls    bool // has looked at what another machine writes
	barriers [maxBarriers]barrier
	cache    []*allocation
	random   *rand.Rand
	stats    Stats
	check    *checker // nil without Machine.Check
	banks    bool
	mbarriers
}

func newCTA(l *launch) *cta {
	c := &cta{launch: l, mem: l.machine.Memory, cache: make([]*allocation, l.kernel.slots),
		banks: l.machine.Banks}
	words := make([]uint64, (uint64(l.shared)+15)/8)
	c.start = unsafe.Pointer(unsafe.SliceData(words))
	c.shared = unsafe.Slice((*byte)(c.start), l.shared)
	block := make([]uint64, (len(l.params)+7)/8+1)
	c.params = unsafe.Pointer(unsafe.SliceData(block))
	c.setParams(l.params)
	if l.machine.Check {
		c.check = newChecker(l)
	}
	for i := range l.warps {
		c.warps = append(c.warps, newWarp(c, i))
	}
	return c
}

func (c *cta) setParams(params []byte) {
	copy(unsafe.Slice((*byte)(c.params), len(params)), params)
}

func newWarp(c *cta, id int) *warp {
	k := c.launch.kernel
	w := &warp{cta: c, kernel: k, ops: k.mod.ops, code: k.code, id: id,
		r32: make([]lanes32, k.regs32), r64: make([]lanes64, k.regs64),
		pred: make([]uint32, k.preds), local: make([]byte, int(k.Local)*lanes)}
	for _, s := range k.constants {
		w.setConstant(s)
	}
	w.setSpecials()
	return w
}

func (w *warp) setConstant(c constant) {
	value := c.value
	if c.image {
		value += w.cta.launch.image
	}
	switch c.bank {
	case bank32:
		fill(w.r32[c.reg][:], uint32(value))
	case bank64:
		fill(w.r64[c.reg][:], value)
	case bankPred:
		w.pred[c.reg] = uint32(value)
	}
}

// begin makes it the block of a linear index.
func (c *cta) begin(linear uint32) {
	l := c.launch
	c.linear = linear
	c.id = [3]uint32{linear % l.grid[0], linear / l.grid[0] % l.grid[1],
		linear / l.grid[0] / l.grid[1]}
	for words := unsafe.Slice((*uint64)(c.start), (len(c.shared)+7)/8); len(words) > 0; {
		words = words[copy(words, poison64[:]):]
	}
	c.alive, c.turn, c.steps = len(c.warps), 0, 0
	c.barriers = [maxBarriers]barrier{}
	c.mbarriers.reset()
	if l.machine.Seed != 0 {
		c.random = rand.New(rand.NewPCG(l.machine.Seed, uint64(linear)+2))
	}
	if c.check != nil {
		c.check.begin(linear)
	}
	for _, w := range c.warps {
		w.reset(l.threads)
		w.clocks.begin(c, w.id)
	}
}

// work runs blocks until none is left. Several goroutines do so.
func (l *launch) work() {
	free := l.machine.pool.acquire(l)
	var parked []*cta
	var stats Stats
	var idle idling
	defer func() {
		l.machine.pool.release(l, free)
		l.mu.Lock()
		l.stats.add(&stats)
		l.mu.Unlock()
	}()
	for !l.failed.Load() {
		c := l.nextCTA(&parked, &free)
		if c == nil {
			return
		}
		done, err := c.advance()
		if err == nil {
			err = idle.after(c, done, len(parked))
		}
		stats.add(&c.stats)
		c.stats = Stats{}
		switch {
		case err != nil:
			l.fail(err)
		case done:
			free = append(free, c)
		default:
			parked = append(parked, c)
		}
	}
}

// nextCTA is a block to run: a new one, or one that was parked where there are many or no others.
func (l *launch) nextCTA(parked, free *[]*cta) *cta {
	if len(*parked) < maxParked {
		if at := l.next.Add(1) - 1; at < l.total {
			linear := uint32(at)
			if l.order != nil {
				linear = l.order[at]
			}
			var c *cta
			if n := len(*free); n > 0 {
				c = (*free)[n-1]
				*free = (*free)[:n-1]
			} else {
				c = newCTA(l)
			}
			c.begin(linear)
			return c
		}
	}
	if len(*parked) == 0 {
		return nil
	}
	c := (*parked)[0]
	*parked = (*parked)[1:]
	return c
}

// advance runs the block for a quantum or to its end. All that its instructions find wrong arrives
// here as a panic with a Fault.
func (c *cta) advance() (done bool, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *Fault:
			err = r
		default:
			err = c.broken(r)
		}
	}()
	c.polls = false
	for left := quantum; left > 0 && c.alive > 0 && !c.polls; {
		w, n := c.choose()
		ran := w.run(n)
		left -= ran + 1
		c.steps += uint64(ran)
		c.stats.Instructions += uint64(ran)
		if c.steps > c.launch.steps() {
			return false, w.fault(int(w.pc), -1,
				fmt.Sprintf("more than %d warp instructions", c.launch.steps()))
		}
		if c.launch.failed.Load() {
			return true, nil
		}
	}
	if c.alive == 0 {
		c.finishStores()
		c.tellOthers()
	}
	return c.alive == 0, nil
}

// broken is the fault of an error in this package: it must not end the program.
func (c *cta) broken(r any) error {
	f := c.warps[c.turn%len(c.warps)].fault(0, -1, "")
	f.What = fmt.Sprintf("internal error: %v\n%s", r, debug.Stack())
	return f
}

// choose is the warp that runs next, and for how many instructions at most.
func (c *cta) choose() (*warp, int) {
	n := turn
	if c.random != nil {
		n = 1 << c.random.IntN(12)
		c.turn = c.random.IntN(len(c.warps))
	} else {
		c.turn++
	}
	w := c.firstReady()
	if w == nil {
		c.landAwaited()
		w = c.firstReady()
	}
	if w == nil {
		panic(c.deadlock())
	}
	return w, n
}

// firstReady is the next warp that can run, nil if all wait.
func (c *cta) firstReady() *warp {
	for i := range c.warps {
		if w := c.warps[(c.turn+i)%len(c.warps)]; w.ready() {
			c.turn += i
			return w
		}
	}
	return nil
}

// ready says whether a warp can run.
func (w *warp) ready() bool { return w.state == running }

// deadlock says what each warp waits for.
func (c *cta) deadlock() *Fault {
	var what []string
	var at *warp
	for _, w := range c.warps {
		if w.state != exited {
			at = w
			line, text := w.kernel.source(int(w.pc) - 1)
			what = append(what, fmt.Sprintf("warp %d waits at line %d: %s%s", w.id, line, text,
				w.waitsFor()))
		}
	}
	f := at.fault(int(at.pc)-1, -1, "deadlock: "+strings.Join(what, "; "))
	f.Warp = -1
	return f
}

// lanesExit and warpExited note the ends of threads and of warps.
func (c *cta) lanesExit(w *warp, mask uint32) {
	w.waiting = 0 // those that wait look again who is missing
	if c.check == nil {
		return
	}
	arrived := uint32(0) // lanes whose copies end at an mbarrier
	all := w.underWay()
	for k := len(all) - 1; k >= 0; k-- {
		copied := &all[k]
		if copied.barrier != nil {
			arrived |= 1 << copied.lane
		} else if mask&^arrived>>copied.lane&1 != 0 {
			w.failLane(int(copied.lane), "exit before the copy of line %d has been waited for",
				copied.line)
		}
	}
}

func (c *cta) warpExited(w *warp) {
	c.alive--
	for id := range c.barriers {
		if b := &c.barriers[id]; b.arrived > 0 {
			c.complete(id)
		}
	}
}
