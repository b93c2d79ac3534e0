package weights

import (
	"fmt"
	"slices"
	"sync"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// Spare keeps the memory of a retired update for the next one: faulting in fresh memory takes
// longer than receiving the bytes. The zero Spare is empty; nil keeps none. Its methods are safe
// for concurrent use.
type Spare struct {
	mu   sync.Mutex
	free []memory
}

// acquire returns memory of each size, free or new.
func (s *Spare) acquire(id string, sizes ...int64) (list []memory, err error) {
	kept := s.popAll()
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

// popAll returns the free memory, which is the caller's then.
func (s *Spare) popAll() []memory {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.free
	s.free = nil
	return kept
}

// release keeps memory for the next update, unless some is free already.
func (s *Spare) release(list ...memory) {
	if s != nil {
		s.mu.Lock()
		if len(s.free) == 0 {
			s.free, list = list, nil
		}
		s.mu.Unlock()
	}
	closeAll(list)
}

// Drop returns the free memory to the system.
func (s *Spare) Drop() { closeAll(s.popAll()) }

// Room lists the ranks that reserve memory for updates that they are sent, and the tensors that it
// must hold.
type Room struct {
	Ranks []int             `json:"ranks"`
	Specs []checkpoint.Spec `json:"specs"`
	DType string            `json:"dtype"`
}

// Reserve faults in the memory for tensors of a type, and keeps it.
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
	m, err := s.acquire(newID(), size)
	if err != nil {
		return err
	}
	err = each(len(offsets), func(i int) error {
		if n := bytes(i); n > 0 {
			offheap.Populate(m[0].data[offsets[i] : offsets[i]+n])
		}
		return nil
	})
	s.release(m...)
	return err
}
