package ptx

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultSteps is the limit of warp instructions of a block where Machine.Steps is 0: some twenty
// seconds of one core.
const DefaultSteps = 1 << 28

// Machine runs kernels. Its fields are set before the first Launch; launches of one machine or of
// several may use the same memory, one after the other.
type Machine struct {
	// Memory is the device's memory.
	Memory *Memory
	// Threads is how many goroutines share the blocks of a launch; below 1 it is 1.
	Threads int
	// Seed chooses how warps take turns: 0 is round robin, each until it waits; any other value
	// starts a random sequence, in which blocks come in any order and one warp at a time runs far
	// ahead of the others. A kernel without races gives the same bits with every seed.
	Seed uint64
	// Check has uninitialised reads and races found, and copies that are not waited for. It makes a
	// kernel three to five times slower.
	Check bool
	// Banks has Stats.BankConflicts counted, which makes accesses of shared memory slower.
	Banks bool
	// Patience is how long blocks may do nothing but wait for another machine, two minutes if 0.
	Patience time.Duration
	// Steps is how many warp instructions a block may execute, DefaultSteps if 0.
	Steps uint64

	pool pool
}

// Stats are counts of a launch.
type Stats struct {
	// Instructions are those executed, each once for all the lanes of a warp that ran it together;
	// Mma of them were matrix products (mma, wgmma).
	Instructions, Mma uint64
	// GlobalRead and GlobalWritten are the bytes that lanes asked for, each lane's counted.
	GlobalRead, GlobalWritten uint64
	// SharedAccesses are warp instructions that accessed shared memory; BankConflicts the passes
	// beyond the first that their addresses need in 32 banks of 4 bytes (0 without Machine.Banks).
	SharedAccesses, BankConflicts uint64
}

func (s *Stats) add(o *Stats) {
	s.Instructions += o.Instructions
	s.Mma += o.Mma
	s.GlobalRead += o.GlobalRead
	s.GlobalWritten += o.GlobalWritten
	s.SharedAccesses += o.SharedAccesses
	s.BankConflicts += o.BankConflicts
}

// launch is what the blocks of one launch share.
type launch struct {
	machine  *Machine
	kernel   *Kernel
	grid     [3]uint32
	block    [3]uint32
	threads  int // of a block
	warps    int // of a block
	shared   uint32
	params   []byte
	image    uint64 // where the module's variables are
	order    []uint32
	total    uint64
	next     atomic.Uint64
	failed   atomic.Bool
	firstGid uint32
	number   uint64 // of the launches of the memory
	sync     globalSync

	mu    sync.Mutex
	fault error
	stats Stats
	knows devices // what blocks that have ended knew of other machines
}

// Launch runs a kernel with a grid of blocks to its end. dynShared are bytes of dynamic shared
// memory; params is the block of parameters as the kernel's declaration lays it out, of
// Kernel.ParamBytes. What the kernel does wrong is returned as a *Fault; other errors say what is
// wrong with the launch itself.
func (m *Machine) Launch(k *Kernel, grid, block [3]uint32, dynShared uint32, params []byte) (
	Stats, error) {
	l, err := m.prepare(k, grid, block, dynShared, params)
	if err != nil {
		return Stats{}, fmt.Errorf("ptx: launch of %s: %w", k.Name, err)
	}
	m.Memory.mu.RLock()
	defer m.Memory.launched(l)
	defer m.Memory.mu.RUnlock()
	var group sync.WaitGroup
	for range min(uint64(max(1, m.Threads)), l.total) - 1 {
		group.Go(l.work)
	}
	l.work()
	group.Wait()
	return l.stats, l.fault
}

func (m *Machine) prepare(k *Kernel, grid, block [3]uint32, dynShared uint32, params []byte) (
	*launch, error) {
	if err := k.Decode(); err != nil {
		return nil, err
	}
	l := &launch{machine: m, kernel: k, grid: grid, block: block, params: params}
	limits := [2][3]uint32{{1<<31 - 1, 65535, 65535}, {1024, 1024, 64}}
	for i := range 3 {
		if grid[i] == 0 || grid[i] > limits[0][i] {
			return nil, fmt.Errorf("grid of %v", grid)
		}
		if block[i] == 0 || block[i] > limits[1][i] {
			return nil, fmt.Errorf("block of %v", block)
		}
	}
	l.total = uint64(grid[0]) * uint64(grid[1]) * uint64(grid[2])
	l.threads = int(block[0]) * int(block[1]) * int(block[2])
	l.warps = (l.threads + lanes - 1) / lanes
	if l.threads > 1024 || k.MaxThreads > 0 && l.threads > k.MaxThreads {
		return nil, fmt.Errorf("%d threads in a block, more than 1024 or than .maxntid", l.threads)
	}
	if l.total > 1<<32-1 {
		return nil, errors.New("too many blocks")
	}
	if len(params) != k.ParamBytes {
		return nil, fmt.Errorf("%d bytes of parameters, not %d", len(params), k.ParamBytes)
	}
	if end := uint64(k.dynamicAt) + uint64(dynShared); end > sharedBase+MaxShared {
		return nil, fmt.Errorf("%d bytes of shared memory, of at most %d",
			end-sharedBase, MaxShared)
	}
	l.shared = k.dynamicAt + dynShared
	var err error
	if l.image, err = m.Memory.load(k.mod); err != nil {
		return nil, err
	}
	l.shuffle()
	m.Memory.mu.Lock()
	m.Memory.launches++
	l.number = m.Memory.launches
	l.firstGid = m.Memory.nextWarps(uint64(l.total) * uint64(l.warps))
	m.Memory.mu.Unlock()
	return l, nil
}

// shuffle sets the order of blocks that the seed means; huge grids stay in order.
func (l *launch) shuffle() {
	if l.machine.Seed == 0 || l.total > 1<<22 {
		return
	}
	l.order = make([]uint32, l.total)
	for i := range l.order {
		l.order[i] = uint32(i)
	}
	r := rand.New(rand.NewPCG(l.machine.Seed, 1))
	r.Shuffle(len(l.order), func(i, j int) { l.order[i], l.order[j] = l.order[j], l.order[i] })
}

// steps is the limit of a block.
func (l *launch) steps() uint64 {
	if l.machine.Steps > 0 {
		return l.machine.Steps
	}
	return DefaultSteps
}

// fail notes the first fault.
func (l *launch) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == nil {
		l.fault = err
	}
	l.failed.Store(true)
}
