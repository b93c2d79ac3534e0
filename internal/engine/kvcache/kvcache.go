// Package kvcache manages the paged key/value cache: which blocks of device memory hold which
// tokens of which sequence. It is a pure state machine (no clock, goroutine, I/O or randomness)
// that knows block numbers only, never the memory behind them.
//
// A sequence's positions 0..n-1 lie in ceil(n/BlockSize) blocks, listed in its block table
// (PagedAttention, Kwon et al. 2023). With prefix caching a block that is full becomes a cache
// entry under the hash of its tokens and of everything before them, so a later sequence that begins
// with the same tokens takes the same blocks by reference instead of computing them again. A block
// that no sequence references stays an entry until it is needed for something else: least recently
// used first.
//
// A block that a sequence holds is reserved first, and no other's; it is computed when its keys
// and values are there for every plan that follows. Only then it is an entry. What a plan computes
// is so from that plan on (Grow); what comes from elsewhere when it has come (Allocate, then
// Cache).
//
// Layers may be in several groups, each of which has blocks of its own: then a table lists, for
// each BlockSize positions, which are a part of the sequence, a block of every group. Of layers
// with a window a sequence needs the blocks only that later positions still read: it gives the
// others up as it goes on (Slide), and its table has step.NoBlock in their place. They stay entries
// as any block that is free. A prefix is found again by all blocks of whole contexts and the last
// ones of windows, as many as the position after it reads (vLLM's HybridKVCacheCoordinator).
//
// Where layers keep a state of a sequence, blocks alone do not let another one go on: its state
// must have been kept, too (Snapshot). The manager knows the numbers of the places for them.
package kvcache

