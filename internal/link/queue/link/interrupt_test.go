package link

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// TestInterrupt ends one Recv, wherever it waits, or else the next one; a record that is there
// comes first.
func TestInterrupt(t *testing.T) {
	for name, prepare := range map[string]func(r *rig){
		"idle":         func(*rig) {},
		"pump reading": func(*rig) { time.Sleep(2 * time.Second) },
		"cut": func(r *rig) {
			r.setRefuse(errors.New("no"))
			r.network().cut()
			time.Sleep(time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Options{Grace: time.Hour}, 1, perfect)
				defer r.close()
				synctest.Wait()
				prepare(r)
				l := r.driver
				recv := func(d time.Duration, want error, took time.Duration) {
					t.Helper()
					begin := time.Now()
					if _, err := l.Recv(in(d)); !errors.Is(err, want) || time.Since(begin) != took {
						t.Fatalf("%v after %v, not %v after %v", err, time.Since(begin), want, took)
					}
				}
				l.Interrupt()
				l.Interrupt()
				recv(time.Second, queue.ErrInterrupted, 0)
				recv(time.Second, queue.ErrTimeout, time.Second)
				time.AfterFunc(300*time.Millisecond, l.Interrupt)
				recv(time.Second, queue.ErrInterrupted, 300*time.Millisecond)
				recv(time.Second, queue.ErrTimeout, time.Second)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, perfect)
		defer r.close()
		if err := r.worker.Send([]byte("there"), time.Time{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // the pump has it
		r.driver.Interrupt()
		if got, err := r.driver.Recv(time.Time{}); err != nil || string(got) != "there" {
			t.Fatalf("%q, %v", got, err)
		}
		if _, err := r.driver.Recv(time.Time{}); !errors.Is(err, queue.ErrInterrupted) {
			t.Fatal(err)
		}
	})
}

// TestInterruptLosesNothing interrupts at any moment, in the middle of fragments too.
func TestInterruptLosesNothing(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(kind(secure), func(t *testing.T) {
			a, b := tcpPair(t, secure)
			driver, worker := Accept(a, testSession, Options{}), Connect(b, testSession, nil,
				Options{})
			defer driver.Close("")
			defer worker.Close("")
			s := stream{n: 1200, max: 600 << 10, within: time.Minute}
			stop := make(chan struct{})
			var wg, poking sync.WaitGroup
			wg.Go(func() { s.send(t, worker, 1, false) })
			poking.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					case <-time.After(time.Duration(i%50) * time.Microsecond):
						driver.Interrupt()
					}
				}
			})
			interrupted := 0
			s.recv(t, interruptible{driver, &interrupted}, 1, false)
			wg.Wait()
			close(stop)
			poking.Wait()
			if interrupted == 0 {
				t.Error("nothing was interrupted")
			}
		})
	}
}

// interruptible goes on after an interruption.
type interruptible struct {
	*Link
	count *int
}

func (i interruptible) Recv(until time.Time) ([]byte, error) {
	for {
		b, err := i.Link.Recv(until)
		if !errors.Is(err, queue.ErrInterrupted) {
			return b, err
		}
		*i.count++
	}
}

// TestInterruptWithinAFragment has a peer that stops in the middle of a fragment.
func TestInterruptWithinAFragment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, mine, theirs := newMemnet(memopt{}, 1)
		l := Accept(mine, testSession, Options{Silence: time.Hour})
		defer l.Close("")
		go io.Copy(io.Discard, theirs)
		want := bytes.Repeat([]byte("large"), 10_000)
		first, last := dataFrame(1, 0, flagMore, string(want[:30_000])), dataFrame(2, 0, 0,
			string(want[30_000:]))
		theirs.Write(helloFrame(testSession, 0, 1<<20))
		for _, part := range [][]byte{first[:10_000], first[10_000:25_000],
			join(first[25_000:], last[:12_000])} {
			theirs.Write(part)
			begin := time.Now()
			time.AfterFunc(time.Second, l.Interrupt)
			if _, err := l.Recv(in(time.Minute)); !errors.Is(err, queue.ErrInterrupted) ||
				time.Since(begin) != time.Second {
				t.Fatalf("%v after %v", err, time.Since(begin))
			}
			if _, err := l.Recv(in(time.Second)); !errors.Is(err, queue.ErrTimeout) {
				t.Fatal(err)
			}
		}
		theirs.Write(last[12_000:])
		if got, err := l.Recv(in(time.Minute)); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	})
}

