package weights

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/model/checkpoint"
)

// Staged is an update as a rank has it: the driver's memory, or a copy of it that is filled by Write.
type Staged struct {
	update Update
	memory []memory
	// mapped says that the memory is the driver's.
	mapped bool
}

// Open maps the memory of an update. Where that is not to be had, because the driver is on another
// host or may not be looked at, it makes memory of its own: Mapped is false, and all of Data is to be
// written.
func Open(u Update) (*Staged, error) {
	s := &Staged{update: u, mapped: true}
	for i := range u.Segments {
		m, err := u.Segments[i].open()
		if err != nil {
			s.mapped = false
			s.free()
			break
		}
		s.memory = append(s.memory, m)
	}
	for i := len(s.memory); i < len(u.Segments); i++ {
		m, err := newMemory("eagleray-weights-"+u.ID, u.Segments[i].Size)
		if err != nil {
			s.free()
			return nil, err
		}
		s.memory = append(s.memory, m)
	}
	return s, nil
}

// ID is that of the update.
func (s *Staged) ID() string { return s.update.ID }

// Mapped says that the memory is the driver's.
func (s *Staged) Mapped() bool { return s.mapped }

var errOther = errors.New("another process has this number")

// open maps a segment of another process of this host, or of this one.
func (g *Segment) open() (memory, error) {
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
	if err == nil && info.Size() != g.Size {
		err = errOther
	}
	if err == nil {
		m.data, err = mapFile(f, g.Size, unix.PROT_READ)
	}
	if err != nil {
		m.close()
		return memory{}, err
	}
	return m, nil
}

// Write fills a part of memory that is not mapped.
func (s *Staged) Write(segment int, offset int64, data []byte) error {
	if s.mapped {
		return nil
	}
	if segment < 0 || segment >= len(s.memory) {
		return fmt.Errorf("weights for segment %d of %d", segment, len(s.memory))
	}
	m := s.memory[segment].data
	if offset < 0 || offset > int64(len(m)) || int64(len(data)) > int64(len(m))-offset {
		return fmt.Errorf("weights for %d bytes from %d of a segment of %d", len(data), offset, len(m))
	}
	copy(m[offset:], data)
	return nil
}

// Checkpoint hands the memory over to a checkpoint of the tensors.
func (s *Staged) Checkpoint() (*checkpoint.Checkpoint, error) {
	tensors := make([]checkpoint.Tensor, len(s.update.Tensors))
	for i := range tensors {
		t := &s.update.Tensors[i]
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
	held := s.memory
	s.memory = nil
	return checkpoint.InMemory("update "+s.update.ID, tensors, func() error {
		for _, m := range held {
			m.close()
		}
		return nil
	}), nil
}

// Close gives back what was not handed over.
func (s *Staged) Close() { s.free() }

func (s *Staged) free() {
	for _, m := range s.memory {
		m.close()
	}
	s.memory = nil
}
