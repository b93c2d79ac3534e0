package ptx

import "sync"

// The race detector orders accesses by vector clocks (Flanagan and Freund, "FastTrack", 2009), one
// entry for each warp. A warp's own entry, its epoch, grows with each thing it releases.
//
// A barrier of the block, an arrival at an mbarrier and the wait for its phase, and releasing and
// acquiring atomics order warps as PTX ISA 8.8 and 8.9 say. So do fences with strong accesses
// beside them, as __threadfence() and atomicAdd are used together; a fence of one lane counts for
// its whole warp, which is kinder than the ISA.

// clock is what is known of other warps' epochs: of the block's own warps by their index, of others
// by the number of the warp.
type clock struct {
	local   []uint32
	foreign map[uint32]uint32
}

func (c *clock) reset() {
	clear(c.local)
	clear(c.foreign)
}

// join adds all that another clock knows.
func (c *clock) join(o *clock) {
	if len(c.local) < len(o.local) {
		c.local = append(c.local, make([]uint32, len(o.local)-len(c.local))...)
	}
	for i, e := range o.local {
		c.local[i] = max(c.local[i], e)
	}
	if len(o.foreign) > 0 && c.foreign == nil {
		c.foreign = map[uint32]uint32{}
	}
	for gid, e := range o.foreign {
		c.foreign[gid] = max(c.foreign[gid], e)
	}
}

// clocks is a warp's place in the order of things.
type clocks struct {
	now clock
	gid uint32 // the warp's number in its memory
	// fenced is what the last fence of the device's scope releases with strong writes after it;
	// heard is what strong reads have seen, for the next fence to acquire.
	fenced, heard clock
	hasFenced     bool
	// proxied is the epoch before the last fence.proxy.async, proxySeen what the warp knew then.
	proxied   uint32
	proxySeen []uint32
	// told is the last of its own epochs that it has acquired: its copies before that have landed.
	told uint32
	// seq counts accesses of memory, synced is the last before a warp-synchronous instruction.
	seq, synced uint32
}

func (c *clocks) begin(block *cta, id int) {
	if block.check == nil {
		return
	}
	n := len(block.warps)
	if len(c.now.local) != n {
		c.now.local = make([]uint32, n)
	}
	c.now.reset()
	c.fenced.reset()
	c.heard.reset()
	c.hasFenced = false
	c.seq, c.synced, c.proxied, c.told = 0, 0, 0, 0
	clear(c.proxySeen)
	c.now.local[id] = 1
	c.gid = block.check.firstGid + uint32(id)
}

// release adds what the warp knows to a clock, and begins its next epoch.
func (w *warp) release(c *clock) {
	if w.cta.check == nil {
		return
	}
	c.join(&w.now)
	w.now.local[w.id]++
}

// acquire orders all that was released to a clock before what the warp does next.
func (w *warp) acquire(c *clock) {
	if w.cta.check == nil {
		return
	}
	if len(c.local) > w.id {
		w.told = max(w.told, c.local[w.id])
	}
	w.now.join(c)
}

// fence is membar and fence; wide ones are of the device's scope or more.
func (w *warp) fence(wide bool) {
	if w.cta.check == nil {
		return
	}
	w.now.join(&w.heard)
	w.heard.reset()
	if !wide {
		return
	}
	w.fenced.reset()
	w.fenced.join(&w.now)
	w.hasFenced = true
	w.now.local[w.id]++
}

// proxyFence makes writes of the generic proxy visible to the asynchronous one, and mbarriers that
// have been initialised.
func (w *warp) proxyFence() {
	for _, b := range w.cta.mbarriers.all {
		b.fenced = true
	}
	if w.cta.check == nil {
		return
	}
	w.proxied = w.now.local[w.id]
	w.proxySeen = append(w.proxySeen[:0], w.now.local...)
	w.now.local[w.id]++
}

// globalSync has the clocks of strong writes to global memory, by address. Their entries are all
// foreign ones.
type globalSync struct {
	mu   sync.Mutex
	vars map[uint64]*clock
}

// export is a clock with the numbers of all warps, as other blocks know them.
func (w *warp) export(c *clock) *clock {
	out := &clock{foreign: map[uint32]uint32{}}
	for i, e := range c.local {
		if e > 0 {
			out.foreign[w.cta.check.firstGid+uint32(i)] = e
		}
	}
	for gid, e := range c.foreign {
		out.foreign[gid] = e
	}
	return out
}

// enter adds a clock of global memory's to a warp's: entries of the own block are local ones.
func (w *warp) enter(to, c *clock) {
	n := uint32(len(w.cta.warps))
	local := clock{local: make([]uint32, n), foreign: map[uint32]uint32{}}
	for gid, e := range c.foreign {
		if i := gid - w.cta.check.firstGid; i < n {
			local.local[i] = e
		} else {
			local.foreign[gid] = e
		}
	}
	to.join(&local)
}

// released is what a strong write publishes, nil for nothing.
func (w *warp) released(release bool) *clock {
	switch {
	case release:
		return &w.now
	case w.hasFenced:
		return &w.fenced
	}
	return nil
}

// announce is the releasing side of a strong write.
func (w *warp) announce(s *segment, a *access, overwrites bool) {
	if s.in != nil && s.in.ledger != nil {
		w.tell(s, a)
	}
	c := w.released(a.release)
	if c == nil && !overwrites || s.space != sharedSpace && s.space != globalSpace {
		return
	}
	for m := s.group; m != 0; m &= m - 1 {
		i := firstLane(m)
		if s.space == sharedSpace || a.scopeCTA {
			w.publish(w.cta.check.vars, s.address(w.ea[i]), c, overwrites)
			continue
		}
		g := &w.cta.launch.sync
		g.mu.Lock()
		if g.vars == nil {
			g.vars = map[uint64]*clock{}
		}
		var exported *clock
		if c != nil {
			exported = w.export(c)
		}
		w.publish(g.vars, s.in.base+w.ea[i], exported, overwrites)
		g.mu.Unlock()
	}
	if a.release {
		w.now.local[w.id]++
	}
}

// address is that of an offset in the segment: those of shared and global memory do not overlap.
func (s *segment) address(offset uint64) uint64 {
	if s.in != nil {
		return s.in.base + offset
	}
	return offset
}

// publish adds to an address's clock, or replaces it where a plain store ends the sequence of
// atomics before it.
func (w *warp) publish(vars map[uint64]*clock, at uint64, c *clock, overwrites bool) {
	v := vars[at]
	if v == nil {
		if c == nil {
			return
		}
		v = &clock{}
		vars[at] = v
	}
	if overwrites {
		v.reset()
	}
	if c != nil {
		v.join(c)
	}
}

// observe is the acquiring side of a strong read.
func (w *warp) observe(s *segment, a *access) {
	if s.in != nil && s.in.ledger != nil {
		w.hear(s, a)
	}
	to := &w.heard
	if a.acquire {
		to = &w.now
	}
	for m := s.group; m != 0; m &= m - 1 {
		i := firstLane(m)
		switch {
		case s.space == sharedSpace || a.scopeCTA:
			if c := w.cta.check.vars[s.address(w.ea[i])]; c != nil {
				to.join(c)
			}
		case s.space == globalSpace:
			g := &w.cta.launch.sync
			g.mu.Lock()
			if c := g.vars[s.in.base+w.ea[i]]; c != nil {
				w.enter(to, c)
			}
			g.mu.Unlock()
		}
	}
}
