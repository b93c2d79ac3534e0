package ring

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// segment makes a driver and its ranks in this process; memory 0 stands for the least possible.
func segment(t testing.TB, ranks int, memory int64) (*Driver, []*Rank) {
	t.Helper()
	if memory == 0 {
		memory = layout{page: os.Getpagesize(), ranks: ranks}.least()
	}
	s, err := Create(Options{Ranks: ranks, Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Driver().Close() })
	var rs []*Rank
	for i := range ranks {
		r, err := Map(s.File(), i)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		rs = append(rs, r)
	}
	return s.Driver(), rs
}

// soon is a deadline that is not expected to pass, past one that has.
func soon() time.Time { return time.Now().Add(time.Minute) }
func past() time.Time { return time.Now().Add(-time.Second) }

// pattern is a payload that holds its number and its length.
func pattern(number, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + number*31 + size)
	}
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPlan(t *testing.T) {
	for ranks := 1; ranks <= MaxRanks; ranks++ {
		least := layout{page: os.Getpagesize(), ranks: ranks}.least()
		for _, memory := range []int64{least, least + 1, 3 * least, DefaultMemory,
			DefaultMemory - 1, 100 << 20, 8 << 30} {
			l, err := plan(ranks, memory)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.check(); err != nil || l.size() > memory || memory < 2<<30 &&
				int64(l.broadcast)*4 <= memory {
				t.Errorf("%d ranks in %d bytes: %+v of %d bytes, %v", ranks, memory, l, l.size(),
					err)
			}
		}
		if _, err := plan(ranks, least-1); err == nil || !strings.Contains(err.Error(),
			fmt.Sprint("at least ", least)) {
			t.Errorf("%d ranks in %d bytes: %v", ranks, least-1, err)
		}
	}
	for _, o := range []Options{{}, {Ranks: -1}, {Ranks: MaxRanks + 1}, {Ranks: 1, Memory: -5},
		{Ranks: 2, Memory: 100}} {
		if _, err := Create(o); err == nil {
			t.Errorf("created %+v", o)
		}
	}
	if l, err := plan(2, 0); err != nil || l.broadcast != 8<<20 || l.reply != 2<<20 {
		t.Errorf("default: %+v, %v", l, err)
	}
}

func TestControlLayout(t *testing.T) {
	var b broadcastControl
	var r rankControl
	for name, off := range map[string]uintptr{
		"broadcast data": unsafe.Offsetof(b.data), "broadcast space": unsafe.Offsetof(b.space),
		"replies":   unsafe.Offsetof(b.replies),
		"rank sent": unsafe.Offsetof(r.sent), "rank taken": unsafe.Offsetof(r.taken),
		"rank space": unsafe.Offsetof(r.space),
		"status":     unsafe.Offsetof(r.status),
	} {
		if off == 0 || off%linePair != 0 {
			t.Errorf("%s at %d", name, off)
		}
	}
	if unsafe.Sizeof(b) > 4096 || unsafe.Sizeof(r) > 4096 {
		t.Errorf("control words of %d and %d bytes", unsafe.Sizeof(b), unsafe.Sizeof(r))
	}
}

// TestEverySize wraps around the rings with records of every size, in both directions.
func TestEverySize(t *testing.T) {
	for _, memory := range []int64{0, 256 << 10} {
		d, rs := segment(t, 2, memory)
		for size := range 4097 {
			if testing.Short() && size > 600 && size%3 > 0 {
				continue // every remainder of a cache line is among the others, too
			}
			want := pattern(size, size)
			// Each is over before the next begins: the race detector does not see what the ring's
			// memory orders.
			var sending sync.WaitGroup
			sending.Go(func() { must(t, d.Send(want, soon())) })
			for i, r := range rs {
				got, err := r.Recv(soon())
				if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("rank %d, size %d: %d bytes, %v", i, size, len(got), err)
				}
			}
			for i, r := range rs {
				want := pattern(size+i, size)
				sending.Go(func() { must(t, r.Send(want, soon())) })
				rank, got, err := d.Recv(soon())
				if rank != i || err != nil || !bytes.Equal(got, want) {
					t.Fatalf("from rank %d, size %d: rank %d, %d bytes, %v", i, size, rank,
						len(got), err)
				}
				sending.Wait()
			}
		}
	}
}

