package cuda

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// What peers.cu says of windows: how many blocks have a place, of how many ranks, with how many
// threads, and where elements begin.
const (
	mostPlaces  = 64
	mostRanks   = 8
	peerThreads = 512
	elementsAt  = 2 * 8 * mostRanks * mostPlaces
	windowBytes = 5 * driver.ExportGrain
	// slice is how many elements of a place's are in the window, twice: a row of most models.
	slice = (windowBytes - elementsAt) / (2 * 4 * mostPlaces) &^ 3
)

// HostComm has ranks exchange tensors through the memory of their machines.
type HostComm interface {
	AllReduce(x *compute.Tensor) error
	Gather(dst, x *compute.Tensor, root int) error
}

// HostGroup is the ranks' way to each other without their devices.
type HostGroup interface {
	AllGather(dst, x []float32) error
	AllToAll(dst, x []float32, counts, lengths []int) error
}

// Comm is a device's way to the ranks that it sums with. Where all of them reach the memory of all,
// each has a window that the others open, and kernels exchange what they need there, without the
// hosts (kernels/peers.cu). Else NCCL exchanges, where all of them have it, or the hosts do.
type Comm struct {
	d          *Device
	rank, size int
	host       HostComm
	group      HostGroup

	// windows are all ranks' where this device has them, nil else, which why explains; own is this
	// one's, former that of the group before.
	windows     []driver.Ptr
	own, former driver.Ptr
	why         string
	// places is how many blocks a launch has at most: so many are on every device at once.
	places int
	over   []byte // pinned: not 0 once nothing waits any more
	here   [unsafe.Sizeof(agreement{}) / 4]float32
	met    []float32

	// parts are those of all ranks that NCCL has gathered.
	parts scratch
	visitors

	left     chan struct{}
	watching sync.WaitGroup
	// mu is of what end and the rank's goroutine share: joined is this rank's communicator, nil for
	// none, gone says that the group has ended. Only that goroutine sets joined.
	mu     sync.Mutex
	joined *communicator
	gone   bool
}

// NewComm makes the way of one of several ranks: it leads through host until the first Connect.
func (d *Device) NewComm(rank, size int, host HostComm, group HostGroup) *Comm {
	c := &Comm{d: d, rank: rank, size: size, host: host, group: group, why: "no group yet"}
	c.met = make([]float32, size*len(c.here))
	return c
}

// Why is why ranks do not sum over the memory of their devices, "" where they do.
func (c *Comm) Why() string { return c.why }

// What is what the ranks exchange, in words, Way how.
func (c *Comm) What() string {
	if c.divides {
		return "rows of places"
	}
	return "sums of ranks"
}

// Way is described at What.
func (c *Comm) Way() string {
	switch {
	case c.windows != nil:
		return "over peer memory"
	case c.joined != nil:
		return "by NCCL " + driver.NCCLVersion(c.joined.version) + ": " + c.why
	}
	return "through the host: " + c.why
}

// offer is what a rank says of itself: numbers of fixed size, in the memory of the ranks' machines.
type offer struct {
	Why             [200]byte // why it cannot, if it cannot
	Late            uint32    // not 0 if it only waited for others
	Machine         [40]byte  // the boot that it runs in
	UUID            [64]byte  // of its device
	Handle          driver.Handle
	Multiprocessors uint32
	Version         uint32 // of NCCL
	ID              driver.CommID
}

func (o *offer) refuse(err error) {
	if late(err) {
		o.Late = 1
	}
	copy(o.Why[:len(o.Why)-1], err.Error())
}

// text is what is written in an array.
func text(b []byte) string { return string(b[:max(0, bytes.IndexByte(b, 0))]) }

