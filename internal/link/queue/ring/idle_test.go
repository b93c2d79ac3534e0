package ring

import (
	"syscall"
	"testing"
	"time"
)

// TestIdleParks leaves every rank and the driver waiting: after their spin all of them sleep in the
// kernel, use no processor, and are woken by one record.
func TestIdleParks(t *testing.T) {
	const ranks = 3
	d, rs := segment(t, ranks, 0)
	got := make(chan error, ranks)
	for _, r := range rs {
		go func() {
			record, err := r.Recv(soon())
			if err == nil {
				err = r.Send(record, soon())
			}
			got <- err
		}()
	}
	answered := make(chan int, ranks)
	go func() {
		for range ranks {
			rank, _, err := d.Recv(soon())
			if err != nil {
				t.Error(err)
			}
			answered <- rank
		}
	}()
	for until := soon(); d.shared.data.sleepers.Load() != ranks ||
		d.shared.replies.sleepers.Load() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d of %d ranks sleep, %d driver", d.shared.data.sleepers.Load(), ranks,
				d.shared.replies.sleepers.Load())
		}
	}
	before, word := processorTime(t), d.shared.data.word.Load()
	const idle = 300 * time.Millisecond
	time.Sleep(idle)
	// Four that spin would take as much as this machine gives them; the rest is for the runtime.
	if used := processorTime(t) - before; used > idle/2 {
		t.Errorf("%v of processor time in %v of waiting", used, idle)
	}
	if n := d.shared.data.word.Load() - word; n != 0 || d.shared.data.sleepers.Load() != ranks {
		t.Errorf("%d notices in an idle ring, %d ranks sleep", n, d.shared.data.sleepers.Load())
	}
	must(t, d.Send([]byte("record"), soon()))
	for range ranks {
		must(t, <-got)
		<-answered
	}
	if n := d.shared.data.sleepers.Load(); n != 0 {
		t.Errorf("%d sleepers are left", n)
	}
}

// processorTime is what this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
