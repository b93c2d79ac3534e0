package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// TestManySenders has several goroutines in Send at once, with records of one fragment and of many:
// none is torn, and those of each sender stay in order.
func TestManySenders(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			cuts := 10
			rng := rand.New(rand.NewPCG(seed, 5))
			r := newRig(t, Options{Window: 2 * chunkSize, Grace: time.Minute}, seed, func() memopt {
				if cuts--; cuts < 0 {
					return memopt{}
				}
				return memopt{cutAt: 1 + rng.IntN(1<<20), drop: true, buffer: 32 << 10}
			})
			defer r.close()
			const senders, each = 6, 40
			var wg sync.WaitGroup
			for s := range senders {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(seed, uint64(s)))
					for n := range each {
						size := 5 + rng.IntN(200)
						if rng.IntN(4) == 0 {
							size += rng.IntN(200 << 10)
						}
						b := bytes.Repeat([]byte{byte(s)}, size)
						binary.LittleEndian.PutUint32(b[1:], uint32(n))
						if err := r.driver.Send(b, in(time.Hour)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			var next [senders]uint32
			for range senders * each {
				got, err := r.worker.Recv(in(time.Hour))
				if err != nil {
					t.Fatal(err)
				}
				s, n := got[0], binary.LittleEndian.Uint32(got[1:])
				if int(s) >= senders || n != next[s] ||
					bytes.Count(got[5:], got[:1]) != len(got)-5 {
					t.Fatalf("record %d of sender %d, not %d, or torn", n, s, next[s])
				}
				next[s]++
			}
			wg.Wait()
		})
	}
}

// TestSendersWaitInTurn bounds the wait of a Send behind another one.
func TestSendersWaitInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{Window: chunkSize}, 1, perfect)
		defer r.close()
		first := make(chan error)
		go func() { first <- r.driver.Send(make([]byte, 10*chunkSize), in(time.Minute)) }()
		synctest.Wait()
		begin := time.Now()
		if err := r.driver.Send(nil, in(time.Second)); !errors.Is(err, queue.ErrTimeout) ||
			time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		second := make(chan error)
		go func() { second <- r.driver.Send(nil, time.Time{}) }()
		synctest.Wait()
		go r.driver.Close("")
		for _, c := range []chan error{first, second} {
			if err := <-c; !errors.Is(err, errLocalClose) {
				t.Errorf("%v", err)
			}
		}
	})
}

// TestLargeRecords are longer than the window, over cuts.
func TestLargeRecords(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			cuts := 6
			rng := rand.New(rand.NewPCG(seed, 6))
			r := newRig(t, Options{Window: 2 << 20, Grace: time.Minute}, seed, func() memopt {
				if cuts--; cuts < 0 {
					return memopt{}
				}
				return memopt{cutAt: 1 + rng.IntN(8<<20), drop: seed%2 == 0,
					delay: time.Duration(seed) * time.Millisecond}
			})
			defer r.close()
			want := make([]byte, 5<<20)
			for i := range want {
				want[i] = byte(i * (i >> 12))
			}
			const records = 4
			var wg sync.WaitGroup
			each(r, func(l *Link) {
				wg.Go(func() {
					for n := range records {
						if err := l.Send(want[n:], in(time.Hour)); err != nil {
							t.Error(err)
						}
					}
				})
				for n := range records {
					got, err := l.Recv(in(time.Hour))
					if err != nil || !bytes.Equal(got, want[n:]) {
						t.Errorf("record %d: %d bytes, %v", n, len(got), err)
						return
					}
				}
			})
			wg.Wait()
		})
	}
}

// TestOneRecv refuses a second caller, whose view would be void.
func TestOneRecv(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{}, 1, perfect)
		defer r.close()
		go r.driver.Recv(in(time.Second))
		synctest.Wait()
		if _, err := r.driver.Recv(in(time.Second)); err == nil ||
			errors.Is(err, queue.ErrTimeout) {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
	})
}
