package cuda

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// ringBytes is what can be on its way to the device at a time: the integers of several steps.
const ringBytes = 1 << 20

// ring is pinned memory that integers go to the device from, and where they arrive. Its room is not
// used again until the device is done with all that was enqueued. The batch of a step has a ring of
// its own, since it is in use until the next one begins.
type ring struct {
	d     *Device
	host  []byte
	there driver.Ptr
	used  int
}

func (r *ring) init(d *Device) error {
	r.d = d
	return r.grow(ringBytes)
}

func (r *ring) grow(bytes int) (err error) {
	if r.host != nil {
		if err := r.d.ctx.Unpin(r.host); err != nil {
			return err
		}
		if err := r.d.ctx.Free(r.there); err != nil {
			return err
		}
	}
	r.host, r.used = nil, 0
	if r.host, err = r.d.ctx.Pin(bytes); err != nil {
		return fmt.Errorf("%d bytes of pinned memory for steps: %w", bytes, err)
	}
	if r.there, err = r.d.ctx.Alloc(uint64(bytes)); err != nil {
		return fmt.Errorf("%d bytes of device memory for steps: %w", bytes, err)
	}
	return nil
}

// ringAlign is what pieces of the ring begin at multiples of.
const ringAlign = 256

// room is n integers, to be written and sent.
func (r *ring) room(n int) ([]int32, driver.Ptr) {
	bytes := (4*n + ringAlign - 1) / ringAlign * ringAlign
	if r.used+bytes > len(r.host) {
		r.d.wait()
		r.used = 0
		if bytes > len(r.host) {
			r.d.check(r.grow(bytes + bytes/2))
		}
	}
	if r.d.err != nil {
		return make([]int32, n), 0
	}
	at := r.used
	r.used += bytes
	return unsafe.Slice((*int32)(unsafe.Pointer(&r.host[at])), n), r.there + driver.Ptr(at)
}

// send sends what was written to n integers of the ring.
func (r *ring) send(values []int32, to driver.Ptr) {
	if r.d.err != nil || len(values) == 0 {
		return
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), 4*len(values))
	r.d.check(r.d.ctx.Upload(to, b, r.d.stream))
}

// step is the batch at hand, where the device has it: always in the same place, laid out by its
// shape alone, so that what was recorded of a step can be done again for another one.
type step struct {
	ring  ring
	there scratch
	shape shape
	sent  []sent // what parts of the batch were sent, by where the host has them
	all   []int32
	lasts []int32 // the last position of each sequence

	tables, runsAt, last driver.Ptr
	counted              driver.Ptr // how each row counts that is sent to experts
	// turn is the batch's, places how many rows each place has.
	turn, places driver.Ptr
	// adapters are the places of the rows' adapters, of adapted rows: all or none.
	adapters driver.Ptr
	adapted  int

	// shared are the ways in which attention shared rows among blocks, items what these compute of
	// the batch in each of them.
	shared []sharing
	items  []items
}

// lists is how many of a batch's lists are sent as they are.
const lists = 12

// placeList is which of them says how many rows each place has.
const placeList = lists - 2

// shape is how a batch is laid out: where each list of integers begins. Batches of one shape differ
// in nothing that the launches of a step are made of.
type shape struct {
	lists              [lists]int
	tables, runs, last int
	counted, turn, end int
	// room is how many rows of each place are computed together, 0 where there is one place.
	room int
	// table is the entries of a sequence's block table, a power of two, runs the sequences among
	// the rows, each of which lie side by side.
	table, sequences int
	// pages is of how many pages angles are there.
	pages int
	// decode says that each sequence has few rows, however they are shared.
	decode bool
}

// fewRoom is for how many rows of the largest place steps are recorded on ranks that have fewer, or
// none.
const fewRoom = 64

// roomOf is how many rows of each place are computed together: those of the largest, filled up as
// steps are.
func roomOf(b *compute.Batch) int {
	if len(b.Split.Places) == 0 {
		return 0
	}
	return bucket(int(slices.Max(b.Split.Places)))
}

// sent is integers that the device has.
type sent struct {
	host *int32
	n    int
	at   driver.Ptr
}

