package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// TestRunsOfManyRanks has groups of any number of ranks exchange runs of any lengths.
func TestRunsOfManyRanks(t *testing.T) {
	for name, l := range links() {
		for _, ranks := range []int{3, 5, 12} {
			t.Run(fmt.Sprintf("%s, %d ranks", name, ranks), func(t *testing.T) {
				gs := group(t, ranks, l, Options{})
				collectivetest.ManyRuns(t, gs, 24/ranks,
					func(r *rand.Rand) int { return 1 << r.IntN(20) })
			})
		}
	}
}

// TestLateRuns lets one rank come late every time, so that runs go through the readers, between
// operations of other kinds.
func TestLateRuns(t *testing.T) {
	t.Parallel()
	for name, l := range links() {
		t.Run(name, func(t *testing.T) {
			gs := group(t, 3, l, Options{})
			collectivetest.Must(t, collectivetest.Each(gs, func(g *Group) error {
				for i := range 30 {
					if g.rank == i%3 {
						time.Sleep(time.Duration(i%4) * 4 * time.Millisecond)
					}
					kind := []int{8, 8, 3, 8, 2}[i%5]
					if err := collectivetest.ScriptStep(g, kind, i%3, []int{3000, 60_000,
						300_000}[i/5%3], uint64(i)); err != nil {
						return fmt.Errorf("operation %d: %w", i, err)
					}
				}
				return nil
			}))
		})
	}
}

