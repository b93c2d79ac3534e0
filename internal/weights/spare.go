package weights

import (
	"sync"

	"github.com/eagleray/eagleray/internal/model/checkpoint"
	"github.com/eagleray/eagleray/internal/offheap"
)

// Spare keeps the memory of one update that nobody uses any more for the next one: the system takes
// longer to find memory than bytes take to come into it. The zero Spare is empty. Its methods are safe
// for concurrent use.
type Spare struct {
	mu   sync.Mutex
	kept memory
}

// take returns memory of a size: what is kept, or new one.
func (s *Spare) take(id string, size int64) (memory, error) {
	s.mu.Lock()
	m := s.kept
	s.kept = memory{}
	s.mu.Unlock()
	if m.file != nil && int64(len(m.data)) == size {
		return m, nil
	}
	m.close()
	return newMemory("eagleray-weights-"+id, size)
}

// give keeps memory, unless there is some already.
func (s *Spare) give(m memory) {
	s.mu.Lock()
	full := s.kept.file != nil
	if !full {
		s.kept = m
	}
	s.mu.Unlock()
	if full {
		m.close()
	}
}

// Drop gives what is kept back to the system.
func (s *Spare) Drop() {
	s.mu.Lock()
	m := s.kept
	s.kept = memory{}
	s.mu.Unlock()
	m.close()
}

// Reserve has the system find the memory now that tensors of a type take. It keeps it.
func (s *Spare) Reserve(specs []checkpoint.Spec, d checkpoint.DType) error {
	offsets, size := layOut(specs)
	m, err := s.take(newID(), size)
	if err != nil {
		return err
	}
	err = each(len(specs), func(i int) error {
		if n := elements(specs[i].Shape) * int64(d.Size()); n > 0 {
			offheap.Populate(m.data[offsets[i] : offsets[i]+n])
		}
		return nil
	})
	s.give(m)
	return err
}
