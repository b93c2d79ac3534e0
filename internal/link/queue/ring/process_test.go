package ring

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/queuetest"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// TestMain makes the test binary a rank, or a driver to be killed: the words are a role and its
// numbers.
func TestMain(m *testing.M) { testchild.Main(m, child) }

func child(spec string) error {
	var role string
	var rank, seed int
	if _, err := fmt.Sscan(spec, &role, &rank, &seed); err != nil {
		return err
	}
	if role == "driver" {
		return floodFrom(rank)
	}
	f := os.NewFile(3, "segment")
	r, err := Map(f, rank)
	if err != nil {
		return err
	}
	go func() { // the parent watch, as the worker's socket is
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = r.Close()
	}()
	switch role {
	case "check":
		return errors.Join(checkRank(r, rank, seed), r.Close())
	case "echo":
		for {
			got, err := r.Recv(time.Time{})
			if errors.Is(err, queue.ErrClosed) {
				return nil
			}
			if err != nil {
				return err
			}
			if err := r.Send(got, time.Time{}); err != nil && !errors.Is(err, queue.ErrClosed) {
				return err
			}
		}
	}
	return fmt.Errorf("role %q", role)
}

type process struct {
	*testchild.Process
	stdout io.Reader
}

func start(t testing.TB, f *os.File, role string, rank, seed int) *process {
	t.Helper()
	var files []*os.File
	if f != nil {
		files = append(files, f)
	}
	p := &process{Process: testchild.New(t, fmt.Sprint(role, " ", rank, " ", seed), files...)}
	stdin, err := p.StdinPipe()
	must(t, err)
	p.stdout, err = p.StdoutPipe()
	must(t, err)
	must(t, p.Start())
	t.Cleanup(func() { stdin.Close() })
	return p
}

// repliesPer is how many records a rank receives for each it sends.
const repliesPer = 8

// checkRank receives a stream until the driver closes, and sends one of its own, then the sum of
// what it got.
func checkRank(r *Rank, rank, seed int) error {
	in, out := queuetest.NewStream(seed, 0), queuetest.NewStream(seed, 1+rank)
	delay := rand.New(rand.NewPCG(uint64(seed), uint64(100+rank)))
	var buf []byte
	for {
		got, err := r.Recv(time.Time{})
		if err != nil {
			return err
		}
		if len(got) == 0 { // the end
			break
		}
		if err := in.Check(got); err != nil {
			return err
		}
		if delay.IntN(4) == 0 {
			r.Release()
		}
		queuetest.Doze(delay)
		if in.Number%repliesPer == 0 {
			buf = out.Next(buf)
			if err := r.Send(buf, time.Time{}); err != nil {
				return err
			}
		}
	}
	return r.Send(binary.LittleEndian.AppendUint32(nil, in.Sum), time.Time{})
}

// TestStream sends a million records of random sizes to different numbers of processes.
func TestStream(t *testing.T) {
	records := map[int]int{1: 400_000, 2: 400_000, 5: 200_000}
	for _, ranks := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			n := records[ranks]
			if testing.Short() {
				n /= 40
			}
			s, err := Create(Options{Ranks: ranks, Memory: []int64{0, 1 << 20, 256 << 10}[ranks%3]})
			must(t, err)
			d := s.Driver()
			defer d.Close()
			var ps []*process
			for rank := range ranks {
				ps = append(ps, start(t, s.File(), "check", rank, ranks))
			}
			var wg sync.WaitGroup
			out := queuetest.NewStream(ranks, 0)
			wg.Go(func() {
				delay := rand.New(rand.NewPCG(uint64(ranks), 99))
				var buf []byte
				for range n {
					buf = out.Next(buf)
					if err := d.Send(buf, soon()); err != nil {
						t.Error(err)
						return
					}
					queuetest.Doze(delay)
				}
				must(t, d.Send(nil, soon()))
			})
			in := make([]*queuetest.Stream, ranks)
			for rank := range in {
				in[rank] = queuetest.NewStream(ranks, 1+rank)
			}
			for range (n/repliesPer + 1) * ranks {
				rank, got, err := d.Recv(soon())
				must(t, err)
				if len(got) == 4 {
					if in[rank].Number != uint64(n/repliesPer) {
						t.Errorf("rank %d sent %d records, not %d", rank, in[rank].Number,
							n/repliesPer)
					}
					wg.Wait()
					if sum := binary.LittleEndian.Uint32(got); sum != out.Sum {
						t.Errorf("rank %d got records of sum %#x, not %#x", rank, sum, out.Sum)
					}
				} else if err := in[rank].Check(got); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := d.Recv(soon()); !errors.Is(err, queue.ErrClosed) {
				t.Errorf("after the ranks have left: %v", err)
			}
			for rank, p := range ps {
				if err := p.Wait(); err != nil {
					t.Errorf("rank %d: %v: %s", rank, err, p.Stderr.String())
				}
			}
		})
	}
}

// exchange sends a record and waits for the echoes of so many ranks.
func exchange(t *testing.T, d *Driver, number, ranks int) {
	t.Helper()
	want := pattern(number, 500)
	must(t, d.Send(want, soon()))
	for range ranks {
		if _, got, err := d.Recv(soon()); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("record %d: %d bytes, %v", number, len(got), err)
		}
	}
}

