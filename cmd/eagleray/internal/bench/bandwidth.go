package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
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

// ReadBandwidth measures how many bytes a second the machine reads from memory with a number of
// threads that do nothing else: the floor of a step that reads all weights once. It takes about
// half a second.
func ReadBandwidth(threads int) (float64, error) {
	size := min(max(4*lastCacheBytes(), leastRead), mostRead)
	// Huge pages are what weights get too; without them the figure is lower and still true.
	memory, err := offheap.Map(size, offheap.HugePages)
	if err != nil {
		return 0, fmt.Errorf("measure the read bandwidth: %w", err)
	}
	// Nothing depends on the mapping being gone: the process ends soon.
	defer func() { _ = memory.Free() }()
	data := memory.Bytes()
	part := size / threads &^ 255
	each := func(f func(part []byte)) time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		for i := range threads {
			wg.Go(func() { f(data[i*part:][:part]) })
		}
		wg.Wait()
		return time.Since(start)
	}
	// Each thread touches its own part first, so that it lies near it. Pages of zeros could be
	// shared by the kernel: they are written.
	each(func(p []byte) {
		for i := 0; i < len(p); i += 64 {
			p[i] = byte(rand.Uint32())
		}
	})
	var sum atomic.Uint64
	var times []time.Duration
	for range 7 {
		times = append(times, each(func(p []byte) { sum.Add(readSum(p)) }))
	}
	runtime.KeepAlive(&sum)
	slices.Sort(times)
	return float64(part*threads) / times[len(times)/2].Seconds(), nil
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

// lastCacheBytes is the size of the largest cache the first core sees, 0 when the kernel does not
// say.
func lastCacheBytes() int {
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
