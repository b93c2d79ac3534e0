package link

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue/queuetest"
)

// recordsVariable sets how many records TestRecords sends in all.
const recordsVariable = "EAGLERAY_TEST_RECORDS"

// TestRecords sends records of random sizes over TLS to different numbers of readers, which
// sometimes dawdle and answer every eighth; each side compares every record, and the sum of all,
// with what was sent. The variable EAGLERAY_TEST_RECORDS=1000000 makes it a million.
func TestRecords(t *testing.T) {
	total := 100_000
	if testing.Short() {
		total /= 10
	}
	if s := os.Getenv(recordsVariable); s != "" {
		var err error
		if total, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	const repliesPer = 8
	for readers, part := range map[int]int{1: 2, 2: 4, 5: 4} {
		t.Run(fmt.Sprint(readers), func(t *testing.T) {
			defer queuetest.NoLeaks(t)()
			n := total / part
			var drivers, workers []*Link
			for range readers {
				a, b := tcpPair(t, true)
				o := Options{Window: 256 << 10}
				drivers, workers = append(drivers, Accept(a, testSession, o)), append(workers,
					Connect(b, testSession, nil, o))
			}
			sums := make([]uint32, readers)
			var wg sync.WaitGroup
			for rank, l := range workers {
				wg.Go(func() {
					in, out := queuetest.NewStream(readers, 0), queuetest.NewStream(readers, 1+rank)
					delay := rand.New(rand.NewPCG(uint64(readers), uint64(100+rank)))
					var buf []byte
					for range n {
						got, err := l.Recv(in5())
						if err == nil {
							err = in.Check(got)
						}
						if err != nil {
							t.Errorf("reader %d: %v", rank, err)
							return
						}
						queuetest.Doze(delay)
						if in.Number%repliesPer == 0 {
							buf = out.Next(buf)
							if err := l.Send(buf, in5()); err != nil {
								t.Errorf("reader %d: %v", rank, err)
								return
							}
						}
					}
					sums[rank] = in.Sum
				})
				wg.Go(func() {
					in := queuetest.NewStream(readers, 1+rank)
					for range n / repliesPer {
						got, err := drivers[rank].Recv(in5())
						if err == nil {
							err = in.Check(got)
						}
						if err != nil {
							t.Errorf("answers of reader %d: %v", rank, err)
							return
						}
					}
				})
			}
			out := queuetest.NewStream(readers, 0)
			delay := rand.New(rand.NewPCG(uint64(readers), 99))
			var buf []byte
			for range n {
				buf = out.Next(buf)
				for rank, l := range drivers {
					if err := l.Send(buf, in5()); err != nil {
						t.Fatalf("record %d to reader %d: %v", out.Number, rank, err)
					}
				}
				queuetest.Doze(delay)
			}
			wg.Wait()
			for rank, sum := range sums {
				if sum != out.Sum {
					t.Errorf("reader %d got records of sum %#x, not %#x", rank, sum, out.Sum)
				}
				if s := workers[rank].Stats(); s.RecordsReceived != uint64(n) ||
					s.RecordsSent != uint64(n/repliesPer) {
					t.Errorf("reader %d counts %+v", rank, s)
				}
			}
			for rank := range workers {
				wg.Go(func() { workers[rank].Close("") })
				wg.Go(func() { drivers[rank].Close("") })
			}
			wg.Wait()
		})
	}
}

// in5 is a deadline that only a hang reaches.
func in5() time.Time { return in(5 * time.Minute) }