// TestPieces sends records much larger than the rings, both ways at once.
func TestPieces(t *testing.T) {
	memory, largest := int64(0), 33<<20+3
	if testing.Short() {
		memory, largest = 1<<20, 5<<20+3
	}
	d, rs := segment(t, 2, memory)
	w := &d.out
	sizes := []int{w.whole - 1, w.whole, w.whole + 1, 2*w.piece - 1, 2 * w.piece, 2*w.piece + 1,
		len(w.ring), 1 << 20, 3<<20 + 5, 1, largest, 0, 9}
	records := make([][]byte, len(sizes))
	for i, size := range sizes {
		records[i] = pattern(i, size)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, record := range records {
			must(t, d.Send(record, soon()))
		}
	})
	for _, r := range rs {
		wg.Go(func() {
			for i, want := range records {
				got, err := r.Recv(soon())
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("rank %d, record %d: %d bytes, want %d: %v", r.m.exposedAt, i,
						len(got), len(want), err)
					return
				}
				must(t, r.Send(got, soon()))
			}
		})
	}
	next := make([]int, len(rs))
	for range len(sizes) * len(rs) {
		rank, got, err := d.Recv(soon())
		must(t, err)
		if want := records[next[rank]]; !bytes.Equal(got, want) {
			t.Fatalf("from rank %d, record %d: %d bytes, want %d", rank, next[rank], len(got),
				len(want))
		}
		next[rank]++
	}
	wg.Wait()
	for i := range rs {
		if n, b := d.Lag(i); n != 0 || b != 0 {
			t.Errorf("rank %d lags by %d records, %d bytes", i, n, b)
		}
		d.Release()
		if c := cap(d.in[i].buffer); c > keepBuffer {
			t.Errorf("a buffer of %d bytes is kept after a record of 33 MiB", c)
		}
	}
	for range keepFor + 1 {
		must(t, rs[0].Send([]byte{1}, soon()))
		_, _, err := d.Recv(soon())
		must(t, err)
	}
	if d.in[0].buffer != nil {
		t.Error("a buffer that is not used is kept")
	}
	if err := d.Send(make([]byte, queue.MaxRecord+1), soon()); err == nil || errors.Is(err,
		queue.ErrTimeout) {
		t.Errorf("record beyond the limit: %v", err)
	}
}

func TestSlowReader(t *testing.T) {
	d, rs := segment(t, 3, 0)
	n := 0
	var err error
	for ; err == nil; n++ {
		err = d.Send(pattern(n, 100), time.Now().Add(20*time.Millisecond))
		for _, r := range []*Rank{rs[0], rs[2]} {
			if err == nil {
				_, err := r.Recv(soon())
				must(t, err)
				r.Release()
			}
		}
	}
	var slow *queue.SlowError
	if !errors.Is(err, queue.ErrTimeout) || !errors.As(err, &slow) || !slices.Equal(slow.Ranks,
		[]int{1}) || !strings.Contains(err.Error(), "rank 1") {
		t.Fatalf("rank 1 does not read: %v", err)
	}
	n-- // the last one was not sent
	if records, b := d.Lag(1); records != uint64(n) || b != int64(100*n) {
		t.Errorf("rank 1 lags by %d records, %d bytes, not %d, %d", records, b, n, 100*n)
	}
	if records, _ := d.Lag(0); records != 0 {
		t.Errorf("rank 0 lags by %d records", records)
	}
	// A record in pieces, given up in the middle, leaves no trace.
	if err := d.Send(make([]byte, 100_000), past()); !errors.Is(err, queue.ErrTimeout) {
		t.Error(err)
	}
	for i := range n {
		got, err := rs[1].Recv(soon())
		if err != nil || !bytes.Equal(got, pattern(i, 100)) {
			t.Fatalf("record %d: %q, %v", i, got, err)
		}
	}
	rs[1].Release()
	if err := d.Send(make([]byte, 100_000), time.Now().Add(10*time.Millisecond)); !errors.As(err,
		&slow) || len(slow.Ranks) != 3 {
		t.Error(err)
	}
	go func() { must(t, d.Send([]byte("next"), soon())) }()
	for i, r := range rs {
		if got, err := r.Recv(soon()); err != nil || string(got) != "next" {
			t.Errorf("rank %d: %d bytes, %v", i, len(got), err)
		}
	}
	// And the other way round.
	for err = nil; err == nil; {
		err = rs[0].Send(make([]byte, 200), time.Now().Add(20*time.Millisecond))
	}
	if !errors.As(err, &slow) || !slices.Equal(slow.Ranks, []int{-1}) ||
		!strings.Contains(err.Error(), "the driver") {
		t.Errorf("the driver does not read: %v", err)
	}
}

// TestBothFull has ranks that answer every record with two and do not read while they cannot send.
func TestBothFull(t *testing.T) {
	d, rs := segment(t, 2, 0)
	const records = 3000
	var wg sync.WaitGroup
	for _, r := range rs {
		wg.Go(func() {
			for range records {
				got, err := r.Recv(soon())
				must(t, err)
				must(t, r.Send(got, soon())) // while holding it
				must(t, r.Send(got, soon()))
			}
		})
	}
	wg.Go(func() {
		for i := range records {
			must(t, d.Send(pattern(i, i%700), soon()))
		}
	})
	next := make([]int, len(rs))
	for range 2 * records * len(rs) {
		rank, got, err := d.Recv(soon())
		must(t, err)
		if i := next[rank] / 2; !bytes.Equal(got, pattern(i, i%700)) {
			t.Fatalf("record %d of rank %d is wrong", next[rank], rank)
		}
		next[rank]++
	}
	wg.Wait()
}