// Connect joins the ranks of a new group, each of which calls it: all use windows, or all NCCL, or
// all their hosts. Once ended is closed no sum waits any more, until the next Connect. The error is
// the group's, or the device's.
func (c *Comm) Connect(ended <-chan struct{}) error {
	d := c.d
	c.Leave()
	d.comms = append(d.comms, c)
	own := c.open()
	if d.err != nil {
		return d.err
	}
	c.left, c.gone = make(chan struct{}), false
	left := c.left
	c.watching.Go(func() {
		select {
		case <-ended:
			c.end()
		case <-left:
		}
	})
	offers, err := c.exchange(&own)
	if err != nil {
		return err
	}
	d.free(c.former) // which no other has open: all ranks are in this group
	c.former = 0
	steps := []func([]offer) error{c.reach, func([]offer) error {
		return c.try("peer memory", c.endWindows)
	}}
	for _, step := range steps {
		if c.why = refusal(offers); c.why != "" {
			break
		}
		if err := step(offers); err != nil {
			own.refuse(err)
		}
		if d.err != nil {
			return d.err // which ends the group
		}
		if offers, err = c.exchange(&own); err != nil {
			return err
		}
	}
	if c.why = refusal(offers); c.why == "" {
		return d.err
	}
	c.closeWindows()
	return c.joinNCCL(&own, offers, ended)
}

// open makes a window, of zeros, and offers it.
func (c *Comm) open() (own offer) {
	d := c.d
	var err error
	if c.over == nil {
		if c.over, err = d.ctx.Pin(4); err != nil {
			d.check(fmt.Errorf("4 bytes of pinned memory: %w", err))
			return own
		}
	}
	atomic.StoreUint32(c.word(), 0)
	own.Multiprocessors = uint32(d.info.Multiprocessors)
	copy(own.UUID[:], d.info.UUID)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		own.refuse(err)
		return own
	}
	copy(own.Machine[:], boot)
	if c.size > mostRanks {
		own.refuse(fmt.Errorf("%d ranks, of at most %d", c.size, mostRanks))
		return own
	}
	c.own, c.former = d.alloc(windowBytes, "sums over ranks"), c.own
	if d.err != nil {
		return own
	}
	d.check(d.ctx.Fill(c.own, 0, windowBytes, d.stream))
	d.wait()
	if own.Handle, err = d.ctx.Export(c.own); err != nil {
		own.refuse(err)
	}
	return own
}

// word is where kernels look whether it is over.
func (c *Comm) word() *uint32 { return (*uint32)(unsafe.Pointer(unsafe.SliceData(c.over))) }

// endWindows has no sum of kernels wait any more, end none at all.
func (c *Comm) endWindows() { atomic.StoreUint32(c.word(), 1) }

func (c *Comm) end() {
	c.endWindows()
	c.mu.Lock()
	x := c.joined
	c.gone = true
	c.mu.Unlock()
	if x != nil {
		x.end(nil)
	}
}

// ended is compute.ErrEnded, and what is known of it, once what sums gave is not to be used.
func (c *Comm) ended() error {
	if c.joined != nil {
		return c.joined.ended()
	}
	if c.windows != nil && atomic.LoadUint32(c.word()) != 0 {
		return compute.ErrEnded
	}
	return nil
}

// exchange is what all ranks say.
func (c *Comm) exchange(own *offer) ([]offer, error) {
	all := make([]offer, c.size)
	floats := func(o *offer, n int) []float32 {
		return unsafe.Slice((*float32)(unsafe.Pointer(o)), n*int(unsafe.Sizeof(*o))/4)
	}
	err := c.group.AllGather(floats(&all[0], c.size), floats(own, 1))
	return all, err
}

// refusal is why some rank cannot, "" if all can. One that waited does not know why.
func refusal(offers []offer) (why string) {
	for r := range offers {
		o := &offers[r]
		if own := text(o.Why[:]); own != "" && (o.Late == 0 || why == "") {
			why = fmt.Sprintf("rank %d: %s", r, own)
			if o.Late == 0 {
				break
			}
		}
	}
	return why
}

// reach opens the windows of the others.
func (c *Comm) reach(offers []offer) error {
	d := c.d
	devices, err := d.driver.Devices()
	if err != nil {
		return err
	}
	c.windows = make([]driver.Ptr, c.size, mostRanks)
	c.places = mostPlaces
	for r := range offers {
		o := &offers[r]
		c.places = min(c.places, int(o.Multiprocessors))
		if r == c.rank {
			c.windows[r] = c.own
			continue
		}
		if o.Machine != offers[c.rank].Machine {
			return fmt.Errorf("rank %d is on another machine", r)
		}
		// A device that this process does not see may be reached all the same: the driver knows.
		other := slices.IndexFunc(devices, func(i driver.Info) bool {
			return i.UUID == text(o.UUID[:])
		})
		if other >= 0 && other != d.ordinal {
			ok, err := d.driver.Reaches(d.ordinal, other)
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("CUDA device %d does not reach the memory of %d", d.ordinal,
					other)
			}
		}
		if c.windows[r], err = d.ctx.Import(o.Handle); err != nil {
			return fmt.Errorf("memory of rank %d: %w", r, err)
		}
	}
	d.graphs.generation++ // addresses may be others'
	return nil
}

