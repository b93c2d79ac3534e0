// Package weights carries new weights from where they come, a trainer's process or files, to the
// ranks of every engine. They lie in memory without a name (memfd): ranks of the driver's host map
// it, those of other hosts are sent its content. What is there is checked, tensor by tensor, before
// any rank is told of it.
package weights

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
	"github.com/eagleray/eagleray/internal/sys/memfile"
)

// Update describes a whole set of weights, for ranks as JSON. The driver's Update also owns the
// memory, which nothing writes to, until Close.
type Update struct {
	// ID is random: no other update has it.
	ID string `json:"id"`
	// Segments are the pieces of memory in which the tensors lie.
	Segments []Segment `json:"segments"`
	Tensors  []Tensor  `json:"tensors"`
	// Adapter, unless it is nil, says that the tensors are no model's, but an adapter's.
	Adapter *Adapter `json:"adapter,omitempty"`
	// Elsewhere lists copies of the segments in memory of ranks of other hosts.
	Elsewhere [][]Segment `json:"elsewhere,omitempty"`

	memory []memory
	digest func() string
	// copies are the copies on other hosts.
	copies *copies
	// spare receives the builder's memory at Close.
	spare *Spare
}

// Adapter is one that ranks load beside their model. ID is its number: of the adapters of a server
// no other ever has it.
type Adapter struct {
	ID uint32 `json:"id"`
	lora.Adapter
}

// Segment is memory of the driver's process.
type Segment struct {
	// PID and FD are the driver's process and its descriptor, Link what the system calls that: by
	// the random name in it another process knows that it has found the same memory.
	PID  int    `json:"pid"`
	FD   int    `json:"fd"`
	Link string `json:"link"`
	// Size is in bytes.
	Size int64 `json:"size"`
}

// Tensor is where a tensor lies.
type Tensor struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	// Segment is the number of the segment, Offset the first byte in it.
	Segment int   `json:"segment"`
	Offset  int64 `json:"offset"`
}

// Bytes is the size of all tensors.
func (u *Update) Bytes() (sum int64) {
	for i := range u.Tensors {
		n, _ := u.Tensors[i].size() // was checked when it was taken in
		sum += n
	}
	return sum
}

// size is the tensor's in bytes.
func (t *Tensor) size() (int64, error) {
	d, ok := checkpoint.ParseDType(t.DType)
	if !ok || !d.Weight() {
		return 0, fmt.Errorf("tensor %q has type %q; weights may be BF16, F16 or F32", t.Name,
			t.DType)
	}
	n := int64(d.Size())
	for _, s := range t.Shape {
		if s < 0 || s > 0 && n > math.MaxInt64/int64(s) {
			return 0, fmt.Errorf("tensor %q has shape %v", t.Name, t.Shape)
		}
		n *= int64(s)
	}
	return n, nil
}

// Range is a part of a segment.
type Range struct {
	Segment      int
	Offset, Size int64
}

// View is a part of the driver's memory.
func (u *Update) View(r Range) []byte {
	return u.memory[r.Segment].data[r.Offset : r.Offset+r.Size]
}

// Close frees the driver's memory; what was not adopted is kept for the next update. No rank may
// compute with this update any more.
func (u *Update) Close() {
	if len(u.memory) > 0 {
		u.spare.release(u.memory[0])
		closeAll(u.memory[1:])
	}
	u.memory = nil
}

// memory is a mapped descriptor.
type memory struct {
	file *os.File
	data []byte
}

func closeAll(list []memory) {
	for _, m := range list {
		m.close()
	}
}

func (m memory) close() {
	if m.data != nil {
		_ = unix.Munmap(m.data)
	}
	if m.file != nil {
		m.file.Close()
	}
}

// newMemory makes memory of a name that others cannot guess; it takes room as it is written.
func newMemory(name string, size int64) (memory, error) {
	f, err := memfile.Create(name, size)
	if err != nil {
		return memory{}, fmt.Errorf("weights: %w", err)
	}
	m := memory{file: f}
	if m.data, err = mapFile(m.file, size, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		m.close()
		return memory{}, err
	}
	return m, nil
}

// mapFile maps all of a file; of one without content it is nil.
func mapFile(f *os.File, size int64, prot int) ([]byte, error) {
	if size == 0 {
		return nil, nil
	}
	if size != int64(int(size)) {
		return nil, fmt.Errorf("%d bytes are more than can be mapped", size)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of weights: %w", size, err)
	}
	return data, nil
}

// segments describes memory of this process.
func segments(memory []memory) (list []Segment, err error) {
	for _, m := range memory {
		s, err := m.segment()
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// segment describes memory of this process.
func (m memory) segment() (Segment, error) {
	fd := int(m.file.Fd())
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return Segment{}, err
	}
	return Segment{PID: os.Getpid(), FD: fd, Link: link, Size: int64(len(m.data))}, nil
}
