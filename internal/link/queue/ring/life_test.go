package ring

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
)

func TestCloseDrains(t *testing.T) {
	d, rs := segment(t, 2, 0)
	for i := range 5 {
		must(t, d.Send([]byte{byte(i)}, soon()))
	}
	must(t, d.Close())
	must(t, d.Close())
	if err := d.Send(nil, soon()); !errors.Is(err, queue.ErrClosed) {
		t.Error(err)
	}
	if _, _, err := d.Recv(soon()); !errors.Is(err, queue.ErrClosed) {
		t.Error(err)
	}
	for i := range 5 {
		if got, err := rs[0].Recv(soon()); err != nil || got[0] != byte(i) {
			t.Fatal(got, err)
		}
	}
	if _, err := rs[0].Recv(soon()); !errors.Is(err, queue.ErrClosed) {
		t.Error(err)
	}
	if err := rs[0].Send(nil, soon()); !errors.Is(err, queue.ErrClosed) {
		t.Error(err)
	}
	must(t, rs[1].Close())
	if _, err := rs[1].Recv(soon()); !errors.Is(err, queue.ErrClosed) {
		t.Error("a closed rank receives:", err)
	}
	if d.Status(0) != (status.Snapshot{}) {
		t.Error("status after close")
	}
	if n, b := d.Lag(0); n != 0 || b != 0 {
		t.Error("lag after close")
	}
	d.Drop(0)
	d.Release()
}

func TestRanksLeave(t *testing.T) {
	d, rs := segment(t, 2, 0)
	must(t, rs[0].Send([]byte("last words"), soon()))
	must(t, rs[0].Close())
	for i := range 1000 { // does not wait for rank 0
		must(t, d.Send(pattern(i, 100), soon()))
		_, err := rs[1].Recv(soon())
		must(t, err)
	}
	go func() {
		time.Sleep(10 * time.Millisecond)
		must(t, rs[1].Close())
	}()
	if rank, got, err := d.Recv(soon()); rank != 0 || string(got) != "last words" || err != nil {
		t.Error(rank, got, err)
	}
	if _, _, err := d.Recv(soon()); !errors.Is(err, queue.ErrClosed) {
		t.Error(err)
	}
}

func TestDrop(t *testing.T) {
	d, rs := segment(t, 2, 0)
	must(t, rs[1].Send([]byte("published"), soon()))
	rs[1].Status().Set(status.Forward, 7)
	var wg sync.WaitGroup
	wg.Go(func() { // rank 1 does not read
		for i := range 1000 {
			must(t, d.Send(pattern(i, 50), time.Time{}))
		}
	})
	wg.Go(func() {
		for i := range 1000 {
			got, err := rs[0].Recv(soon())
			must(t, err)
			if !bytes.Equal(got, pattern(i, 50)) {
				t.Errorf("record %d", i)
			}
		}
	})
	time.Sleep(20 * time.Millisecond)
	d.Drop(2, 1, -1)
	wg.Wait()
	if _, err := rs[1].Recv(soon()); !errors.Is(err, queue.ErrClosed) ||
		!strings.Contains(err.Error(), "dropped") {
		t.Error(err)
	}
	if err := rs[1].Send(nil, soon()); !errors.Is(err, queue.ErrClosed) {
		t.Error(err)
	}
	if rank, got, err := d.Recv(soon()); rank != 1 || string(got) != "published" || err != nil {
		t.Error(rank, got, err)
	}
	if s := d.Status(1); s.Phase != status.Forward || s.Detail != 7 {
		t.Errorf("status %+v", s)
	}
	d.Drop(0)
	if _, _, err := d.Recv(soon()); !errors.Is(err, queue.ErrClosed) {
		t.Error(err)
	}
}

func TestWords(t *testing.T) {
	d, rs := segment(t, 2, 0)
	w := rs[1].Status()
	w.Received(5)
	if s := d.Status(1); s.Received != 5 || s.Changes != 1 || d.Status(0) != (status.Snapshot{}) ||
		d.Status(2) != (status.Snapshot{}) {
		t.Errorf("status %+v", s)
	}
	must(t, rs[1].Close())
	w.Set(status.Idle, 1) // must not fault
	if rs[1].Status().Set(status.Idle, 1); w.Snapshot().Phase != status.Idle {
		t.Error("the status is gone")
	}
	if s := d.Status(1); s.Received != 5 || s.Changes != 1 {
		t.Errorf("status after close %+v", s)
	}
}

// TestHeldRecord keeps a record beyond Close, which must not unmap it.
func TestHeldRecord(t *testing.T) {
	d, rs := segment(t, 1, 0)
	must(t, d.Send([]byte("broadcast"), soon()))
	must(t, rs[0].Send([]byte("reply"), soon()))
	got, err := rs[0].Recv(soon())
	must(t, err)
	_, reply, err := d.Recv(soon())
	must(t, err)
	must(t, d.Close())
	must(t, rs[0].Close())
	if string(got) != "broadcast" || string(reply) != "reply" {
		t.Error(got, reply)
	}
	rs[0].Release()
	d.Release()
	rs[0].Release()
	d.Release()
}

// TestCloseAnytime closes either side at a random moment of traffic both ways, and looks for what
// is left.
func TestCloseAnytime(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	round := func() {
		s, err := Create(Options{Ranks: 2, Memory: 128 << 10})
		must(t, err)
		d := s.Driver()
		var wg sync.WaitGroup
		spin := func(f func(until time.Time) error) {
			until := time.Time{}
			if rng.IntN(2) == 0 {
				until = soon()
			}
			wg.Go(func() {
				var err error
				for err == nil {
					err = f(until)
				}
				if !errors.Is(err, queue.ErrClosed) {
					t.Error(err)
				}
			})
		}
		size := []int{3, 1000, 40_000}[rng.IntN(3)]
		record := make([]byte, size)
		spin(func(until time.Time) error { return d.Send(record, until) })
		spin(func(until time.Time) error { _, _, err := d.Recv(until); return err })
		closers := []func() error{d.Close}
		for i := range 2 {
			r, err := Map(s.File(), i)
			must(t, err)
			spin(func(until time.Time) error { return r.Send(record, until) })
			spin(func(until time.Time) error {
				got, err := r.Recv(until)
				if err == nil && len(got) != size {
					t.Errorf("record of %d bytes, not %d", len(got), size)
				}
				r.Status().Set(status.Recv, 0)
				return err
			})
			closers = append(closers, r.Close)
		}
		rng.Shuffle(len(closers), func(i, j int) {
			closers[i], closers[j] = closers[j],
				closers[i]
		})
		for _, c := range closers {
			time.Sleep(time.Duration(rng.IntN(500)) * time.Microsecond)
			wg.Go(func() { must(t, c()) })
		}
		wg.Wait()
	}
	round()
	fds, maps, goroutines := descriptors(t), mappings(t), runtime.NumGoroutine()
	for range rounds {
		round()
	}
	if n := descriptors(t); n > fds {
		t.Errorf("%d descriptors after, %d before", n, fds)
	}
	if n := mappings(t); n > maps { // the loops have given all records back
		t.Errorf("%d mappings after, %d before", n, maps)
	}
	for wait := soon(); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		if time.Now().After(wait) {
			t.Fatalf("%d goroutines after, %d before", runtime.NumGoroutine(), goroutines)
		}
	}
}

func mappings(t testing.TB) int {
	text, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	return strings.Count(string(text), "eagleray-queue")
}

func descriptors(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}