// Trials exchange known numbers, by several blocks, more often than a window has places for. The
// first sum by NCCL is of so many that ranks divide them.
const (
	trials      = 3
	trialLength = 5 * peerThreads
)

// try exchanges known numbers, by a way that end ends: a machine may say that devices reach each
// other where they do not, or where what is stored does not arrive.
func (c *Comm) try(way string, end func()) error {
	d := c.d
	late := time.AfterFunc(meetTimeout, end)
	defer late.Stop()
	var x, all compute.Tensor
	for k := range trials {
		length := trialLength
		if c.joined != nil && k == 0 && !c.divides {
			length = fewestDivided
		}
		d.Resize(&x, 1, length)
		v := x.Floats()
		for i := range v {
			v[i] = float32((c.rank + 1) * (i%1000 + k))
		}
		x.Memory.Filled()
		// Sums are of 2, 4 or 8 ranks.
		got, times, err := &x, []int{c.size * (c.size + 1) / 2}, error(nil)
		if c.divides {
			d.Resize(&all, c.size, length)
			got, times = &all, times[:0]
			for r := range c.size {
				times = append(times, r+1)
			}
			err = c.Gather(&all, &x, c.rank)
		} else {
			err = c.AllReduce(&x)
		}
		if err != nil {
			return err
		}
		values := got.Floats()
		if c.ended() != nil {
			return fmt.Errorf("a trial of %s: %w", way, errLate)
		}
		for i, got := range values {
			want := float32(times[i/length] * (i%length%1000 + k))
			if got != want && d.err == nil {
				return fmt.Errorf("a trial of %s gave %g for %g", way, got, want)
			}
		}
	}
	return nil
}

// closeWindows closes those of the others. This one's stays until they have closed it: Connect, or
// the end of the device, frees it.
func (c *Comm) closeWindows() {
	d := c.d
	if c.windows == nil {
		return
	}
	d.dropGraphs()
	d.wait()
	for r, p := range c.windows {
		if r != c.rank && p != 0 && d.err == nil {
			d.check(d.ctx.CloseImport(p))
		}
	}
	c.windows = nil
}

// Leave leaves the group: nothing waits for the others any more.
func (c *Comm) Leave() {
	if c.Asleep() {
		return
	}
	c.end()
	close(c.left)
	c.watching.Wait()
	c.left = nil
	c.closeWindows()
	c.leaveNCCL()
	c.why = "no group"
	c.d.comms = slices.DeleteFunc(c.d.comms, func(x *Comm) bool { return x == c })
}

// Sleep frees the windows of all ranks and what NCCL has, each of which calls it between two steps:
// Connect makes them again.
func (c *Comm) Sleep() error {
	if c.Asleep() {
		return nil
	}
	// No communicator ends before all ranks have what they gather by it.
	c.d.wait()
	if err := c.group.AllGather(c.met, c.here[:]); err != nil {
		return err
	}
	c.Leave()
	if err := c.group.AllGather(c.met, c.here[:]); err != nil {
		return err
	}
	c.d.free(c.own) // which all others have closed
	c.d.free(c.parts.p)
	c.own, c.parts, c.back = 0, scratch{}, compute.Tensor{}
	return c.d.err
}

// Asleep says that the ranks are not connected.
func (c *Comm) Asleep() bool { return c.left == nil }

// Begin is called before the first exchange of a step. It has the ranks meet, so that those that
// are about to compute different things notice, as exchanges through the host do each time; where
// NCCL exchanges they agree on the graph to record or to do again.
// enqueued says that the exchanges that follow are left to the device and may be recorded.
func (c *Comm) Begin() (enqueued bool, err error) {
	if !c.enqueues() {
		return false, nil
	}
	a := &c.d.graphs.agreed
	if c.d.graphs.void() {
		a.dropped = 1
	}
	*(*agreement)(unsafe.Pointer(&c.here)) = *a
	if err := c.group.AllGather(c.met, c.here[:]); err != nil || c.joined == nil {
		return true, err
	}
	*a = agreement{step: agreedFirst}
	for r := range c.size {
		a.join((*agreement)(unsafe.Pointer(&c.met[r*len(c.here)])))
	}
	return true, nil
}

