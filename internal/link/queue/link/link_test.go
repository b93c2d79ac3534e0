package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/status"
)

var testSession = handshake.Session{1, 2, 3}

// rig is a driver's and a worker's link over a network that makes a new connection for every
// redial.
type rig struct {
	t              testing.TB
	mu             sync.Mutex
	net            *memnet
	opt            func() memopt
	refuse         error
	dials          int
	rng            *rand.Rand
	driver, worker *Link
}

func newRig(t testing.TB, o Options, seed uint64, opt func() memopt) *rig {
	r := &rig{t: t, opt: opt, rng: rand.New(rand.NewPCG(seed, 3))}
	n, a, b := newMemnet(opt(), seed)
	r.net = n
	r.driver = Accept(a, testSession, o)
	r.worker = Connect(b, testSession, r.redial, o)
	return r
}

func (r *rig) redial(ctx context.Context, resume handshake.Resume) (net.Conn, error) {
	r.mu.Lock()
	r.dials++
	if r.refuse != nil {
		defer r.mu.Unlock()
		return nil, r.refuse
	}
	n, a, b := newMemnet(r.opt(), r.rng.Uint64())
	r.net = n
	r.mu.Unlock()
	if err := r.driver.Resume(a, resume); err != nil {
		return nil, err
	}
	return b, nil
}

func (r *rig) setRefuse(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = err
}

func (r *rig) network() *memnet {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.net
}

func (r *rig) close() {
	each(r, func(l *Link) { l.Close("test over") })
}

// each runs f for both ends at once.
func each(r *rig, f func(*Link)) {
	var wg sync.WaitGroup
	wg.Go(func() { f(r.driver) })
	wg.Go(func() { f(r.worker) })
	wg.Wait()
}

func perfect() memopt { return memopt{} }

func in(d time.Duration) time.Time { return time.Now().Add(d) }

// stream sends n records of random sizes and wants the peer's, both from the same seeds.
type stream struct {
	n      int
	max    int
	within time.Duration
}

func (s stream) sizes(rng *rand.Rand) int {
	switch rng.IntN(12) {
	case 0:
		return rng.IntN(s.max)
	case 1:
		return 0
	}
	return rng.IntN(5000)
}

func (s stream) send(t testing.TB, l *Link, seed uint64, pause bool) {
	rng := rand.New(rand.NewPCG(seed, 1))
	lull := rand.New(rand.NewPCG(seed, 2))
	buf := make([]byte, s.max)
	for i := range s.n {
		b := buf[:s.sizes(rng)]
		fill(b, rng)
		if err := l.Send(b, in(s.within)); err != nil {
			t.Errorf("send record %d of %d bytes: %v", i, len(b), err)
			return
		}
		clear(b)
		if pause && lull.IntN(10) == 0 {
			time.Sleep(time.Duration(lull.IntN(600)) * time.Millisecond)
		}
	}
}

type receiver interface {
	Recv(until time.Time) ([]byte, error)
}

func (s stream) recv(t testing.TB, l receiver, seed uint64, pause bool) {
	rng := rand.New(rand.NewPCG(seed, 1))
	lull := rand.New(rand.NewPCG(seed, 4))
	want := make([]byte, s.max)
	for i := range s.n {
		w := want[:s.sizes(rng)]
		fill(w, rng)
		if pause && lull.IntN(10) == 0 {
			time.Sleep(time.Duration(lull.IntN(1200)) * time.Millisecond)
		}
		var got []byte
		var err error
		for end := in(s.within); ; {
			// Many short waits, so that timeouts fall into the middle of frames.
			got, err = l.Recv(in(time.Duration(1+lull.IntN(30)) * time.Millisecond))
			if !errors.Is(err, queue.ErrTimeout) || !time.Now().Before(end) {
				break
			}
		}
		if err != nil {
			t.Errorf("record %d of %d bytes: %v", i, len(w), err)
			return
		}
		if pause && lull.IntN(8) == 0 {
			time.Sleep(time.Duration(lull.IntN(800)) * time.Millisecond) // the view must stay valid
		}
		if !bytes.Equal(got, w) {
			t.Errorf("record %d: %d bytes differ from the %d sent", i, len(got), len(w))
			return
		}
	}
}

func fill(b []byte, rng *rand.Rand) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

