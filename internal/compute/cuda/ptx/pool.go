package ptx

import "sync"

// maxPooled is how many blocks' contexts a machine has beyond its launches.
const maxPooled = 64

// pool has the contexts of blocks that have ended: the next launch of the kernel need not make
// them.
type pool struct {
	mu   sync.Mutex
	free map[shape][]*cta
	n    int
}

// shape is what a context is made for.
type shape struct {
	kernel *Kernel
	mem    *Memory
	block  [3]uint32
	shared uint32
	image  uint64
	check  bool
}

func (l *launch) shape() shape {
	return shape{l.kernel, l.machine.Memory, l.block, l.shared, l.image, l.machine.Check}
}

// acquire is a context for a launch, if there is one.
func (p *pool) acquire(l *launch) []*cta {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.free[l.shape()]
	if len(all) == 0 {
		return nil
	}
	c := all[len(all)-1]
	p.free[l.shape()] = all[:len(all)-1]
	p.n--
	c.reuse(l)
	return []*cta{c}
}

// release returns one context of a launch that is over.
func (p *pool) release(l *launch, all []*cta) {
	if len(all) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n >= maxPooled || p.free == nil {
		p.free, p.n = map[shape][]*cta{}, 0
	}
	p.free[l.shape()] = append(p.free[l.shape()], all[0])
	p.n++
}

// reuse prepares a context for another launch of the same shape.
func (c *cta) reuse(l *launch) {
	c.launch, c.banks = l, l.machine.Banks
	c.setParams(l.params)
	clear(c.cache) // allocations may have been freed
	if c.check != nil {
		c.check.launch = l
	}
}