func TestFair(t *testing.T) {
	d, rs := segment(t, 3, 1<<20)
	for i, r := range rs {
		for range 10 * (i + 1) {
			must(t, r.Send([]byte{byte(i)}, soon()))
		}
	}
	var order []int
	for range 60 {
		rank, _, err := d.Recv(soon())
		must(t, err)
		order = append(order, rank)
	}
	for i, rank := range order[:30] {
		if rank != i%3 {
			t.Fatalf("order %v", order)
		}
	}
	// A long record does not keep short ones of others waiting.
	go func() { must(t, rs[0].Send(make([]byte, 8<<20), soon())) }()
	for n, _ := d.Lag(0); n == 0 && rs[0].own.sent.Load() < 1000; n, _ = d.Lag(0) {
		time.Sleep(time.Millisecond)
	}
	must(t, rs[1].Send([]byte("short"), soon()))
	if rank, got, err := d.Recv(soon()); rank != 1 || len(got) != 5 || err != nil {
		t.Errorf("rank %d, %d bytes, %v", rank, len(got), err)
	}
	if rank, got, err := d.Recv(soon()); rank != 0 || len(got) != 8<<20 || err != nil {
		t.Errorf("rank %d, %d bytes, %v", rank, len(got), err)
	}
}

func TestDeadlines(t *testing.T) {
	d, rs := segment(t, 2, 0)
	for _, wait := range []time.Duration{-time.Second, 0, 30 * time.Millisecond} {
		for name, f := range map[string]func(time.Time) error{
			"driver": func(until time.Time) error { _, _, err := d.Recv(until); return err },
			"rank":   func(until time.Time) error { _, err := rs[0].Recv(until); return err },
		} {
			began := time.Now()
			err := f(began.Add(wait))
			if took := time.Since(began); err != queue.ErrTimeout || took < wait ||
				took > wait+10*time.Second {
				t.Errorf("%s, %v: %v after %v", name, wait, err, took)
			}
		}
	}
	for e, n := range map[*event]string{&d.shared.data: "data", &d.shared.replies: "replies",
		&d.shared.space: "space"} {
		if s := e.sleepers.Load(); s != 0 {
			t.Errorf("%d sleepers on %s", s, n)
		}
	}
}

// TestPages checks that a ring whose readers keep up uses little of its memory.
func TestPages(t *testing.T) {
	s, err := Create(Options{Ranks: 1})
	must(t, err)
	defer s.Driver().Close()
	r, err := Map(s.File(), 0)
	must(t, err)
	defer r.Close()
	used := func() int64 {
		info, err := s.File().Stat()
		must(t, err)
		return info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	if n := used(); n > 64<<10 {
		t.Errorf("%d bytes in use at first", n)
	}
	for i := range 10_000 {
		must(t, s.Driver().Send(pattern(i, 4096), soon()))
		got, err := r.Recv(soon())
		must(t, err)
		must(t, r.Send(got, soon()))
		_, _, err = s.Driver().Recv(soon())
		must(t, err)
	}
	if n := used(); n > 1<<20 {
		t.Errorf("%d bytes in use after 80 MB of traffic", n)
	}
}

func TestNoAllocations(t *testing.T) {
	d, rs := segment(t, 2, DefaultMemory)
	small, large := make([]byte, 4096), make([]byte, 1<<20)
	round := func(record []byte) {
		must(t, d.Send(record, time.Time{}))
		for _, r := range rs {
			_, err := r.Recv(time.Time{})
			must(t, err)
			must(t, r.Send(record[:len(record)/4], soon()))
		}
		for range rs {
			_, _, err := d.Recv(soon())
			must(t, err)
		}
		if _, err := rs[0].Recv(past()); err != queue.ErrTimeout {
			t.Fatal(err)
		}
		if _, _, err := d.Recv(time.Now().Add(50 * time.Microsecond)); err != queue.ErrTimeout {
			t.Fatal(err)
		}
	}
	round(large)
	for _, record := range [][]byte{small, large} {
		if n := testing.AllocsPerRun(40, func() { round(record) }); n != 0 {
			t.Errorf("records of %d bytes: %g allocations a round", len(record), n)
		}
	}
}

func BenchmarkSendRecv(b *testing.B) {
	for _, size := range []int{64, 4096, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			d, rs := segment(b, 1, DefaultMemory)
			record := make([]byte, size)
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := d.Send(record, time.Time{}); err != nil {
					b.Fatal(err)
				}
				if _, err := rs[0].Recv(time.Time{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