// TestRandomWalk sends both ways at once over connections that are cut at random bytes, deliver in
// pieces, late, or slowly, with readers that take long pauses. Every record arrives once and in
// order.
func TestRandomWalk(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	var resumes, again uint64
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 99))
				base := memopt{buffer: 1 << (10 + rng.IntN(9))}
				if rng.IntN(2) == 0 {
					base.chunk = 1 + rng.IntN(9000)
				}
				if rng.IntN(2) == 0 {
					base.delay = time.Duration(rng.IntN(20)) * time.Millisecond
				}
				if rng.IntN(3) == 0 {
					base.slow = time.Duration(rng.IntN(3000)) * time.Microsecond
				}
				cuts := rng.IntN(40)
				opt := func() memopt {
					o := base
					if cuts > 0 {
						cuts--
						o.cutAt = 1 + rng.IntN(1<<(4+rng.IntN(16)))
						o.drop = rng.IntN(2) == 0
					}
					return o
				}
				r := newRig(t, Options{Window: chunkSize << rng.IntN(3), Grace: 20 * time.Second},
					seed, opt)
				s := stream{n: 120, max: 300 << 10, within: time.Hour}
				var wg sync.WaitGroup
				wg.Go(func() { s.send(t, r.driver, 2*seed, seed%2 == 0) })
				wg.Go(func() { s.send(t, r.worker, 2*seed+1, seed%3 == 0) })
				wg.Go(func() { s.recv(t, r.driver, 2*seed+1, seed%5 == 0) })
				wg.Go(func() { s.recv(t, r.worker, 2*seed, seed%4 == 0) })
				wg.Wait()
				d, w := r.driver.Stats(), r.worker.Stats()
				for _, got := range []uint64{d.RecordsSent, d.RecordsReceived, w.RecordsSent,
					w.RecordsReceived} {
					if got != uint64(s.n) {
						t.Errorf("%d records counted, not %d", got, s.n)
					}
				}
				resumes += d.Resumes
				again += d.Retransmits + w.Retransmits
				r.close()
			})
		})
	}
	if resumes < 100 || again < 100 {
		t.Errorf("only %d resumes and %d retransmits: the walk does not test them", resumes, again)
	}
}

// TestCutAtEveryByte cuts the connection at each byte of a short exchange.
func TestCutAtEveryByte(t *testing.T) {
	for _, drop := range []bool{false, true} {
		for cut := 1; cut < 700; cut++ {
			synctest.Test(t, func(t *testing.T) {
				first := true
				r := newRig(t, Options{}, uint64(cut), func() memopt {
					o := memopt{drop: drop}
					if first {
						o.cutAt, first = cut, false
					}
					return o
				})
				var wg sync.WaitGroup
				for i, l := range []*Link{r.driver, r.worker} {
					wg.Go(func() {
						for n := range 5 {
							if err := l.Send(bytes.Repeat([]byte{byte(10*i + n)}, 7*n),
								in(time.Minute)); err != nil {
								t.Errorf("cut at %d: %v", cut, err)
							}
						}
					})
					wg.Go(func() {
						for n := range 5 {
							got, err := l.Recv(in(time.Minute))
							if err != nil || !bytes.Equal(got,
								bytes.Repeat([]byte{byte(10*(1-i) + n)}, 7*n)) {
								t.Errorf("cut at %d: record %d is %v, %v", cut, n, got, err)
								return
							}
						}
					})
				}
				wg.Wait()
				r.close()
			})
		}
	}
}

func TestWindowFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{Window: 2 * chunkSize}, 1, perfect)
		defer r.close()
		synctest.Wait()
		record := make([]byte, 10_000)
		n := 0
		for ; ; n++ {
			record[0] = byte(n)
			begin := time.Now()
			err := r.driver.Send(record, in(300*time.Millisecond))
			if err == nil {
				continue
			}
			if !errors.Is(err, queue.ErrTimeout) || time.Since(begin) != 300*time.Millisecond {
				t.Fatalf("record %d: %v after %v", n, err, time.Since(begin))
			}
			break
		}
		if want := 2 * chunkSize / (len(record) + headerSize); n != want {
			t.Errorf("%d records fit, not %d", n, want)
		}
		// A large record given up in the middle leaves no trace.
		if _, err := r.worker.Recv(in(time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := r.driver.Send(make([]byte, 5*chunkSize),
			in(300*time.Millisecond)); !errors.Is(err, queue.ErrTimeout) {
			t.Fatalf("large record: %v", err)
		}
		done := make(chan error)
		go func() { done <- r.driver.Send([]byte("last"), in(time.Minute)) }()
		for i := 1; i < n; i++ {
			got, err := r.worker.Recv(in(time.Second))
			if err != nil || len(got) != len(record) || got[0] != byte(i) {
				t.Fatalf("record %d: %d bytes, %v", i, len(got), err)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got, err := r.worker.Recv(in(time.Second)); err != nil || string(got) != "last" {
			t.Fatalf("%q, %v", got, err)
		}
		if _, err := r.worker.Recv(in(time.Second)); !errors.Is(err, queue.ErrTimeout) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if s := r.driver.Stats(); s.Unacknowledged != 0 {
			t.Errorf("%d bytes are not acknowledged", s.Unacknowledged)
		}
	})
}

// TestGrace lets a cut pass its grace time: both ends are down with the cause, and every wait ends.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, perfect)
		defer r.close()
		synctest.Wait()
		boom := errors.New("no route to host")
		r.setRefuse(boom)
		begin := time.Now()
		r.network().cut()
		each(r, func(l *Link) {
			if _, err := l.Recv(in(time.Second)); !errors.Is(err, queue.ErrTimeout) {
				t.Errorf("before the grace time: %v", err)
			}
			if s := l.Stats(); s.State != Cut || s.Cause == nil {
				t.Errorf("state %v, cause %v", s.State, s.Cause)
			}
			if err := l.Send([]byte("queued"), in(time.Second)); err != nil {
				t.Errorf("send while cut: %v", err)
			}
			_, err := l.Recv(time.Time{})
			if !errors.Is(err, queue.ErrClosed) || !errors.Is(err, ErrCut) {
				t.Errorf("after the grace time: %v", err)
			}
			if took := time.Since(begin); took < 2*time.Second || took > 2300*time.Millisecond {
				t.Errorf("down after %v", took)
			}
			<-l.Down()
			if err := l.Send([]byte("late"), time.Time{}); !errors.Is(err, queue.ErrClosed) {
				t.Errorf("send: %v", err)
			}
		})
		if err := r.worker.Err(); !errors.Is(err, boom) {
			t.Errorf("the worker's error lacks the redial's: %v", err)
		}
		if r.dials < 5 || r.dials > 30 {
			t.Errorf("%d dials in the grace time", r.dials)
		}
		_, a, _ := newMemnet(memopt{}, 1)
		if err := r.driver.Resume(a, handshake.Resume{Session: testSession}); !errors.Is(err,
			queue.ErrClosed) {
			t.Errorf("resumed after the end: %v", err)
		}
	})
}

func TestRefusedResumeEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, perfect)
		defer r.close()
		synctest.Wait()
		r.setRefuse(&handshake.Refused{Reason: handshake.UnknownSession, Final: true})
		begin := time.Now()
		r.network().cut()
		r.worker.Recv(time.Time{})
		if err := r.worker.Err(); !errors.Is(err, handshake.UnknownSession) ||
			time.Since(begin) > 100*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// TestResumed comes back within the grace time, with the driver not having noticed the cut.
func TestResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, perfect)
		defer r.close()
		synctest.Wait()
		r.setRefuse(errors.New("not yet"))
		r.network().cut()
		for range 3 {
			if err := r.worker.Send([]byte("kept"), in(time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(1500 * time.Millisecond)
		r.setRefuse(nil)
		for range 3 {
			if got, err := r.driver.Recv(in(time.Second)); err != nil || string(got) != "kept" {
				t.Fatalf("%q, %v", got, err)
			}
		}
		for _, l := range []*Link{r.driver, r.worker} {
			if s := l.Stats(); s.State != Up || s.Resumes != 1 || s.Cause != nil {
				t.Errorf("%+v", s)
			}
		}
		time.Sleep(10 * time.Second)
		if r.driver.Err() != nil || r.worker.Err() != nil {
			t.Error(r.driver.Err(), r.worker.Err())
		}
	})
}

