package worker

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/eagleray/eagleray/internal/link/status"
)

// useEvery is the time between two looks at what the process uses, measureEvery that between two at
// its GPU: the driver is asked ten times then, each a call of the kernel.
const (
	useEvery     = time.Second
	measureEvery = 5 * useEvery
)

// watchUse publishes what the process uses once a second, and every 5 s what the meter says of its
// GPU, until the function that it returns is called. meter is called at the first look, and may
// return nil. After that nothing is allocated.
func watchUse(r *status.Rank, meter func() Meter) (end func()) {
	ended, stopped := make(chan struct{}), make(chan struct{})
	u := openUse()
	r.Uses(0, u.memory())
	go func() {
		defer close(stopped)
		defer u.close()
		tick := time.NewTicker(useEvery)
		defer tick.Stop()
		var measure Meter
		var figures status.GPU
		for ticks := time.Duration(0); ; ticks++ {
			select {
			case <-ended:
				return
			case <-tick.C:
				r.Uses(u.cpu(), u.memory())
			}
			if ticks == 0 {
				measure = meter()
			}
			if measure != nil && ticks%(measureEvery/useEvery) == 0 {
				measure(&figures)
				r.Measures(&figures)
			}
		}
	}()
	return func() {
		close(ended)
		<-stopped
	}
}

// use measures this process.
type use struct {
	statm *os.File // nil where there is no /proc
	buf   [128]byte
	at    time.Time
	ran   time.Duration
}

func openUse() *use {
	u := &use{at: time.Now(), ran: processorTime()}
	if f, err := os.Open("/proc/self/statm"); err == nil {
		u.statm = f
	}
	return u
}

func (u *use) close() { _ = u.statm.Close() } // of nil an error, which says nothing

// cpu is the share of a processor used since the last call, in thousandths.
func (u *use) cpu() uint64 {
	now, ran := time.Now(), processorTime()
	elapsed, used := now.Sub(u.at), ran-u.ran
	u.at, u.ran = now, ran
	if elapsed <= 0 || used < 0 {
		return 0
	}
	return uint64(used * 1000 / elapsed)
}

// processorTime is what all threads of the process have used of processors so far.
func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// memory is how many bytes of the process are resident, with what it shares with others: the second
// field of statm (proc(5)), in pages.
func (u *use) memory() uint64 {
	if u.statm == nil {
		return 0
	}
	n, _ := u.statm.ReadAt(u.buf[:], 0) // it ends before the buffer, which ReadAt calls an error
	return residentIn(u.buf[:n])
}

// residentIn is the resident size in bytes in the contents of a statm file, 0 if there is none.
func residentIn(raw []byte) uint64 {
	_, rest, _ := bytes.Cut(raw, []byte(" "))
	field, _, _ := bytes.Cut(rest, []byte(" "))
	pages, err := strconv.ParseUint(string(field), 10, 50)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
