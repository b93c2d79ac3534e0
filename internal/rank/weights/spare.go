package weights

import (
	"fmt"
	"slices"
	"sync"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// Spare keeps the memory of one update that is not used any more for the next one: the system takes
// longer to find memory than bytes take to come into it. The zero Spare is empty. Its methods are
// safe for concurrent use.
type Spare struct {
	mu   sync.Mutex
	kept []memory
}

// take returns memory of each size: what is kept, or new one.
func (s *Spare) take(id string, sizes ...int64) (list []memory, err error) {
	s.mu.Lock()
	kept := s.kept
	s.kept = nil
	s.mu.Unlock()
	for _, size := range sizes {
		i := slices.IndexFunc(kept, func(m memory) bool { return int64(len(m.data)) == size })
		if i >= 0 {
			list = append(list, kept[i])
			kept = slices.Delete(kept, i, i+1)
			continue
		}
		m, err := newMemory("eagleray-weights-"+id, size)
		if err != nil {
			closeAll(list)
			closeAll(kept)
			return nil, err
		}
		list = append(list, m)
	}
	closeAll(kept)
	return list, nil
}

// give keeps memory, unless there is some already.
func (s *Spare) give(list ...memory) {
	s.mu.Lock()
	full := len(s.kept) > 0
	if !full {
		s.kept = list
	}
	s.mu.Unlock()
	if full {
		closeAll(list)
	}
}

// Drop gives what is kept back to the system.
func (s *Spare) Drop() {
	s.mu.Lock()
	kept := s.kept
	s.kept = nil
	s.mu.Unlock()
	closeAll(kept)
}

// Room says which ranks are to have memory ready for updates that they are sent, and how much that
// is.
type Room struct {
	Ranks []int             `json:"ranks"`
	Specs []checkpoint.Spec `json:"specs"`
	DType string            `json:"dtype"`
}

// Reserve has the system find the memory now that tensors of a type take. It keeps it.
func (s *Spare) Reserve(specs []checkpoint.Spec, d checkpoint.DType) error {
	offsets, size := layOut(specs)
	return s.reserve(offsets, size, bytesOf(specs, d))
}

// ReserveSent does the same for tensors that are sent: see Staged.
func (s *Spare) ReserveSent(room *Room) error {
	d, ok := checkpoint.ParseDType(room.DType)
	if !ok {
		return fmt.Errorf("room for tensors of type %q", room.DType)
	}
	bytes := bytesOf(room.Specs, d)
	offsets, size := pack(len(room.Specs), bytes)
	return s.reserve(offsets, size, bytes)
}

func bytesOf(specs []checkpoint.Spec, d checkpoint.DType) func(i int) int64 {
	return func(i int) int64 { return elements(specs[i].Shape) * int64(d.Size()) }
}

func (s *Spare) reserve(offsets []int64, size int64, bytes func(i int) int64) error {
	m, err := s.take(newID(), size)
	if err != nil {
		return err
	}
	err = each(len(offsets), func(i int) error {
		if n := bytes(i); n > 0 {
			offheap.Populate(m[0].data[offsets[i] : offsets[i]+n])
		}
		return nil
	})
	s.give(m...)
	return err
}