// Begin sends a step's batch to the device, and the places of its rows' adapters, in one copy.
// Calls of the step that are given slices of the batch use them where they are.
func (d *Device) Begin(b *compute.Batch, adapters []int32) {
	s := &d.step
	d.flush()
	d.reclaim()
	parts := [lists][]int32{b.Tokens, b.Slots, b.Position, b.Seq, b.Types, b.States,
		b.Kept, b.Split.Slots, b.Split.Rows, b.Split.Wanted, b.Split.Places, adapters}
	s.layOut(b, &parts, d.padding(b))
	d.graphs.begin(&s.shape)
	values, _ := s.ring.room(len(s.all))
	copy(values, s.all)
	bytes := 4 * len(s.all)
	if s.there.bytes < bytes {
		s.there.grow(d, bytes)
	}
	s.ring.send(values, s.there.p)
	place := func(i int) driver.Ptr { return s.there.p + driver.Ptr(4*i) }
	s.sent = s.sent[:0]
	for i, list := range parts {
		if len(list) > 0 {
			s.sent = append(s.sent, sent{&list[0], len(list), place(s.shape.lists[i])})
		}
	}
	for i := range s.items {
		s.items[i] = s.items[i].placed(s.there.p)
	}
	s.tables, s.runsAt, s.last = place(s.shape.tables), place(s.shape.runs), place(s.shape.last)
	s.counted, s.turn = place(s.shape.counted), place(s.shape.turn)
	s.places = place(s.shape.lists[placeList])
	s.adapters, s.adapted = place(s.shape.lists[lists-1]), len(adapters)
}

// layOut makes all of a batch one list of integers. So many of the last rows only fill the step.
func (s *step) layOut(b *compute.Batch, parts *[lists][]int32, padding int) {
	s.all = s.all[:0]
	y := shape{table: 1, room: roomOf(b), pages: rotaryPages(b.Position)}
	for _, t := range b.Tables {
		for y.table < len(t) {
			y.table *= 2
		}
	}
	add := func(list []int32) int {
		at := len(s.all)
		s.all = append(s.all, list...)
		return at
	}
	for i, list := range parts {
		y.lists[i] = add(list)
	}
	y.tables = len(s.all)
	for _, t := range b.Tables {
		from := add(t)
		for len(s.all) < from+y.table {
			s.all = append(s.all, 0)
		}
	}
	y.runs = len(s.all)
	s.lasts = s.lasts[:0]
	for i, seq := range b.Seq {
		if i == 0 || b.Seq[i-1] != seq {
			s.all = append(s.all, int32(i))
			y.sequences++
		}
		for len(s.lasts) <= int(seq) {
			s.lasts = append(s.lasts, 0)
		}
		s.lasts[seq] = max(s.lasts[seq], b.Position[i])
	}
	s.all = append(s.all, int32(len(b.Seq)))
	y.last = add(s.lasts)
	y.counted = len(s.all)
	for i := range b.Seq {
		how := int32(countedByAll)
		if i >= len(b.Seq)-padding {
			how = notCounted
		}
		s.all = append(s.all, how)
	}
	for _, row := range b.Split.Rows {
		s.all[y.counted+int(row)] = countedAlone
	}
	y.turn = len(s.all)
	s.all = append(s.all, b.Turn)
	// Where another place has many rows more, steps of as many are too rare to be recorded.
	s.items, y.decode = s.items[:0], y.room <= max(2*len(b.Seq), fewRoom)
	for _, as := range s.shared {
		var it items
		s.all, it = addItems(s.all, b, as)
		s.items = append(s.items, it)
		y.decode = y.decode && it.many == 0
	}
	y.end = len(s.all)
	s.shape = y
}

// tablesOf is where the device has the tables of a group of the batch at hand.
func (s *step) tablesOf(b *compute.Batch, group int) driver.Ptr {
	return s.tables + driver.Ptr(4*group*len(b.TablesOf(group))*s.shape.table)
}

// integers are where the device has integers: those of the batch are there, others are sent.
func (d *Device) integers(list []int32) driver.Ptr {
	if len(list) == 0 {
		return 0
	}
	for i := range d.step.sent {
		s := &d.step.sent[i]
		// A part of what was sent: of what lies before it, too, this is more than there are.
		skipped := (uintptr(unsafe.Pointer(&list[0])) - uintptr(unsafe.Pointer(s.host))) / 4
		if skipped <= uintptr(s.n) && int(skipped)+len(list) <= s.n {
			return s.at + driver.Ptr(4*skipped)
		}
	}
	d.graphs.unfit = true
	values, there := d.ring.room(len(list))
	copy(values, list)
	d.ring.send(values, there)
	return there
}
