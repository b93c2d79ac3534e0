// Package bandwidth measures how many bytes a second this machine reads from memory.
package bandwidth

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// Sizes of the memory that is read: well beyond the last cache, and affordable.
const (
	leastRead = 128 << 20
	mostRead  = 1 << 30
)

// Reader reads memory with a number of threads that do nothing else: the floor of whatever reads as
// many bytes once.
type Reader struct {
	threads, part int
	memory        offheap.Memory
	sum           atomic.Uint64
}

// NewReader takes size bytes of memory, and no less than each thread can read; 0 is well beyond the
// last cache. Close gives them back.
func NewReader(threads, size int) (*Reader, error) {
	if size == 0 {
		size = beyond(LastCacheBytes())
	}
	r := &Reader{threads: threads, part: max(size/threads&^255, 256)}
	// Huge pages are what weights get too; without them the figure is lower and still true.
	memory, err := offheap.Map(r.part*threads, offheap.HugePages)
	if err != nil {
		return nil, fmt.Errorf("measure the read bandwidth: %w", err)
	}
	r.memory = memory
	// Each thread touches its own part first, so that it lies near it. Pages of zeros could be
	// shared by the kernel: they are written.
	r.each(func(p []byte) {
		for i := 0; i < len(p); i += 64 {
			p[i] = byte(rand.Uint32())
		}
	})
	return r, nil
}

// beyond is how many bytes are read where the last cache has so many, 0 if that is not known.
func beyond(cache int) int { return min(max(4*cache, leastRead), mostRead) }

// Close gives the memory back.
func (r *Reader) Close() error { return r.memory.Free() }

// Bytes is how many a reading reads.
func (r *Reader) Bytes() int { return r.part * r.threads }

// Read reads all once, and returns the time that it took.
func (r *Reader) Read() time.Duration {
	return r.each(func(p []byte) { r.sum.Add(readSum(p)) })
}

// ReadPart reads one thread's part.
func (r *Reader) ReadPart(part int) { r.sum.Add(readSum(r.memory.Bytes()[part*r.part:][:r.part])) }

// Rate is the median of three readings, in bytes a second.
func (r *Reader) Rate() float64 {
	times := []time.Duration{r.Read(), r.Read(), r.Read()}
	slices.Sort(times)
	return float64(r.Bytes()) / times[1].Seconds()
}

func (r *Reader) each(f func(part []byte)) time.Duration {
	data := r.memory.Bytes()
	start := time.Now()
	var wg sync.WaitGroup
	for i := 1; i < r.threads; i++ {
		wg.Go(func() { f(data[i*r.part:][:r.part]) })
	}
	f(data[:r.part])
	wg.Wait()
	return time.Since(start)
}

// readSum touches every cache line of memory, in four streams, and does nothing else.
func readSum(data []byte) uint64 {
	v := unsafe.Slice((*[8]uint64)(unsafe.Pointer(&data[0])), len(data)/64)
	n := len(v) / 4
	v0, v1, v2, v3 := v[:n], v[n:][:n], v[2*n:][:n], v[3*n:][:n]
	var a, b, c, d uint64
	for i := range v0 {
		a += v0[i][0]
		b += v1[i][0]
		c += v2[i][0]
		d += v3[i][0]
	}
	return a + b + c + d
}

// LastCacheBytes is the size of the largest cache the first core sees, 0 when the kernel does not
// say.
func LastCacheBytes() int {
	most := 0
	for i := range 8 {
		raw, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu0/cache/index%d/size", i))
		if err != nil {
			break
		}
		text := strings.TrimSpace(string(raw))
		unit := 1
		for letter, size := range map[string]int{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
			if rest, ok := strings.CutSuffix(text, letter); ok {
				text, unit = rest, size
				break
			}
		}
		if n, err := strconv.Atoi(text); err == nil {
			most = max(most, n*unit)
		}
	}
	return most
}