import (
	"fmt"
	"math"
	"sort"

	"github.com/eagleray/eagleray/internal/compute/grouping"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Config sizes a Manager.
type Config struct {
	// Blocks is the number of blocks in the cache; they are numbered from 0. No blocks are a model
	// that needs none: sequences take none then.
	Blocks int
	// BlockSize is the number of token positions in one block.
	BlockSize int
	// PrefixCaching lets sequences share full blocks with equal contents and equal past.
	PrefixCaching bool
	// Window, if positive, is how many positions back a position is read at most by layers with a
	// window, itself included: blocks that no later position reads are given up (Slide).
	Window int
	// Groups are those of the layers. One group is of windows if there is a Window.
	Groups grouping.Groups
	// Snapshots, if positive, is how many states of sequences can be kept: then a sequence goes on
	// from one only, and a prefix is found as far as one was kept of it (Snapshot).
	Snapshots int
	// Chunk is the most positions that a sequence grows by between two calls of Slide. It counts
	// only with a Window.
	Chunk int
}

// whole is how many groups are of whole contexts, the first ones; the others are of windows.
func (c *Config) whole() int {
	if c.Groups.Count() > 1 {
		return c.Groups.Whole
	}
	if c.Window > 0 {
		return 0
	}
	return 1
}

// parts is how many parts of a table n positions need.
func (c *Config) parts(n int) int {
	if c.Blocks == 0 {
		return 0
	}
	return (n + c.BlockSize - 1) / c.BlockSize
}

// BlocksFor returns the number of entries of a table of n token positions.
func (c *Config) BlocksFor(n int) int { return c.parts(n) * c.Groups.Count() }

// Most returns how many blocks a sequence of n positions holds at most at a time, if it slides.
func (c *Config) Most(n int) int {
	parts, whole := c.parts(n), c.whole()
	return whole*parts + (c.Groups.Count()-whole)*min(parts, c.span())
}

// span is how many blocks of a group lie, at least in part, within a window before a chunk, and the
// chunk.
func (c *Config) span() int {
	if c.Window == 0 {
		return math.MaxInt
	}
	return (c.Window-1+c.Chunk+c.BlockSize-2)/c.BlockSize + 1
}

// maxGroups is how many groups digests tell apart.
const maxGroups = 256

// none ends the lists that are threaded through the blocks.
const none = -1

// block is the state of one block. A block with no references is in the free list; a block that is
// an entry is in the list of its hash bucket; it may be in both.
type block struct {
	hash       digest
	plan       uint64 // at which it became an entry
	refs       int32
	prev, next int32 // free list
	chain      int32 // next entry of the same bucket
	snapshot   int32 // of an entry: the state after it, or none
	entry      bool
}

// Manager owns the blocks of one cache. It is not safe for concurrent use.
type Manager struct {
	Config
	size   int // tokens per block
	blocks []block
	// buckets and block.chain are a hash table without pointers or allocation: a bucket holds the
	// number of its newest entry. Two blocks may hold the same contents under the same hash (both
	// were computed, because a sequence must compute its last token itself); either may answer a
	// lookup.
	buckets []int32
	mask    uint64
	// The free list runs from the block to be used next to the one to be used last.
	freeHead, freeTail int32
	free               int
	entries            int
	plan               uint64
	snapshots          []snapshot

	hasher hasher

	queries, hits, evictions uint64
}

// New returns a Manager whose blocks are all free.
func New(c Config) (*Manager, error) {
	if c.Blocks < 0 || c.Blocks > math.MaxInt32 {
		return nil, fmt.Errorf("kvcache: Blocks is %d, must be 0 to %d", c.Blocks, math.MaxInt32)
	}
	if c.BlockSize < 1 {
		return nil, fmt.Errorf("kvcache: BlockSize is %d, must be at least 1", c.BlockSize)
	}
	if c.Window < 0 || c.Window > 0 && c.Chunk < 1 {
		return nil, fmt.Errorf("kvcache: Window is %d and Chunk %d, must not be negative, and "+
			"with a Window at least 1", c.Window, c.Chunk)
	}
	if g := c.Groups; g.Whole < 0 || g.Windowed < 0 || g.Count() > maxGroups ||
		g.Count() > 1 && (g.Whole == 0 || g.Windowed == 0 || c.Window == 0) {
		return nil, fmt.Errorf("kvcache: Groups is %v with a Window of %d, must be some of each "+
			"with a Window, %d at most", g, c.Window, maxGroups)
	}
	if c.Snapshots < 0 || c.Snapshots > 0 && c.Window > 0 {
		return nil, fmt.Errorf("kvcache: Snapshots is %d and Window %d, must not be negative, and "+
			"only one of them positive", c.Snapshots, c.Window)
	}
	m := &Manager{Config: c, size: c.BlockSize, blocks: make([]block, c.Blocks),
		snapshots: make([]snapshot, c.Snapshots)}
	if c.PrefixCaching {
		n := 1
		for n < c.Blocks {
			n *= 2
		}
		m.buckets = make([]int32, n)
		m.mask = uint64(n - 1)
	}
	m.hasher = newHasher(m.size)
	m.Reset()
	return m, nil
}

// Reset forgets the contents of every block, as after the loss of the memory behind them. Blocks
// that sequences hold stay theirs; free blocks are used in the order of their numbers again.
// Counters go on.
func (m *Manager) Reset() {
	for i := range m.buckets {
		m.buckets[i] = none
	}
	for i := range m.snapshots {
		m.snapshots[i] = snapshot{block: none}
	}
	m.entries, m.free = 0, 0
	m.freeHead, m.freeTail = none, none
	for i := range m.blocks {
		b := &m.blocks[i]
		b.entry, b.snapshot = false, none
		if b.refs == 0 {
			m.pushBack(int32(i))
		}
	}
}

// Plan says which plan the calls that follow belong to: the number never falls.
func (m *Manager) Plan(plan uint64) { m.plan = plan }

// Rewind forgets what plans after the given one were to compute, as when they were lost but the
// memory was not. No sequence holds blocks.
func (m *Manager) Rewind(plan uint64) {
	for i := range m.blocks {
		if b := &m.blocks[i]; b.entry && b.plan > plan {
			m.evict(int32(i))
		}
	}
	for i := range m.snapshots {
		if x := &m.snapshots[i]; x.block != none && x.plan > plan {
			m.discard(int32(i))
		}
	}
}

// First returns the first part of a sequence whose blocks of windows positions from pos on read.
func (c *Config) First(pos int) int {
	if c.Window == 0 {
		return 0
	}
	return max(0, pos-c.Window+1) / c.BlockSize
}

// Longest returns the greatest length of a sequence that all blocks have room for.
func (c *Config) Longest() int {
	return sort.Search(math.MaxInt32, func(n int) bool { return c.Most(n+1) > c.Blocks })
}

// Ahead returns how many of n positions a sequence has blocks of, which it may hold for as long as
// it computes nothing from pos on.
func (m *Manager) Ahead(pos, n int) int {
	if m.Window == 0 {
		return n
	}
	return min(n, pos+m.Chunk)
}

// Stats describes a Manager at one moment.
type Stats struct {
	// Blocks is the size of the cache, Used the blocks that sequences hold, Free the rest, all in
	// blocks.
	Blocks, Used, Free int
	// Entries is the number of blocks, used or free, that can answer a prefix lookup.
	Entries int
	// Queries and Hits count tokens since the beginning: those of started sequences that may read
	// the prefix cache, and those of them that were found. A sequence counts once, however often it
	// starts.
	Queries, Hits uint64
	// Evictions counts entries given up because their block was needed.
	Evictions uint64
	// Snapshots is how many states are kept.
	Snapshots int
}

// Stats returns the counters.
func (m *Manager) Stats() Stats {
	kept := 0
	for i := range m.snapshots {
		if m.snapshots[i].block != none {
			kept++
		}
	}
	return Stats{
		Snapshots: kept,
		Blocks:    len(m.blocks), Used: len(m.blocks) - m.free, Free: m.free, Entries: m.entries,
		Queries: m.queries, Hits: m.hits, Evictions: m.evictions,
	}
}

// allocate removes the next block from the free list and evicts the entry it may be. The list is
// not empty.
func (m *Manager) allocate() uint32 {
	i := m.freeHead
	m.unlink(i)
	if m.blocks[i].entry {
		m.evict(i)
		m.evictions++
	}
	m.blocks[i].refs = 1
	return uint32(i)
}

// share adds a reference to an entry.
func (m *Manager) share(i int32) {
	if m.blocks[i].refs == 0 {
		m.unlink(i)
	}
	m.blocks[i].refs++
}

// drop removes a reference of a table, unless that has none. A block without contents worth keeping
// is the first to be used again, an entry the last.
func (m *Manager) drop(entry uint32) {
	if entry == step.NoBlock {
		return
	}
	i := int32(entry)
	b := &m.blocks[i]
	b.refs--
	if b.refs > 0 {
		return
	}
	if b.entry {
		m.pushBack(i)
	} else {
		m.pushFront(i)
	}
}

func (m *Manager) pushBack(i int32) {
	b := &m.blocks[i]
	b.prev, b.next = m.freeTail, none
	if m.freeTail == none {
		m.freeHead = i
	} else {
		m.blocks[m.freeTail].next = i
	}
	m.freeTail = i
	m.free++
}

func (m *Manager) pushFront(i int32) {
	b := &m.blocks[i]
	b.prev, b.next = none, m.freeHead
	if m.freeHead == none {
		m.freeTail = i
	} else {
		m.blocks[m.freeHead].prev = i
	}
	m.freeHead = i
	m.free++
}

func (m *Manager) unlink(i int32) {
	b := &m.blocks[i]
	if b.prev == none {
		m.freeHead = b.next
	} else {
		m.blocks[b.prev].next = b.next
	}
	if b.next == none {
		m.freeTail = b.prev
	} else {
		m.blocks[b.next].prev = b.prev
	}
	m.free--
}