// die sends so many bytes of runs of n elements to each other rank, and ends this process.
func die(conns []net.Conn, n, sent int) error {
	tag := collective.Tag(collective.AllToAllV, 0, 4*n)
	var raw []byte
	for left := 4 * n; left > 0; left -= maxFrame {
		part := min(left, maxFrame)
		raw = append(raw, frame(header{kind: kindData, length: uint32(part),
			step: step{seq: 1, tag: tag}}, make([]byte, part))...)
	}
	for _, c := range conns {
		if c != nil {
			if _, err := c.Write(raw[:min(sent, len(raw))]); err != nil {
				return err
			}
		}
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// TestKilledInRuns has a rank die in each phase of an all-to-all: before it has sent anything, in
// the middle of a header, after one, in the middle of a run, between two frames, and when it has
// sent all. The others end quickly and name it.
func TestKilledInRuns(t *testing.T) {
	for _, n := range []int{100, 100_000} {
		for _, sent := range []int{0, headerSize / 2, headerSize, headerSize + 4*n/3,
			headerSize + maxFrame, 1 << 30} {
			t.Run(fmt.Sprintf("%d of %d elements", sent, n), func(t *testing.T) {
				const ranks = 4
				conns := mesh(t, ranks, tcpPair)
				victim := start(t, conns[1], "die", "1", "4", strconv.Itoa(n), strconv.Itoa(sent))
				var others []*testchild.Process
				for r := 2; r < ranks; r++ {
					others = append(others, start(t, conns[r], "exchange", strconv.Itoa(r), "4",
						strconv.Itoa(n)))
				}
				g, err := Join(conns[0], 0, Options{Timeout: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				ended := make(chan error, 1)
				go func() { ended <- collectivetest.ExchangeUntil(g, n) }()
				if err := victim.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
					t.Fatalf("the victim: %v: %s", err, victim.Stderr.String())
				}
				died := time.Now()
				const left = "waiting for rank 1: rank has left the group"
				if err := <-ended; !errors.Is(err, collective.ErrLeft) &&
					!errors.Is(err, collective.ErrAborted) || !strings.Contains(err.Error(), left) {
					t.Errorf("rank 0: %v", err)
				}
				for i, p := range others {
					p.Wait()
					code, said := p.ProcessState.ExitCode(), p.Stderr.String()
					if code != 1 || !strings.Contains(said, left) {
						t.Errorf("rank %d: exit code %d, %s", i+2, code, said)
					}
				}
				if took := time.Since(died); took > 10*time.Second {
					t.Errorf("the others ended after %v", took)
				}
			})
		}
	}
}

// hearLimit is the most that a peer may say it has in hearRuns.
const hearLimit = 1 << 18

// hearRuns runs an all-to-all of two ranks whose lengths are not known, and one whose are, against
// the bytes.
func hearRuns(t testing.TB, raw []byte, piece int) (x []float32, got []int, err error) {
	g, err := Join([]net.Conn{nil, &deafConn{bytes: bytes.NewReader(raw), step: piece}}, 0,
		Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	g.most = hearLimit
	got = make([]int, 2)
	if x, err = g.AllToAllV(nil, []float32{1, 2, 3}, []int{1, 2}, got, nil); err != nil {
		return nil, got, err
	}
	back := make([]float32, 3)
	err = g.AllToAll(back, []float32{4, 5}, []int{1, 1}, []int{1, 2})
	return x, got, err
}

// honestRuns is what a peer sends that takes part in hearRuns, with a run of n elements.
func honestRuns(n int) []byte {
	payload := make([]float32, n)
	for i := range payload {
		payload[i] = float32(i)
	}
	var b []byte
	there := step{seq: 1, tag: collective.Tag(collective.AllToAllV, 0, 4*n)}
	x := collective.Bytes(payload)
	for at := 0; at == 0 || at < len(x); at += maxFrame {
		part := x[at:min(at+maxFrame, len(x))]
		b = append(b, frame(header{kind: kindData, length: uint32(len(part)), step: there},
			part)...)
	}
	back := step{seq: 2, tag: collective.Tag(collective.AllToAll, 0, 8)}
	return append(b, frame(header{kind: kindData, length: 8, step: back}, make([]byte, 8))...)
}

func TestHostileRuns(t *testing.T) {
	of := func(size, length int, payload ...byte) []byte {
		return frame(header{kind: kindData, length: uint32(length),
			step: step{seq: 1, tag: collective.Tag(collective.AllToAllV, 0, size)}}, payload)
	}
	large := honestRuns(100_000)
	second := bytes.Clone(large)
	second[headerSize+maxFrame+4]++
	for name, tt := range map[string]struct {
		bytes []byte
		is    error
		want  string
	}{
		"nothing":        {nil, collective.ErrLeft, "waiting for rank 1"},
		"half a header":  {of(12, 12)[:20], collective.ErrLeft, "waiting for rank 1"},
		"half a payload": {of(12, 12, 1, 2, 3), collective.ErrLeft, "waiting for rank 1"},
		"a run without end": {of(1<<40-1, maxFrame), collective.ErrMismatch,
			"run of 1099511627775 bytes on rank 1"},
		"a run beyond the limit": {of(4*hearLimit+4, maxFrame), collective.ErrMismatch,
			"at most 262144"},
		"half an element": {of(6, 6, 1, 2, 3, 4, 5, 6), collective.ErrMismatch,
			"run of 6 bytes on rank 1"},
		"a longer frame": {of(12, 16, make([]byte, 16)...), collective.ErrMismatch,
			"frame of 12 bytes"},
		"a shorter frame": {of(12, 8, make([]byte, 8)...), collective.ErrMismatch,
			"frame of 12 bytes"},
		"another second frame": {second, collective.ErrMismatch, "frame of 137856 bytes"},
		"half of a large run":  {large[:maxFrame], collective.ErrLeft, "waiting for rank 1"},
		"a large run but its end": {large[:len(large)-50], collective.ErrLeft,
			"waiting for rank 1"},
		"an operation of its size": {honest(), collective.ErrMismatch, "all-to-all-v here"},
		"an abort": {frame(header{kind: kindAbort, length: 3, step: step{seq: 1}},
			[]byte("why")), collective.ErrAborted, "by rank 1: why"},
		"half an abort": {frame(header{kind: kindAbort, length: 3, step: step{seq: 1}},
			[]byte("wh")), collective.ErrLeft, "waiting for rank 1"},
		"another length back": {slices.Concat(honestRuns(3)[:headerSize+12], frame(header{
			kind: kindData, length: 12, step: step{seq: 2, tag: collective.Tag(
				collective.AllToAll, 0, 12)}}, make([]byte, 12))), collective.ErrMismatch,
			"run of 2 elements here, of 3 on rank 1"},
		"everything":       {honestRuns(3), nil, ""},
		"a large run":      {large, nil, ""},
		"a run of nothing": {honestRuns(0), nil, ""},
	} {
		for _, piece := range []int{7, 1 << 20} {
			x, got, err := hearRuns(t, tt.bytes, piece)
			if !errors.Is(err, tt.is) || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s in pieces of %d: %v, want %q", name, piece, err, tt.want)
			}
			if err == nil && (len(x) != got[0]+got[1] || got[1] > 0 && x[len(x)-1] !=
				float32(got[1]-1)) {
				t.Errorf("%s in pieces of %d: lengths %v, %d elements", name, piece, got, len(x))
			}
		}
	}
}

// FuzzRuns feeds a rank any bytes: it may fail in any way but a panic or a hang, and succeeds only
// with a peer that keeps to the protocol.
func FuzzRuns(f *testing.F) {
	f.Add(honestRuns(3), 1000)
	f.Add(honestRuns(3)[:50], 1)
	f.Add(honestRuns(70_000), 1<<20)
	f.Add(frame(header{kind: kindAbort, length: 3, step: step{seq: 1}}, []byte("why")), 3)
	f.Fuzz(func(t *testing.T, raw []byte, piece int) {
		_, got, err := hearRuns(t, raw, max(1, piece))
		if err != nil {
			var e *collective.Error
			if !errors.As(err, &e) {
				t.Fatalf("error of type %T: %v", err, err)
			}
			return
		}
		r, left := bytes.NewReader(raw), 4*got[1]
		for first := true; first || left > 0; first = false {
			var b [headerSize]byte
			if _, err := io.ReadFull(r, b[:]); err != nil {
				t.Fatal("succeeded with too few bytes")
			}
			h := decodeHeader(b[:])
			if h.kind != kindData || h.step.seq != 1 || int(h.length) != min(left, maxFrame) ||
				h.step.tag != collective.Tag(collective.AllToAllV, 0, 4*got[1]) {
				t.Fatalf("succeeded with header %+v", h)
			}
			left -= int(h.length)
			r.Seek(int64(h.length), io.SeekCurrent)
		}
	})
}
