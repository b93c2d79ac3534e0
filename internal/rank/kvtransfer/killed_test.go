package kvtransfer

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// TestMain makes the test binary one side of a transfer, which stops in the middle of it.
func TestMain(m *testing.M) { testchild.Main(m, child) }

// stuck is a cache that says "half" when half of it has been touched, and is silent from then on.
type stuck struct {
	*flat
	touched int
}

func (s *stuck) at(span compute.Span) []byte {
	if s.touched++; s.touched == len(s.cells)/(2*s.size) {
		fmt.Println("half")
		select {}
	}
	return s.flat.at(span)
}

// bulky is a shape of whose blocks a few do not fit in memory and buffers.
func bulky() Shape {
	s := shape(1, 1)
	s.Cache = plain(24, 1, 1024)
	return s
}

// bulkyHold is all of them.
func bulkyHold() Pin {
	h := Pin{Secret: Secret{7}, Digest: Digest{1}}
	for i := range bulkyBlocks {
		h.Blocks = append(h.Blocks, uint32(i))
	}
	return h
}

const bulkyBlocks = 32

// child holds blocks, or fetches those of the address that it is given, as JSON.
func child(job string) error {
	s := bulky()
	m := &stuck{flat: newFlat(&s, bulkyBlocks)}
	a, err := Listen(Options{Shape: s, Memory: aliases(m.at), Blocks: bulkyBlocks,
		Host: "127.0.0.1"})
	if err != nil {
		return err
	}
	h := bulkyHold()
	if job != "hold" {
		var from Address
		if err := json.Unmarshal([]byte(job), &from); err != nil {
			return err
		}
		_, err := a.Fetch(context.Background(), &Fetch{Secret: h.Secret, From: from,
			Blocks: h.Blocks,
			Digest: h.Digest, Timeout: time.Hour})
		return fmt.Errorf("the fetch has ended: %v", err)
	}
	a.SetRanks([]Address{a.Address()})
	if err := a.Pin(h); err != nil {
		return err
	}
	text, err := json.Marshal(a.Address())
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	select {}
}

func startChild(t *testing.T, job string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	c := testchild.New(t, job).Cmd
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c, bufio.NewReader(out)
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	text, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(text)
}

// left is what transfers have left in this process, and in /dev/shm.
func left() error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	if strings.Contains(string(maps), "eagleray-kv") {
		return fmt.Errorf("memory is still mapped:\n%s", maps)
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, f := range files {
		if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.Contains(to, "eagleray-kv") {
			return fmt.Errorf("memory is still open: %s", to)
		}
	}
	shm, _ := os.ReadDir("/dev/shm")
	for _, f := range shm {
		if strings.Contains(f.Name(), "eagleray-kv") {
			return fmt.Errorf("/dev/shm has %s", f.Name())
		}
	}
	return nil
}

// TestKilled kills either side in the middle of a transfer, by both ways. The other one knows at
// once, and nothing is left.
func TestKilled(t *testing.T) {
	s := bulky()
	for _, memory := range []bool{true, false} {
		way := func(a Address) Address {
			if memory {
				return a
			}
			return remote(a)
		}
		own, err := Listen(Options{Shape: s, Memory: aliases(newFlat(&s, bulkyBlocks).at),
			Blocks: bulkyBlocks, Host: "127.0.0.1", Remote: !memory})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(own.Close)
		own.SetRanks([]Address{way(own.Address())})

		producer, says := startChild(t, "hold")
		var from Address
		if err := json.Unmarshal([]byte(line(t, says)), &from); err != nil {
			t.Fatal(err)
		}
		h := bulkyHold()
		ended := make(chan error, 1)
		go func() {
			moved, err := own.Fetch(context.Background(), &Fetch{Secret: h.Secret, From: way(from),
				Blocks: h.Blocks, Digest: h.Digest, Timeout: time.Hour})
			if moved.Memory > 0 != memory || moved.Link > 0 == memory {
				t.Errorf("%+v has come", moved)
			}
			ended <- err
		}()
		line(t, says)
		producer.Process.Kill()
		if err := <-ended; err == nil {
			t.Error("all has come of a producer that was killed")
		}
		eventually(t, left)

		if err := own.Pin(h); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(way(own.Address()))
		if err != nil {
			t.Fatal(err)
		}
		consumer, says := startChild(t, string(text))
		line(t, says)
		consumer.Process.Kill()
		// The agent has no more readers than before, without a word of any.
		eventually(t, func() error {
			own.mu.Lock()
			defer own.mu.Unlock()
			if n := len(own.pins[nameOf(h.Secret)].readers); n > 0 {
				return fmt.Errorf("%d read on", n)
			}
			return nil
		})
		own.Release(h.Secret)
		eventually(t, left)
	}
}

// slow is a cache whose half way is a gate.
type slow struct {
	*flat
	touched int
	half    chan struct{} // closed when it is reached
	gate    chan struct{} // closed to go on
}

func (s *slow) at(span compute.Span) []byte {
	if s.touched++; s.touched == len(s.cells)/(2*s.size) {
		close(s.half)
		<-s.gate
	}
	return s.flat.at(span)
}

// TestCancel ends a fetch before it begins, and in the middle of what comes: it returns at once,
// though the producer is stuck, and the producer hears of it.
func TestCancel(t *testing.T) {
	s := bulky()
	for _, memory := range []bool{true, false} {
		open := func(m aliases) *Agent {
			a, err := Listen(Options{Shape: s, Memory: m, Blocks: bulkyBlocks, Host: "127.0.0.1",
				Remote: !memory})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(a.Close)
			a.SetRanks([]Address{a.Address()})
			return a
		}
		stuck := &slow{flat: newFlat(&s, bulkyBlocks), half: make(chan struct{}),
			gate: make(chan struct{})}
		from, to := open(stuck.at), open(newFlat(&s, bulkyBlocks).at)
		for i, early := range []bool{true, false} {
			h := bulkyHold()
			h.Secret = NewSecret()
			if err := from.Pin(h); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			id := uint64(i + 1)
			fetch := func() {
				_, err := to.Fetch(context.Background(), &Fetch{ID: id, Secret: h.Secret,
					From:   from.Address(),
					Blocks: h.Blocks, Digest: h.Digest, Timeout: time.Hour})
				ended <- err
			}
			if early {
				to.Cancel(id)
				fetch()
			} else {
				go fetch()
				<-stuck.half
				to.Cancel(id)
			}
			if err := <-ended; err == nil {
				t.Error("all has come")
			}
			if !from.AwaitFetched(context.Background(), h.Secret) {
				t.Error("the producer does not know")
			}
			if !early {
				close(stuck.gate)
			}
			from.Release(h.Secret)
		}
		to.Cancel(2) // is over
		to.mu.Lock()
		if len(to.fetching) > 0 {
			t.Errorf("%d fetches are under way", len(to.fetching))
		}
		to.mu.Unlock()
	}
}