// TestOldDeadlines has Recvs whose deadlines grow, shrink and vanish: each ends at its own.
func TestOldDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, perfect)
		defer r.close()
		synctest.Wait()
		for i, d := range []time.Duration{time.Second, 3 * time.Second, time.Second,
			10 * time.Second, 0, -time.Second, 2 * time.Second} {
			// A record that comes leaves the deadline behind.
			if err := r.worker.Send([]byte{byte(i)}, time.Time{}); err != nil {
				t.Fatal(err)
			}
			if got, err := r.driver.Recv(in(time.Duration(1+i%3) * time.Second)); err != nil ||
				got[0] != byte(i) {
				t.Fatal(got, err)
			}
			begin := time.Now()
			if _, err := r.driver.Recv(begin.Add(d)); !errors.Is(err, queue.ErrTimeout) ||
				time.Since(begin) != max(d, 0) {
				t.Errorf("%v after %v, not after %v", err, time.Since(begin), d)
			}
		}
		if err := r.worker.Send(nil, time.Time{}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.driver.Recv(in(time.Second)); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, func() { r.worker.Send([]byte("late"), time.Time{}) })
		if got, err := r.driver.Recv(time.Time{}); err != nil || string(got) != "late" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// TestFragmentsAreReadInPlace receives large records in pieces, and with deadlines in the middle of
// fragments: their bytes do not pass through the buffer of small ones, which would be larger for
// it.
func TestFragmentsAreReadInPlace(t *testing.T) {
	for _, chunk := range []int{0, 700, 30_000} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Options{}, 1, func() memopt {
				return memopt{chunk: chunk,
					delay: 50 * time.Microsecond, buffer: 20_000}
			})
			defer r.close()
			want := make([]byte, 3<<20)
			for i := range want {
				want[i] = byte(i * (i >> 11))
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				for n := range 3 {
					if err := r.worker.Send(want[n:], time.Time{}); err != nil {
						t.Error(err)
					}
				}
			})
			for n := range 3 {
				got, err := r.driver.Recv(time.Time{})
				if err != nil || !bytes.Equal(got, want[n:]) {
					t.Fatalf("record %d: %d bytes, %v", n, len(got), err)
				}
				if size := len(r.driver.buf.b); size != smallBuffer {
					t.Fatalf("record %d went through a buffer of %d bytes", n, size)
				}
			}
			timeouts := 0
			wg.Go(func() {
				if err := r.worker.Send(want, time.Time{}); err != nil {
					t.Error(err)
				}
			})
			for {
				got, err := r.driver.Recv(in(130 * time.Microsecond))
				if errors.Is(err, queue.ErrTimeout) {
					timeouts++
					continue
				}
				if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("%d bytes, %v", len(got), err)
				}
				break
			}
			if timeouts < 10 {
				t.Errorf("only %d timeouts in the middle", timeouts)
			}
		})
	}
}

// TestReadBetweenRecvs has something come when no goroutine was in Recv for a moment, as the end of
// a peer does: it is read well before the next heartbeat.
func TestReadBetweenRecvs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, perfect)
		defer r.close()
		for range 100 { // a busy time before
			if err := r.worker.Send(nil, time.Time{}); err != nil {
				t.Fatal(err)
			}
			if _, err := r.driver.Recv(time.Time{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(ackDelay + idleDelay)
		before := r.driver.Stats().BytesReceived
		if err := r.worker.Send(make([]byte, 1000), time.Time{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := r.driver.Stats().BytesReceived - before; got < 1000 {
			t.Errorf("%d bytes were read", got)
		}
	})
}

// TestReservedPlace keeps a frame that is being copied from what happens to the queue meanwhile.
func TestReservedPlace(t *testing.T) {
	var o outbox
	o.append(0, []byte("first"), 0)
	c, b := o.next()
	o.done(c, len(b))
	c, place := o.reserve(0, 6, 0)
	if err := o.ack(1); err != nil {
		t.Fatal(err)
	}
	if _, b := o.next(); b != nil || o.bytes != 0 {
		t.Fatalf("%q of %d bytes is written before it is there", b, o.bytes)
	}
	copy(place, "second")
	o.commit(c, 6)
	if _, b := o.next(); !bytes.Equal(b, dataFrame(2, 0, 0, "second")) {
		t.Errorf("%q", b)
	}
}
