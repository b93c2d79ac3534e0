package link

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// recordsVariable sets how many records TestRecords sends in all.
const recordsVariable = "EAGLERAY_TEST_RECORDS"

// account makes random records that say what they must be: a number, a checksum, then bytes of an own pattern.
type account struct {
	rng    *rand.Rand
	number uint64
	source []byte
	sum    uint32 // of all so far
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	accountHead = 12
	longestBody = 300 << 10
)

func newAccount(seed, side int) *account {
	a := &account{rng: rand.New(rand.NewPCG(uint64(seed), uint64(side))), source: make([]byte, 2*longestBody)}
	fill(a.source, a.rng)
	return a
}

// next returns the next record, in buf.
func (a *account) next(buf []byte) []byte {
	n := a.rng.IntN(400)
	switch k := a.rng.IntN(2000); {
	case k == 0:
		n = a.rng.IntN(longestBody)
	case k < 40:
		n = a.rng.IntN(20 << 10)
	}
	from := a.rng.IntN(longestBody)
	body := a.source[from : from+n]
	buf = binary.LittleEndian.AppendUint64(buf[:0], a.number)
	buf = binary.LittleEndian.AppendUint32(buf, crc32.Checksum(body, castagnoli))
	buf = append(buf, body...)
	a.number++
	a.sum = crc32.Update(a.sum, castagnoli, buf)
	return buf
}

// check compares a record received with its own account of itself, and sums it up.
func (a *account) check(record []byte) error {
	if len(record) < accountHead {
		return fmt.Errorf("record %d of %d bytes", a.number, len(record))
	}
	if n := binary.LittleEndian.Uint64(record); n != a.number {
		return fmt.Errorf("record %d, not %d", n, a.number)
	}
	sum := crc32.Checksum(record[accountHead:], castagnoli)
	if want := binary.LittleEndian.Uint32(record[8:]); sum != want {
		return fmt.Errorf("record %d of %d bytes has sum %#x, not %#x", a.number, len(record), sum, want)
	}
	a.number++
	a.sum = crc32.Update(a.sum, castagnoli, record)
	return nil
}

// doze is a short delay now and then.
func doze(rng *rand.Rand) {
	if rng.IntN(3000) == 0 {
		time.Sleep(time.Duration(rng.IntN(1000)) * time.Microsecond)
	}
}

// TestRecords sends records of random sizes over TLS to different numbers of readers, which sometimes dawdle and
// answer every eighth; each side compares every record, and the sum of all, with what was sent. The variable
// EAGLERAY_TEST_RECORDS=1000000 makes it a million.
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
			defer noLeaks(t)()
			n := total / part
			var drivers, workers []*Link
			for range readers {
				a, b := tcpPair(t, true)
				o := Options{Window: 256 << 10}
				drivers, workers = append(drivers, Accept(a, testSession, o)), append(workers, Connect(b, testSession, nil, o))
			}
			sums := make([]uint32, readers)
			var wg sync.WaitGroup
			for rank, l := range workers {
				wg.Go(func() {
					in, out := newAccount(readers, 0), newAccount(readers, 1+rank)
					delay := rand.New(rand.NewPCG(uint64(readers), uint64(100+rank)))
					var buf []byte
					for range n {
						got, err := l.Recv(in5())
						if err == nil {
							err = in.check(got)
						}
						if err != nil {
							t.Errorf("reader %d: %v", rank, err)
							return
						}
						doze(delay)
						if in.number%repliesPer == 0 {
							buf = out.next(buf)
							if err := l.Send(buf, in5()); err != nil {
								t.Errorf("reader %d: %v", rank, err)
								return
							}
						}
					}
					sums[rank] = in.sum
				})
				wg.Go(func() {
					in := newAccount(readers, 1+rank)
					for range n / repliesPer {
						got, err := drivers[rank].Recv(in5())
						if err == nil {
							err = in.check(got)
						}
						if err != nil {
							t.Errorf("answers of reader %d: %v", rank, err)
							return
						}
					}
				})
			}
			out := newAccount(readers, 0)
			delay := rand.New(rand.NewPCG(uint64(readers), 99))
			var buf []byte
			for range n {
				buf = out.next(buf)
				for rank, l := range drivers {
					if err := l.Send(buf, in5()); err != nil {
						t.Fatalf("record %d to reader %d: %v", out.number, rank, err)
					}
				}
				doze(delay)
			}
			wg.Wait()
			for rank, sum := range sums {
				if sum != out.sum {
					t.Errorf("reader %d got records of sum %#x, not %#x", rank, sum, out.sum)
				}
				if s := workers[rank].Stats(); s.RecordsReceived != uint64(n) || s.RecordsSent != uint64(n/repliesPer) {
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
