package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
)

// The benchmarks run two ranks in two processes. Bare connections between the same processes, of
// the same kind, give the baseline: slices of each take turns, so that a busy machine disturbs them
// alike, and medians are reported.

// contest is the two connections of a process, one of them under a group.
type contest struct {
	g    *Group
	bare net.Conn
	x    []float32
	out  []byte
	in   []byte
	op   func() error // of the group

	dst         []float32
	counts, got []int
}

func newContest(grouped, bare net.Conn, rank int, op string, size int) (*contest, error) {
	conns := []net.Conn{nil, nil}
	conns[1-rank] = grouped
	g, err := Join(conns, rank, Options{MaxBytes: size})
	if err != nil {
		return nil, err
	}
	c := &contest{g: g, bare: bare, x: make([]float32, size/4), out: make([]byte, size),
		in: make([]byte, size), counts: make([]int, 2), got: make([]int, 2)}
	c.counts[1-rank] = size / 4
	c.op = map[string]func() error{"all-reduce": c.reduce, "all-to-all": c.runs}[op]
	return c, nil
}

// reduce is one all-reduce.
func (c *contest) reduce() error { return c.g.AllReduce(c.x) }

// runs is one all-to-all in which each rank has something for the other.
func (c *contest) runs() (err error) {
	c.dst, err = c.g.AllToAllV(c.dst, c.x, c.counts, c.got, nil)
	return err
}

// exchange is the least that an operation of two ranks takes: both send, both receive.
func (c *contest) exchange() error {
	if len(c.out) <= smallBytes {
		if _, err := c.bare.Write(c.out); err != nil {
			return err
		}
		_, err := io.ReadFull(c.bare, c.in)
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.bare.Write(c.out)
		sent <- err
	}()
	_, err := io.ReadFull(c.bare, c.in)
	return errors.Join(err, <-sent)
}

// pingPong is a round trip.
func (c *contest) pingPong() error {
	if c.g.Rank() == 0 {
		if _, err := c.bare.Write(c.out); err != nil {
			return err
		}
	}
	if _, err := io.ReadFull(c.bare, c.in); err != nil {
		return err
	}
	if c.g.Rank() == 1 {
		if _, err := c.bare.Write(c.out); err != nil {
			return err
		}
	}
	return nil
}

func (c *contest) contestants() []func() error {
	return []func() error{c.op, c.exchange, c.pingPong}
}

// rounds runs slices of every contestant in turn, for as long as both processes agree: rank 0 says
// by a byte whether there is another round. It returns the microseconds of each turn.
func (c *contest) rounds(slice int, more func() bool) ([3][]float64, error) {
	var times [3][]float64
	word := []byte{0}
	for {
		if c.g.Rank() == 0 {
			word[0] = 0
			if more() {
				word[0] = 1
			}
		}
		if err := c.g.Broadcast(word, 0); err != nil {
			return times, err
		}
		if word[0] == 0 {
			return times, c.g.Close()
		}
		for i, turn := range c.contestants() {
			if err := c.g.Barrier(); err != nil {
				return times, err
			}
			begin := time.Now()
			for range slice {
				if err := turn(); err != nil {
					return times, err
				}
			}
			times[i] = append(times[i], float64(time.Since(begin).Microseconds())/float64(slice))
		}
	}
}

// sliceOf is how many turns of a size are a slice.
func sliceOf(size int) int { return max(2, min(200, 4<<20/size)) }

// contestChild is rank 1.
func contestChild(address, kind, op string, size int) error {
	var conns [2]net.Conn
	for i := range conns {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		conns[i] = c
	}
	if err := secureAll(conns[:], kind, false); err != nil {
		return err
	}
	c, err := newContest(conns[0], conns[1], 1, op, size)
	if err != nil {
		return err
	}
	_, err = c.rounds(sliceOf(size), nil)
	return err
}

func BenchmarkAllReduce(b *testing.B) {
	for _, kind := range []string{"tcp", "tls"} {
		for _, size := range []int{1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20,
			16 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", kind, size>>10), func(b *testing.B) {
				benchmark(b, kind, "all-reduce", size)
			})
		}
	}
}