// TestSilence is a half-open connection: TCP shows nothing, the heartbeats stop.
func TestSilence(t *testing.T) {
	for _, reading := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Options{}, 1, perfect)
			defer r.close()
			time.Sleep(20 * time.Second) // idle links stay up
			if r.driver.Err() != nil || r.worker.Err() != nil {
				t.Fatal(r.driver.Err(), r.worker.Err())
			}
			begin := time.Now()
			r.network().swallow()
			// A writer that blocks because nothing leaves must not keep the end from being seen.
			big := make(chan error, 1)
			go func() { big <- r.driver.Send(make([]byte, 4<<20), time.Time{}) }()
			for _, l := range []*Link{r.driver, r.worker} {
				if reading {
					if _, err := l.Recv(time.Time{}); !errors.Is(err, ErrSilent) {
						t.Errorf("%v", err)
					}
				}
				<-l.Down()
				if err := l.Err(); !errors.Is(err, ErrSilent) || !errors.Is(err, queue.ErrClosed) {
					t.Errorf("%v", err)
				}
			}
			if took := time.Since(begin); took < 3*time.Second || took > 4500*time.Millisecond {
				t.Errorf("down after %v", took)
			}
			<-big
		})
	}
}

// TestStopped does not blame the peer for the time that this process itself stood still.
func TestStopped(t *testing.T) {
	now := time.Unix(1000, 0)
	s := silence{limit: 4 * time.Second, tick: 250 * time.Millisecond}
	s.start(now)
	step := func(d time.Duration, heard uint64) time.Duration {
		now = now.Add(d)
		return s.check(now, heard)
	}
	for range 8 {
		step(250*time.Millisecond, 0)
	}
	if got := step(time.Hour, 0); got > 3*time.Second {
		t.Errorf("silence of %v after having been stopped", got)
	}
	for range 8 {
		step(250*time.Millisecond, 0)
	}
	if got := step(0, 0); got < 4*time.Second {
		t.Errorf("silence of %v after four seconds awake", got)
	}
	if got := step(250*time.Millisecond, 1); got != 0 {
		t.Errorf("silence of %v when heard", got)
	}
}

// TestIdleReader has no goroutine in Recv on either side: acknowledgements, statuses, RTT and the
// end are seen all the same.
func TestIdleReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, func() memopt { return memopt{delay: 5 * time.Millisecond} })
		r.worker.Status().Started(42)
		r.worker.Status().Set(status.Forward, 7)
		r.driver.Status().Set(status.Idle, 0)
		time.Sleep(5 * time.Second)
		got, at := r.driver.PeerStatus()
		if got.Started != 42 || got.Phase != status.Forward || got.Detail != 7 ||
			time.Since(at) > 1200*time.Millisecond {
			t.Errorf("status %+v of %v ago", got, time.Since(at))
		}
		if got, _ := r.worker.PeerStatus(); got.Phase != status.Idle {
			t.Errorf("status %+v", got)
		}
		for _, l := range []*Link{r.driver, r.worker} {
			if s := l.Stats(); s.RTT != 10*time.Millisecond || s.SmoothRTT != 10*time.Millisecond {
				t.Errorf("round trip %v, smoothed %v, not 10ms", s.RTT, s.SmoothRTT)
			}
		}
		// Records that came meanwhile are there, and what was sent before a death is not lost with
		// it.
		for i := range 100 {
			if err := r.worker.Send([]byte{byte(i)}, time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		r.setRefuse(errors.New("dead"))
		r.network().cut()
		time.Sleep(5 * time.Second)
		for i := range 100 {
			if got, err := r.driver.Recv(time.Time{}); err != nil || got[0] != byte(i) {
				t.Fatalf("record %d: %v, %v", i, got, err)
			}
		}
		if _, err := r.driver.Recv(time.Time{}); !errors.Is(err, ErrCut) {
			t.Error(err)
		}
		r.close()
	})
}

// TestLastWords is a worker that reports a failure and dies at once, while the driver sends.
func TestLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, func() memopt { return memopt{delay: time.Millisecond} })
		defer r.close()
		synctest.Wait()
		r.setRefuse(errors.New("dead"))
		for _, s := range []string{"result", "failure"} {
			if err := r.worker.Send([]byte(s), time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Millisecond)
		if got, err := r.driver.Recv(in(time.Second)); err != nil || string(got) != "result" {
			t.Fatalf("%q, %v", got, err)
		}
		r.network().cut()
		for range 5 {
			r.driver.Send([]byte("next step"), in(time.Second)) // fails within the link
		}
		if got, err := r.driver.Recv(in(time.Second)); err != nil || string(got) != "failure" {
			t.Fatalf("%q, %v", got, err)
		}
		if _, err := r.driver.Recv(time.Time{}); !errors.Is(err, ErrCut) {
			t.Fatal(err)
		}
	})
}

func TestCloseInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, func() memopt { return memopt{delay: 20 * time.Millisecond} })
		record := make([]byte, 1<<20)
		if err := r.driver.Send(record, time.Time{}); err != nil {
			t.Fatal(err)
		}
		waits := make(chan error)
		go func() {
			_, err := r.driver.Recv(time.Time{})
			waits <- err
		}()
		synctest.Wait()
		closed := make(chan struct{})
		go func() {
			r.driver.Close("drained")
			close(closed)
		}()
		got, err := r.worker.Recv(in(time.Second))
		if err != nil || len(got) != len(record) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		var peer *PeerClosed
		if _, err := r.worker.Recv(in(time.Second)); !errors.As(err, &peer) ||
			peer.Reason != "drained" {
			t.Fatal(err)
		}
		<-closed
		if err := <-waits; !errors.Is(err, errLocalClose) || !errors.Is(err, queue.ErrClosed) {
			t.Error(err)
		}
		if err := r.driver.Send(nil, time.Time{}); !errors.Is(err, errLocalClose) {
			t.Error(err)
		}
		r.driver.Close("again")
		r.worker.Close("")
	})
}

// TestCloseIsBounded closes while the network is dead and a sender waits.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, perfect)
		synctest.Wait()
		r.network().swallow()
		waits := make(chan error)
		go func() { waits <- r.driver.Send(make([]byte, 32<<20), time.Time{}) }()
		synctest.Wait()
		begin := time.Now()
		r.driver.Close("gone")
		if took := time.Since(begin); took > 1100*time.Millisecond {
			t.Errorf("close took %v", took)
		}
		if err := <-waits; !errors.Is(err, errLocalClose) {
			t.Error(err)
		}
		r.worker.Close("")
	})
}

func TestResumeRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, perfect)
		defer r.close()
		synctest.Wait()
		for _, c := range []struct {
			resume handshake.Resume
			want   error
		}{
			{handshake.Resume{Session: handshake.Session{9}}, ErrSession},
			{handshake.Resume{Session: testSession, Received: 1}, ErrAck},
			{handshake.Resume{Session: testSession, Received: 1 << 63}, ErrAck},
		} {
			n, a, _ := newMemnet(memopt{}, 1)
			if err := r.driver.Resume(a, c.resume); !errors.Is(err, c.want) {
				t.Errorf("%+v: %v", c.resume, err)
			}
			if !n.ends[0].closed {
				t.Error("a refused connection stays open")
			}
		}
		if s := r.driver.Stats(); s.State != Up || s.Resumes != 0 {
			t.Errorf("%+v", s)
		}
		never := Accept(func() net.Conn { _, a, _ := newMemnet(memopt{}, 1); return a }(),
			testSession, Options{Grace: -1})
		_, a, _ := newMemnet(memopt{}, 1)
		if err := never.Resume(a, handshake.Resume{Session: testSession}); err == nil {
			t.Error("a link without grace was resumed")
		}
		never.Close("")
	})
}

func TestNoGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{Grace: -1}, 1, perfect)
		defer r.close()
		synctest.Wait()
		begin := time.Now()
		r.network().cut()
		if _, err := r.driver.Recv(time.Time{}); !errors.Is(err, ErrCut) || time.Since(begin) > 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

func TestTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, a, b := newMemnet(memopt{}, 1)
		_ = n
		small, large := Accept(a, testSession, Options{MaxRecord: 100_000}), Accept(b, testSession,
			Options{})
		if err := small.Send(make([]byte, 100_001), time.Time{}); !errors.Is(err, ErrTooLong) {
			t.Error(err)
		}
		if err := large.Send(make([]byte, 100_000), time.Time{}); err != nil {
			t.Error(err)
		}
		if got, err := small.Recv(in(time.Second)); err != nil || len(got) != 100_000 {
			t.Error(len(got), err)
		}
		if err := large.Send(make([]byte, 100_001), time.Time{}); err != nil {
			t.Error(err)
		}
		if _, err := small.Recv(in(time.Second)); !errors.Is(err, ErrTooLong) ||
			!errors.Is(err, ErrProtocol) {
			t.Error(err)
		}
		var peer *PeerClosed
		if _, err := large.Recv(in(time.Second)); !errors.As(err, &peer) ||
			!strings.Contains(peer.Reason, "too long") {
			t.Error(err)
		}
		small.Close("")
		large.Close("")
	})
}
