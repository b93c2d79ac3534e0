package kvtransfer

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/sys/memfile"
	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

// TestWays moves blocks between processes of one host through shared memory, and over TCP where one
// of them has none, where the name in the ticket is no agent's, or no name, and where who listens
// there is another one. What comes is the same.
func TestWays(t *testing.T) {
	// More than fills the memory, in pieces that do not divide its parts.
	s := shape(2, 1)
	s.Cache = plain(60, 4, 72)
	from, to := newGroup(t, s), newGroup(t, shapeLike(s, 1))
	stranger := newGroup(t, s).agents[0].Address().Local
	whole := shapeLike(s, 1)
	one, err := Listen(Options{Shape: whole, Memory: newRAM(&whole, 0), Blocks: 64,
		Host: "127.0.0.1",
		Plan: 5, Remote: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(one.Close)
	if one.Address().Local != "" {
		t.Fatalf("%+v", one.Address())
	}
	for name, c := range map[string]struct {
		to     *Agent
		local  string
		memory bool
	}{
		"one host":          {to.agents[0], from.agents[0].Address().Local, true},
		"no name":           {to.agents[0], "", false},
		"nobody's name":     {to.agents[0], strings.Repeat("0f", 16), false},
		"another one's":     {to.agents[0], stranger, false},
		"no agent's socket": {to.agents[0], "/run/dbus/system_bus_socket", false},
		"without memory":    {one, from.agents[0].Address().Local, false},
	} {
		h := Pin{Secret: NewSecret(), Blocks: []uint32{3, 60, 7, 1, 2, 4, 5, 6}, Digest: Digest{1},
			Plan: 5}
		from.hold(t, h)
		at := from.agents[0].Address()
		at.Local = c.local
		// Other ranks are asked where the first one says that they are.
		addresses := []Address{at, remote(from.agents[1].Address())}
		if c.memory {
			addresses[1] = from.agents[1].Address()
		}
		from.agents[0].SetRanks(addresses)
		blocks := []uint32{9, 8, 10, 11, 12, 13, 14, 15}
		moved, err := c.to.Fetch(context.Background(), &Fetch{Secret: h.Secret, From: at,
			Blocks: blocks,
			Digest: h.Digest, Plan: 5, Timeout: time.Minute})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all, _ := s.Bytes(whole.Parts(0)[0], blocks)
		if want := (Moved{Memory: all}); c.memory && moved != want || !c.memory &&
			moved != (Moved{Link: all}) {
			t.Errorf("%s: %+v of %d bytes", name, moved, all)
		}
		if all < 2*localParts*localPart {
			t.Fatalf("%d bytes do not fill the memory twice", all)
		}
		c.to.opt.Memory.(*ram).each(blocks, func(name string, b []byte) {
			if !bytes.Equal(b, content(name, len(b))) {
				t.Fatalf("%s holds %q", name, b[:12])
			}
			clear(b)
		})
	}
}

func shapeLike(s Shape, tp int) Shape {
	s.Layout.TP = tp
	return s
}

// TestLocalStrangers connects to an agent's local socket without memory, with what is none, with
// memory that could be taken away, and of another size. The agent is rid of all of them, keeps no
// descriptor, and serves others.
func TestLocalStrangers(t *testing.T) {
	from, to := newGroup(t, shape(1, 1)), newGroup(t, shape(1, 1))
	memory := func(size int64, sealed bool) int {
		f, err := memfile.Create("x", size)
		if err == nil && sealed {
			err = memfile.Seal(f)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const size = localParts * localPart
	name, err := socketName(from.agents[0].Address().Local)
	if err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	for what, fds := range map[string][]int{
		"nothing":          nil,
		"a file":           {int(file.Fd())},
		"unsealed memory":  {memory(size, false)},
		"too little":       {memory(size-1, true)},
		"two of them":      {memory(size, true), memory(size, true)},
		"many descriptors": {0, 0, 0, 0, 0, 0, 0, 0},
	} {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		var rights []byte
		if fds != nil {
			rights = unix.UnixRights(fds...)
		}
		if _, _, err := c.WriteMsgUnix([]byte{0}, rights, nil); err != nil {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := c.Read(make([]byte, 1)); n > 0 || os.IsTimeout(err) {
			t.Errorf("%s: %d bytes, %v", what, n, err)
		}
		c.Close()
		for _, fd := range fds {
			if fd > 2 && fd != int(file.Fd()) {
				unix.Close(fd)
			}
		}
	}
	h := Pin{Secret: NewSecret(), Blocks: []uint32{1}, Digest: Digest{1}, Plan: 5}
	from.hold(t, h)
	if err := to.fetch(from, h, []uint32{8}); err != nil {
		t.Error(err)
	}
	eventually(t, func() error {
		if after := descriptors(t); after > before {
			return fmt.Errorf("%d descriptors are open, %d were", after, before)
		}
		return nil
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// eventually waits until f has nothing to complain of.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Error(err)
}

// TestLocalHostileProducer says that more is in a part of the memory than it holds, and nothing.
func TestLocalHostileProducer(t *testing.T) {
	s, err := newSegment()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, head := range []string{"\x00\x08\x00\x01", "\xff\xff\xff\xff", "\x00\x00\x00\x00"} {
		d := &drainer{peer: &peer{r: bufio.NewReader(strings.NewReader(head)), memory: s}}
		if n, err := d.Read(make([]byte, 8)); err == nil {
			t.Errorf("%q: %d bytes", head, n)
		}
	}
}

// BenchmarkWays moves the blocks of a prompt from one agent to another one, by either way; memcpy
// copies as many bytes.
func BenchmarkWays(b *testing.B) {
	// Qwen2.5-0.5B's cache, for 2,048 tokens: 24 MiB.
	s := shape(1, 1)
	s.Cache = plain(24, 2, 64)
	blocks := make([]uint32, 128)
	for i := range blocks {
		blocks[i] = uint32(i)
	}
	all, err := s.Bytes(s.Parts(0)[0], blocks)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("memcpy", func(b *testing.B) {
		from, to := make([]byte, all), make([]byte, all)
		b.SetBytes(all)
		for b.Loop() {
			copy(to, from)
		}
	})
	open := func() *Agent {
		a, err := Listen(Options{Shape: s, Memory: aliases(newFlat(&s, len(blocks)).at),
			Blocks: len(blocks), Host: "127.0.0.1"})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(a.Close)
		a.SetRanks([]Address{a.Address()})
		return a
	}
	from, to := open(), open()
	for _, c := range []struct {
		name string
		at   Address
	}{{"memory", from.Address()}, {"link", remote(from.Address())}} {
		for _, n := range []int{1, len(blocks)} {
			b.Run(fmt.Sprintf("%s/blocks=%d", c.name, n), func(b *testing.B) {
				h := Pin{Secret: NewSecret(), Blocks: blocks[:n]}
				if err := from.Pin(h); err != nil {
					b.Fatal(err)
				}
				defer from.Release(h.Secret)
				from.SetRanks([]Address{c.at})
				b.SetBytes(all / int64(len(blocks)) * int64(n))
				for b.Loop() {
					if _, err := to.Fetch(context.Background(), &Fetch{Secret: h.Secret, From: c.at,
						Blocks: blocks[:n], Timeout: time.Minute}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// flat is a cache as ranks have it.
type flat struct {
	cells        []byte
	size, blocks int
	heads        int
}

func newFlat(s *Shape, blocks int) *flat {
	size, err := s.Bytes(s.Parts(0)[0], make([]uint32, blocks))
	if err != nil {
		panic(err)
	}
	heads := s.Cache[0].Heads
	f := &flat{size: int(size) / (len(s.Cache) * blocks * 2 * heads), blocks: blocks, heads: heads,
		cells: make([]byte, size)}
	for i := range f.cells {
		f.cells[i] = byte(i)
	}
	return f
}

func (f *flat) at(s compute.Span) []byte {
	at := (s.Layer*f.blocks + s.Block) * 2
	if s.Values {
		at++
	}
	return f.cells[(at*f.heads+s.From)*f.size : (at*f.heads+s.To)*f.size]
}

// TestNobodyAnswers connects to a socket whose listener says nothing, and gives up.
func TestNobodyAnswers(t *testing.T) {
	l, name, err := listenLocal()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	config := handshake.ClientTLS(handshake.Endpoint{Unpinned: true})
	ctx, cancel := context.WithCancel(context.Background())
	said := make(chan error, 1)
	go func() {
		c, _, err := dialLocal(ctx, name, config)
		if err == nil {
			c.Close()
		}
		said <- err
	}()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cancel()
	if err := <-said; err == nil {
		t.Error("connected")
	}
}