// BenchmarkAllToAll sends 1 and 64 rows of 2,048 elements each way.
func BenchmarkAllToAll(b *testing.B) {
	for _, kind := range []string{"tcp", "tls"} {
		for _, rows := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/rows=%d", kind, rows), func(b *testing.B) {
				benchmark(b, kind, "all-to-all", 4*2048*rows)
			})
		}
	}
}

func benchmark(b *testing.B, kind, op string, size int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	child := start(b, nil, "contest", l.Addr().String(), kind, op,
		fmt.Sprint(size))
	var conns [2]net.Conn
	for i := range conns {
		if conns[i], err = l.Accept(); err != nil {
			b.Fatal(err)
		}
		defer conns[i].Close()
	}
	if err := secureAll(conns[:], kind, true); err != nil {
		b.Fatal(err)
	}
	c, err := newContest(conns[0], conns[1], 0, op, size)
	if err != nil {
		b.Fatal(err)
	}
	round := -3 // to warm up
	times, err := c.rounds(sliceOf(size), func() bool {
		round++
		return round <= 0 || b.Loop()
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := child.Wait(); err != nil {
		b.Fatalf("%v: %s", err, child.Stderr.String())
	}
	median := func(i int) float64 {
		t := times[i][3:]
		slices.Sort(t)
		return t[len(t)/2]
	}
	took, exchange, pingPong := median(0), median(1), median(2)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(took, "µs")
	b.ReportMetric(exchange, "bare-exchange-µs")
	b.ReportMetric(pingPong, "bare-ping-pong-µs")
	b.ReportMetric(took/exchange, "x-exchange")
	b.ReportMetric(took/pingPong, "x-ping-pong")
	if op != "all-reduce" {
		return
	}
	// The additions are not the transport's: they go on top of the bare exchange.
	begin := time.Now()
	for range len(times[0]) {
		collective.SumTree(c.x, [][]float32{c.x, collective.Floats(c.in)})
	}
	sum := float64(time.Since(begin).Nanoseconds()) / 1e3 / float64(len(times[0]))
	b.ReportMetric(took/(exchange+sum), "x-exchange+sum")
}

// BenchmarkBorder compares the two ways of an all-reduce, for the choice of splitFrom. The ranks
// are goroutines.
func BenchmarkBorder(b *testing.B) {
	for _, ranks := range []int{2, 4, 8} {
		for _, size := range []int{16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("ranks=%d/%dKiB", ranks, size>>10), func(b *testing.B) {
				gs := group(b, ranks, tcpPair, Options{})
				ways := []func(*Group, []float32, step) error{(*Group).reduceWhole,
					(*Group).reduceSplit}
				var times [2][]float64
				for b.Loop() {
					for i, way := range ways {
						begin := time.Now()
						for _, err := range collectivetest.Each(gs,
							func(g *Group) error { return border(g, size, way) }) {
							if err != nil {
								b.Fatal(err)
							}
						}
						times[i] = append(times[i],
							float64(time.Since(begin).Microseconds())/borderTurns)
					}
				}
				for i := range times {
					slices.Sort(times[i])
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(times[0][len(times[0])/2], "whole-µs")
				b.ReportMetric(times[1][len(times[1])/2], "split-µs")
			})
		}
	}
}

const borderTurns = 20

func border(g *Group, size int, way func(*Group, []float32, step) error) error {
	x := make([]float32, size/4)
	for range borderTurns {
		err := g.do(collective.AllReduce, func() error {
			g.grow(size / 4)
			return way(g, x, g.next(collective.Tag(collective.AllReduce, 0, size)))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// secureAll puts TLS on the connections if the kind asks for it.
func secureAll(conns []net.Conn, kind string, server bool) error {
	if kind != "tls" {
		return nil
	}
	cert, err := certificate()
	if err != nil {
		return err
	}
	for i, c := range conns {
		s := tlsEnd(c, cert, server)
		if err := s.Handshake(); err != nil {
			return err
		}
		conns[i] = s
	}
	return nil
}

func contestArguments(args []string) error {
	if len(args) != 4 {
		return os.ErrInvalid
	}
	var size int
	if _, err := fmt.Sscan(args[3], &size); err != nil {
		return err
	}
	return contestChild(args[0], args[1], args[2], size)
}
