package weights

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Staged is an update that a rank can load from: in the driver's memory, in that of another rank of
// its host, or in its own, which Receive fills. On another host than the driver's the tensors lie
// one after the other (packed), wherever the driver has them: how much memory that takes is known
// before an update comes.
type Staged struct {
	update Update
	memory []memory
	// drivers says that the memory belongs to the driver.
	drivers bool
	// own says that the memory belongs to this rank, which has received done bytes; Close returns
	// it to spare.
	own   bool
	done  int64
	spare *Spare
}

// Open maps the memory of an update, or a copy of another rank, if this process can.
func Open(u Update) *Staged {
	sizes := make([]int64, len(u.Segments))
	for i := range sizes {
		sizes[i] = u.Segments[i].Size
	}
	s := &Staged{update: u, memory: openAll(u.Segments, sizes)}
	s.drivers = s.memory != nil
	_, size := u.packed()
	for i := 0; i < len(u.Elsewhere) && s.memory == nil; i++ {
		s.memory = openAll(u.Elsewhere[i], []int64{size})
	}
	return s
}

// packed says where each tensor lies that was sent, and how much memory all take.
func (u *Update) packed() (offsets []int64, size int64) {
	return pack(len(u.Tensors), func(i int) int64 {
		n, _ := u.Tensors[i].size() // tensors finds what is wrong with it
		return n
	})
}

// pack lays things of some sizes out one after the other, each from a page on.
func pack(count int, size func(i int) int64) (offsets []int64, all int64) {
	page := int64(os.Getpagesize())
	for i := range count {
		offsets = append(offsets, all)
		all += (size(i) + page - 1) / page * page
	}
	return offsets, all
}

// openAll maps the segments of another process: nil when it cannot.
func openAll(at []Segment, sizes []int64) (list []memory) {
	if len(at) != len(sizes) {
		return nil
	}
	for i := range at {
		m, err := at[i].open(sizes[i])
		if err != nil {
			closeAll(list)
			return nil
		}
		list = append(list, m)
	}
	return list
}

// ID returns the update's id.
func (s *Staged) ID() string { return s.update.ID }

// Complete reports whether all bytes of the update are there.
func (s *Staged) Complete() bool {
	return s.memory != nil && (!s.own || s.done == s.update.Bytes())
}

// Segments returns this rank's memory for other ranks of the host: nil for the driver's memory and
// for an incomplete update.
func (s *Staged) Segments() ([]Segment, error) {
	if s.drivers || !s.Complete() {
		return nil, nil
	}
	return segments(s.memory)
}

var errOther = errors.New("another process has this number")

// open maps a segment, of a size, of another process of this host, or of this one.
func (g *Segment) open(size int64) (memory, error) {
	path := fmt.Sprintf("/proc/%d/fd/%d", g.PID, g.FD)
	if link, err := os.Readlink(path); err != nil || link != g.Link {
		return memory{}, errOther
	}
	f, err := os.Open(path)
	if err != nil {
		return memory{}, err
	}
	m := memory{file: f}
	info, err := f.Stat()
	if err == nil && (info.Size() != size || g.Size != size) {
		err = errOther
	}
	if err == nil {
		m.data, err = mapFile(f, size, unix.PROT_READ)
	}
	if err != nil {
		m.close()
		return memory{}, err
	}
	return m, nil
}

// Make allocates this rank's own memory for the update, from spare where it fits. Close returns it
// to spare.
func (s *Staged) Make(spare *Spare) error {
	_, size := s.update.packed()
	var err error
	if s.memory, err = spare.acquire(newID(), size); err != nil {
		return err
	}
	s.own, s.spare = true, spare
	_, err = s.tensors()
	return err
}

// Own reports whether the memory belongs to this process.
func (s *Staged) Own() bool { return s.own }

// Done returns the number of bytes received.
func (s *Staged) Done() int64 { return s.done }

// patience bounds the silence of the other end of a transfer.
const patience = 30 * time.Second

// Receive receives the bytes that Send sends, from Done on. It calls progress after each part.
func (s *Staged) Receive(c net.Conn, progress func()) error {
	offsets, _ := s.update.packed()
	return s.update.walk(s.done, func(tensor int, from, size int64) error {
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		at := offsets[tensor] + from
		n, err := io.ReadFull(c, s.memory[0].data[at:at+size])
		s.done += int64(n)
		progress()
		return err
	})
}

// Send writes the bytes of an update's tensors, one after the other, from byte from on.
func (u *Update) Send(c net.Conn, from int64) error {
	return u.walk(from, func(tensor int, from, size int64) error {
		if err := c.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		t := &u.Tensors[tensor]
		_, err := c.Write(u.View(Range{t.Segment, t.Offset + from, size}))
		return err
	})
}

// walk calls f with the tensors' bytes from byte from on, in pieces that are short to send: size
// bytes of a tensor, by its number.
func (u *Update) walk(from int64, f func(tensor int, from, size int64) error) error {
	const most = 1 << 20
	for i := range u.Tensors {
		t := &u.Tensors[i]
		size, err := t.size()
		if err != nil {
			return err
		}
		at := min(from, size)
		from -= at
		for ; at < size; at += most {
			if err := f(i, at, min(most, size-at)); err != nil {
				return err
			}
		}
	}
	return nil
}

// tensors are those of the update, in the memory.
func (s *Staged) tensors() ([]checkpoint.Tensor, error) {
	tensors := make([]checkpoint.Tensor, len(s.update.Tensors))
	offsets, _ := s.update.packed()
	for i := range tensors {
		t := s.update.Tensors[i]
		if !s.drivers {
			t.Segment, t.Offset = 0, offsets[i]
		}
		size, err := t.size()
		if err != nil {
			return nil, err
		}
		if t.Segment < 0 || t.Segment >= len(s.memory) {
			return nil, fmt.Errorf("tensor %q is in segment %d of %d", t.Name, t.Segment,
				len(s.memory))
		}
		m := s.memory[t.Segment].data
		if t.Offset < 0 || t.Offset > int64(len(m)) || size > int64(len(m))-t.Offset {
			return nil, fmt.Errorf("tensor %q is outside its segment", t.Name)
		}
		d, _ := checkpoint.ParseDType(t.DType) // as size has found
		tensors[i] = checkpoint.Tensor{Name: t.Name, DType: d, Shape: t.Shape,
			Data: m[t.Offset : t.Offset+size : t.Offset+size]}
	}
	return tensors, nil
}

// Checkpoint hands the memory over to a checkpoint of the tensors.
func (s *Staged) Checkpoint() (*checkpoint.Checkpoint, error) {
	tensors, err := s.tensors()
	if err != nil {
		return nil, err
	}
	held := *s
	s.memory = nil
	return checkpoint.InMemory("update "+s.update.ID, tensors, func() error {
		held.Close()
		return nil
	}), nil
}

// Close frees the memory that no checkpoint owns. This rank's own memory is kept for another
// update: no other rank may compute with it any more.
func (s *Staged) Close() {
	if s.own && s.memory != nil {
		s.spare.release(s.memory...)
	} else {
		closeAll(s.memory)
	}
	s.memory = nil
}