// TestStoppedReader stops a process, which shows in errors and holds things up, and lets it go on.
func TestStoppedReader(t *testing.T) {
	s, err := Create(Options{Ranks: 2, Memory: 64 << 10})
	must(t, err)
	d := s.Driver()
	defer d.Close()
	start(t, s.File(), "echo", 0, 0)
	slow := start(t, s.File(), "echo", 1, 0)
	for i := range 50 {
		exchange(t, d, i, 2)
	}
	must(t, slow.Cmd.Process.Signal(syscall.SIGSTOP))
	sent, got := 0, [2]int{}
	for err = nil; err == nil; {
		if err = d.Send(pattern(sent, 500), time.Now().Add(time.Second)); err != nil {
			break
		}
		sent++
		for rank := 0; rank >= 0; { // what is there
			if rank, _, _ = d.Recv(time.Now().Add(time.Millisecond)); rank >= 0 {
				got[rank]++
			}
		}
	}
	var e *queue.SlowError
	if !errors.As(err, &e) || !slices.Equal(e.Ranks, []int{1}) {
		t.Fatalf("%v after %d records", err, sent)
	}
	for got[0] < sent { // rank 0 may need longer than a millisecond for an echo
		rank, _, err := d.Recv(soon())
		must(t, err)
		got[rank]++
	}
	if n, _ := d.Lag(1); n != uint64(sent-got[1]) || got[0] != sent {
		t.Errorf("rank 1 lags by %d of %d records, rank 0 answered %d", n, sent, got[0])
	}
	must(t, slow.Cmd.Process.Signal(syscall.SIGCONT))
	for got[1] < sent {
		rank, record, err := d.Recv(soon())
		must(t, err)
		if rank != 1 || !bytes.Equal(record, pattern(got[1], 500)) {
			t.Fatalf("record of rank %d, not number %d of rank 1", rank, got[1])
		}
		got[1]++
	}
	exchange(t, d, 7, 2)
}

// TestKilledReader kills a process that the driver then waits for, until it drops the rank.
func TestKilledReader(t *testing.T) {
	s, err := Create(Options{Ranks: 2, Memory: 64 << 10})
	must(t, err)
	d := s.Driver()
	defer d.Close()
	start(t, s.File(), "echo", 0, 0)
	victim := start(t, s.File(), "echo", 1, 0)
	for i := range 50 {
		exchange(t, d, i, 2)
	}
	must(t, d.Send([]byte("last"), soon())) // answered by both, and not received yet
	for d.in[1].sent.Load() == d.in[1].head {
		time.Sleep(time.Millisecond)
	}
	must(t, victim.Cmd.Process.Kill())
	victim.Wait()
	const more = 500
	sender := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < more && err == nil; i++ {
			err = d.Send(pattern(i, 500), time.Time{})
		}
		sender <- err
	}()
	var got [2]int
	recv := func(until time.Time) error {
		rank, _, err := d.Recv(until)
		if err == nil {
			got[rank]++
		}
		return err
	}
	for recv(time.Now().Add(200*time.Millisecond)) == nil {
	}
	if n := len(sender); n != 0 || got[1] != 1 {
		t.Fatalf("the driver did not wait for the dead rank: %v; %d records of it", <-sender,
			got[1])
	}
	d.Drop(1)
	for got[0] <= more {
		must(t, recv(soon()))
	}
	must(t, <-sender)
	exchange(t, d, 1, 1)
}

// floodFrom is a driver that broadcasts until it is killed. It prints the descriptor of its
// segment.
func floodFrom(ranks int) error {
	s, err := Create(Options{Ranks: ranks, Memory: 256 << 10})
	if err != nil {
		return err
	}
	fmt.Println(s.File().Fd())
	out := queuetest.NewStream(1, 0)
	var buf []byte
	for {
		buf = out.Next(buf)
		if err := s.Driver().Send(buf, time.Time{}); err != nil {
			return err
		}
	}
}

// TestKilledDriver kills a driver in the middle of its records. Its ranks, in this process, end by
// Close, as the watcher of the driver calls it; until then they get whole records only.
func TestKilledDriver(t *testing.T) {
	for round := range 5 {
		p := start(t, nil, "driver", 2, 0)
		line, err := bufio.NewReader(p.stdout).ReadString('\n')
		must(t, err)
		f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%s", p.Cmd.Process.Pid,
			strings.TrimSpace(line)), os.O_RDWR, 0)
		must(t, err)
		var wg sync.WaitGroup
		var rs []*Rank
		var some [2]atomic.Bool
		for rank := range 2 {
			r, err := Map(f, rank)
			must(t, err)
			rs = append(rs, r)
			wg.Go(func() {
				in := queuetest.NewStream(1, 0)
				for {
					got, err := r.Recv(time.Time{})
					if errors.Is(err, queue.ErrClosed) {
						break
					}
					if err := errors.Join(err, in.Check(got)); err != nil {
						t.Errorf("round %d, rank %d: %v", round, rank, err)
						break
					}
					some[rank].Store(in.Number > 100)
				}
			})
		}
		must(t, f.Close())
		for wait := soon(); !some[0].Load() ||
			!some[1].Load(); time.Sleep(time.Duration(round) * time.Millisecond) {
			if time.Now().After(wait) {
				t.Fatal("the ranks do not get records")
			}
		}
		must(t, p.Cmd.Process.Kill())
		p.Wait()
		time.Sleep(10 * time.Millisecond)
		for _, r := range rs {
			must(t, r.Close())
		}
		wg.Wait()
	}
}