// enqueues says that exchanges are left to the device.
func (c *Comm) enqueues() bool { return c.windows != nil || c.joined != nil }

// AllReduce replaces x by its sum over the ranks, added as a balanced binary tree over ranks. A sum
// of chunks that is pending is made on the way.
func (c *Comm) AllReduce(x *compute.Tensor) error {
	switch {
	case c.joined != nil:
		return c.sumGathered(x)
	case c.windows == nil:
		return c.host.AllReduce(x)
	}
	d, m := c.d, of(x.Memory)
	if p := &d.pending; p.sums != m || p.onto != nil || p.ranks != nil || p.chunks > 4 {
		d.flush()
		*p = pending{sums: m, parts: m.values, chunks: 1, rows: x.Rows, width: x.Width}
	}
	d.pending.ranks = c
	m.written()
	return nil
}

// norm makes the sum that is pending, of ranks, and y of what it is normalised; false says that
// places have no room for its rows.
func (c *Comm) norm(y *memory, weight driver.Ptr, eps float32) bool {
	p := &c.d.pending
	rows, width := p.rows, p.width
	if rows > c.places*(room(p.cut)/width) || width%4 != 0 {
		return false
	}
	all := c.exchanged(p.ofRanks(), rows*width)
	c.d.taken()
	all.N, all.Unit = int32(rows*width), int32(width)
	launch(c.d, kernels.NormRanks, [3]uint32{uint32(min(rows, c.places)), 1, 1},
		[3]uint32{normThreads, 1, 1}, 0, kernels.NormRanksParams{Ranks: all, Weight: weight,
			Y: y.values, Half: y.half(true), Type: c.d.half(), Eps: eps})
	return true
}

// Gather concatenates the rows of x of all ranks, in rank order, into dst on root.
func (c *Comm) Gather(dst, x *compute.Tensor, root int) error {
	switch {
	case c.joined != nil:
		return c.gatherAll(dst, x)
	case c.windows == nil:
		return c.host.Gather(dst, x, root)
	}
	p := kernels.RanksParams{Parts: at(x.Memory), Chunks: 1}
	if dst != nil {
		p.Y = at(dst.Memory)
		of(dst.Memory).written()
	}
	c.launch(kernels.GatherRanks, p, x.Rows*x.Width)
	return nil
}

// launch exchanges n elements, as many at a time as windows have room for. All ranks have the same
// launches, and each of the same grid.
func (c *Comm) launch(k kernels.ID, p kernels.RanksParams, n int) {
	p = c.exchanged(p, n)
	p.Unit = 4
	for most := c.places * room(p.Cut != 0); n > 0; n -= int(p.N) {
		p.N = int32(min(n, most))
		blocks := min((int(p.N)+4*peerThreads-1)/(4*peerThreads), c.places)
		launch(c.d, k, [3]uint32{uint32(blocks), 1, 1}, [3]uint32{peerThreads, 1, 1}, 0, p)
		p.Parts += driver.Ptr(4 * most)
		for _, to := range []*driver.Ptr{&p.X, &p.Y} {
			if *to != 0 {
				*to += driver.Ptr(4 * most)
			}
		}
	}
}

// room is how many sums a place has room for: of those that are cut for half as many.
func room(cut bool) int {
	if cut {
		return slice / 2 &^ 3
	}
	return slice
}

// exchanged are parameters with what all exchanges of n elements have.
func (c *Comm) exchanged(p kernels.RanksParams, n int) kernels.RanksParams {
	all := [mostRanks]driver.Ptr{}
	copy(all[:], c.windows)
	p.W0, p.W1, p.W2, p.W3 = all[0], all[1], all[2], all[3]
	p.W4, p.W5, p.W6, p.W7 = all[4], all[5], all[6], all[7]
	p.Over = driver.Ptr(uintptr(unsafe.Pointer(c.word())))
	p.Rank, p.Ranks, p.Slice = int32(c.rank), int32(c.size), slice
	p.Stride = uint64(n)
	if n%4 == 0 {
		p.Vector = 1
	}
	return p
}
