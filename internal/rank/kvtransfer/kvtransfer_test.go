package kvtransfer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/step"
)

// ram is the cache of a rank in which every byte is known by where it is in the whole model.
type ram struct {
	s    *Shape
	rank int
	// mu is for cells, which are made as they are looked at: an agent that fetches from itself does
	// so in two goroutines.
	mu    sync.Mutex
	cells map[[3]int][]byte
}

func newRAM(s *Shape, rank int) *ram {
	return &ram{s: s, rank: rank, cells: map[[3]int][]byte{}}
}

// place is which heads the rank has of one of its layers, and the size of one of them in a block:
// of its keys, its values, or the latent that is both.
func (m *ram) place(layer int) (heads [2]int, size int) {
	layer += m.s.layers(m.rank)[0]
	n, err := m.s.Bytes(Part{[2]int{layer, layer + 1}, [2]int{0, 1}},
		slices.Repeat([]uint32{0}, m.s.Groups()))
	if err != nil {
		panic(err)
	}
	return m.s.heads(layer, m.s.Layout.Place(m.rank).TP), int(n) / m.s.Cache[layer].Vectors()
}

func (m *ram) at(s compute.Span) []byte {
	kind := 0
	if s.Values {
		kind = 1
	}
	at := [3]int{s.Layer, s.Block, kind}
	m.mu.Lock()
	defer m.mu.Unlock()
	heads, size := m.place(s.Layer)
	if m.cells[at] == nil {
		m.cells[at] = make([]byte, size*(heads[1]-heads[0]))
	}
	return m.cells[at][s.From*size : s.To*size]
}

// Read implements Memory.
func (m *ram) Read(spans iter.Seq[compute.Span], f func([]byte) error) error {
	return aliases(m.at).Read(spans, f)
}

// Fill implements Memory.
func (m *ram) Fill(spans iter.Seq[compute.Span], f func([]byte) error) error {
	return aliases(m.at).Fill(spans, f)
}

// aliases is a Memory by where its bytes are.
type aliases func(s compute.Span) []byte

func (a aliases) Read(spans iter.Seq[compute.Span], f func([]byte) error) error {
	for s := range spans {
		if err := f(a(s)); err != nil {
			return err
		}
	}
	return nil
}

func (a aliases) Fill(spans iter.Seq[compute.Span], f func([]byte) error) error {
	return a.Read(spans, f)
}

// each calls f with every head of some blocks and what names it in the whole model.
func (m *ram) each(blocks []uint32, f func(name string, b []byte)) {
	layers := m.s.layers(m.rank)
	for layer := layers[0]; layer < layers[1]; layer++ {
		heads, _ := m.place(layer - layers[0])
		for i, b := range blocks {
			for head := heads[0]; head < heads[1]; head++ {
				for v := range m.s.Cache[layer].Vectors() {
					own := head - heads[0]
					f(fmt.Sprint(layer, i, head, v > 0), m.at(compute.Span{
						Layer: layer - layers[0], Block: int(b), Values: v > 0, From: own,
						To: own + 1}))
				}
			}
		}
	}
}

// content is what the head of a name holds.
func content(name string, n int) []byte {
	return bytes.Repeat([]byte(name+" "), n/len(name)+1)[:n]
}

// group is the agents of an engine.
type group struct {
	agents []*Agent
	rams   []*ram
}

// early is short: some tests wait for all of it.
const early = 200 * time.Millisecond

func newGroup(t *testing.T, s Shape) *group {
	t.Helper()
	g := &group{}
	var addresses []Address
	for r := range s.Layout.World() {
		m := newRAM(&s, r)
		a, err := Listen(Options{Shape: s, Rank: r, Memory: m, Blocks: 64, Host: "127.0.0.1",
			Plan:  5,
			Early: early})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		g.agents, g.rams = append(g.agents, a), append(g.rams, m)
		addresses = append(addresses, a.Address())
	}
	for _, a := range g.agents {
		a.SetRanks(addresses)
	}
	return g
}

// hold has all ranks hand out blocks that hold what is known of them.
func (g *group) hold(t *testing.T, h Pin) {
	t.Helper()
	for i, a := range g.agents {
		g.rams[i].each(h.Blocks, func(name string, b []byte) { copy(b, content(name, len(b))) })
		if err := a.Pin(h); err != nil {
			t.Fatal(err)
		}
	}
}

// remote is an agent's address as another host has it.
func remote(a Address) Address {
	a.Local = ""
	return a
}

func shape(tp, pp int) Shape {
	return Shape{Model: "m", DType: "bfloat16", CacheDType: "bfloat16", ISA: "avx2", BlockSize: 16,
		Cache:  plain(6, 4, 8),
		Layout: layout.Layout{TP: tp, PP: pp}.Sizes(), Stages: layout.Stages{2, 3}[:pp-1]}
}

// plain are layers that keep keys and values of as many heads each.
func plain(layers, heads, dim int) []compute.CacheLayer {
	return slices.Repeat([]compute.CacheLayer{{Heads: heads, Dim: dim}}, layers)
}

// mixed is a shape whose layers differ in what they keep.
func mixed(tp, pp int) Shape {
	s := shape(tp, pp)
	s.Cache[0] = compute.CacheLayer{Kind: compute.Latent, Heads: 1, Dim: 48, Values: 32}
	s.Cache[2].Heads, s.Cache[2].Window = 8, 64
	s.Cache[3], s.Cache[5].Dim = s.Cache[0], 64
	return s
}

func (g *group) fetch(from *group, h Pin, blocks []uint32) error {
	for _, a := range g.agents {
		if _, err := a.Fetch(context.Background(), &Fetch{Secret: h.Secret,
			From:   from.agents[0].Address(),
			Blocks: blocks, First: len(h.Blocks) - len(blocks), Digest: h.Digest, Plan: 5,
			Timeout: 10 * time.Second}); err != nil {
			return err
		}
	}
	return nil
}

// TestLayouts moves blocks between engines that are divided in all ways, more ranks than heads
// among them, and wants every head of every layer in its place, and the hand-over to be known.
func TestLayouts(t *testing.T) {
	for name, shape := range map[string]func(tp, pp int) Shape{"plain": shape, "mixed": mixed} {
		t.Run(name, func(t *testing.T) { testLayouts(t, shape) })
	}
}

func testLayouts(t *testing.T, shape func(tp, pp int) Shape) {
	var all []*group
	for _, l := range [][2]int{{1, 1}, {2, 1}, {4, 2}, {1, 3}, {8, 1}} {
		all = append(all, newGroup(t, shape(l[0], l[1])))
	}
	for i, from := range all {
		for j, to := range all {
			h := Pin{Secret: NewSecret(), Blocks: []uint32{3, 60, 7}, Digest: Digest{1}, Plan: 5}
			from.hold(t, h)
			blocks := []uint32{uint32(10 + i), 2}
			if err := to.fetch(from, h, blocks); err != nil {
				t.Fatalf("%d to %d: %v", i, j, err)
			}
			for _, m := range to.rams {
				seen := 0
				m.each([]uint32{0, blocks[0], blocks[1]}, func(name string, b []byte) {
					var layer, block, head int
					var values bool
					fmt.Sscan(name, &layer, &block, &head, &values)
					if seen++; block > 0 && !bytes.Equal(b, content(name, len(b))) {
						t.Fatalf("%d to %d: %s holds %q", i, j, name, b[:12])
					}
				})
				if seen == 0 {
					t.Fatal("nothing was looked at")
				}
			}
			if !from.agents[0].AwaitFetched(context.Background(), h.Secret) {
				t.Errorf("%d to %d: not handed over", i, j)
			}
			for _, a := range from.agents {
				a.Release(h.Secret)
			}
		}
	}
}

// TestRefused asks for what must not be had. No error tells a stranger what is held.
func TestRefused(t *testing.T) {
	t.Parallel()
	from, to := newGroup(t, shape(2, 1)), newGroup(t, shape(1, 1))
	h := Pin{Secret: NewSecret(), Blocks: []uint32{1, 2}, Digest: Digest{1}, Plan: 5}
	from.hold(t, h)
	good := Fetch{Secret: h.Secret, From: from.agents[0].Address(), Blocks: []uint32{8, 9},
		Digest: h.Digest, Plan: 5, Timeout: 3 * time.Second}
	other := func(change func(s *Shape)) *group {
		s := shape(1, 1)
		change(&s)
		return newGroup(t, s)
	}
	for name, c := range map[string]struct {
		to     *group
		change func(f *Fetch)
		want   string
	}{
		"another secret": {to, func(f *Fetch) { f.Secret[0]++ }, ""},
		"another prompt": {to, func(f *Fetch) { f.Digest[0]++ }, "another prompt"},
		"fewer blocks":   {to, func(f *Fetch) { f.Blocks = f.Blocks[:1] }, "another prompt"},
		"before first": {to, func(f *Fetch) { f.First, f.Blocks = -1, []uint32{1, 2, 3} },
			"from -1 on"},
		"a block of nobody": {to, func(f *Fetch) { f.Blocks = []uint32{64, 1} },
			"fetch block 64 of 64"},
		"another certificate": {to, func(f *Fetch) { f.From.Fingerprint[3]++ }, "fingerprint"},
		"nobody there": {to, func(f *Fetch) { f.From = remote(f.From); f.From.Port = 1 },
			"connect to 127.0.0.1:1"},
		"a plan to come": {to, func(f *Fetch) { f.Plan = 6 }, "wait for plan 6"},
		"another model": {other(func(s *Shape) { s.Model = "x" }), nil,
			"model is m, this one's x"},
		"another type": {other(func(s *Shape) { s.DType = "float32" }), nil,
			"data type is bfloat16"},
		"another type of cache": {other(func(s *Shape) { s.CacheDType = "int8" }), nil,
			"(--kv-cache-dtype) is bfloat16, this one's int8"},
		"other instructions": {other(func(s *Shape) { s.ISA = "avx512" }), nil, "instruction set"},
		"other blocks":       {other(func(s *Shape) { s.BlockSize = 32 }), nil, "block size is 16"},
		"other layers": {other(func(s *Shape) { s.Cache = plain(7, 4, 8) }), nil,
			"number of layers is 6"},
		"another window": {other(func(s *Shape) { s.Cache[3].Window = 16 }), nil,
			"cache of layer 3 is 4 heads of 8, this one's 4 heads of 8, in a window of 16"},
		"another kind": {other(func(s *Shape) { s.Cache = mixed(1, 1).Cache }), nil,
			"this one's a latent of 48, 32 of them values"},
	} {
		f := good
		if c.change != nil {
			c.change(&f)
		}
		_, err := c.to.agents[0].Fetch(context.Background(), &f)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if from.agents[1].Pin(Pin{Blocks: []uint32{64}}) == nil {
		t.Error("holds a block that is not there")
	}
	for _, a := range from.agents {
		a.Release(h.Secret)
		a.Release(h.Secret)
	}
	good.Timeout = time.Minute
	began := time.Now()
	_, err := to.agents[0].Fetch(context.Background(), &good)
	if err == nil || !strings.Contains(err.Error(), "not any more") ||
		time.Since(began) > 20*time.Second {
		t.Errorf("after the end: %v in %v", err, time.Since(began))
	}
}

// TestPlaceHolders pins a prompt whose first blocks were given up: what is left can be fetched, and
// no more.
func TestPlaceHolders(t *testing.T) {
	from, to := newGroup(t, shape(2, 1)), newGroup(t, shape(1, 1))
	h := Pin{Secret: NewSecret(), Blocks: []uint32{step.NoBlock, step.NoBlock, 5},
		Digest: Digest{1}, Plan: 5}
	for i, a := range from.agents {
		from.rams[i].each(h.Blocks[2:], func(name string, b []byte) {
			copy(b, content(name, len(b)))
		})
		if err := a.Pin(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.fetch(from, h, []uint32{8, 9}); err == nil ||
		!strings.Contains(err.Error(), "blocks from 1 on are asked for, some of which were not") {
		t.Error(err)
	}
	if err := to.fetch(from, h, []uint32{9}); err != nil {
		t.Error(err)
	}
	to.rams[0].each([]uint32{9}, func(name string, b []byte) {
		if !bytes.Equal(b, content(name, len(b))) {
			t.Fatalf("%s holds %q", name, b[:12])
		}
	})
}

// TestHeldLater asks before the driver's word of the transfer, and before its plan is executed.
func TestHeldLater(t *testing.T) {
	from, to := newGroup(t, shape(1, 1)), newGroup(t, shape(1, 1))
	from.agents[0].opt.Early = time.Minute
	h := Pin{Secret: NewSecret(), Blocks: []uint32{1, 2}, Digest: Digest{1}, Plan: 6}
	done := make(chan error, 1)
	go func() { done <- to.fetch(from, h, []uint32{8, 9}) }()
	from.hold(t, h)
	select {
	case err := <-done:
		t.Fatalf("ended with %v before the plan was executed", err)
	case <-time.After(20 * time.Millisecond):
	}
	from.agents[0].Executed(6)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestCut frees blocks, and closes the agent, while a peer reads them that does not go on. The read
// is over when that has returned; a fetch of the rest fails.
func TestCut(t *testing.T) {
	big := shape(1, 1)
	big.Cache = plain(200, 4, 512)
	for name, end := range map[string]func(a *Agent, s Secret){
		"freed":  func(a *Agent, s Secret) { a.Release(s) },
		"closed": func(a *Agent, _ Secret) { a.Close() },
	} {
		g := newGroup(t, big)
		h := Pin{Secret: NewSecret(), Blocks: []uint32{1, 2, 3, 4}, Digest: Digest{1}, Plan: 5}
		g.hold(t, h)
		a := g.agents[0]
		p, err := a.dial(context.Background(), remote(a.Address()))
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.call(&request{Op: "read", Secret: h.Secret, Digest: h.Digest,
			Part: a.opt.Shape.Parts(0)[0], Count: 4})
		if err != nil {
			t.Fatal(err)
		}
		if r.Bytes < 64<<20 {
			t.Fatalf("%d bytes may lie in the buffers of the kernel", r.Bytes)
		}
		end(a, h.Secret)
		a.mu.Lock()
		readers := 0
		for _, h := range a.pins {
			readers += len(h.readers)
		}
		a.mu.Unlock()
		if n, err := p.r.WriteTo(discard{}); err == nil && n >= r.Bytes || readers > 0 {
			t.Errorf("%s: %d bytes have come, %v; %d read on", name, n, err, readers)
		}
		p.close()
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// TestHostile sends an agent what no peer sends: it stays, and serves others.
func TestHostile(t *testing.T) {
	g, to := newGroup(t, shape(1, 1)), newGroup(t, shape(2, 1))
	h := Pin{Secret: NewSecret(), Blocks: []uint32{1}, Digest: Digest{1}, Plan: 5}
	g.hold(t, h)
	at := g.agents[0].Address()
	frame := func(text string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	}
	known := func(format string, args ...any) []byte {
		secret, err := json.Marshal(h.Secret)
		if err != nil {
			t.Fatal(err)
		}
		return frame(`{"secret":` + string(secret) + "," + fmt.Sprintf(format, args...) + "}")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var sends [][]byte
	for range 20 {
		b := make([]byte, rng.IntN(200))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		sends = append(sends, b)
	}
	sends = append(sends, frame("{}"), frame("[1]"), []byte{255, 255, 255, 255, 1},
		known(`"op":"format"`), known(`"op":"done","rank":0,"ranks":1000000`),
		known(`"op":"done","rank":-1,"ranks":1`),
		known(`"op":"read","digest":"%064x","layers":[0,6],"heads":[0,4],"count":1`, 0),
		known(`"op":"read","digest":"01%062x","layers":[-1,6],"heads":[0,4],"count":1`, 0),
		known(`"op":"read","digest":"01%062x","layers":[0,7],"heads":[0,4],"count":1`, 0),
		known(`"op":"read","digest":"01%062x","layers":[0,6],"heads":[3,9],"count":1`, 0),
		known(`"op":"read","digest":"01%062x","layers":[0,6],"heads":[0,4],"first":2,"count":-1`,
			0))
	for _, send := range sends {
		c, err := tls.Dial("tcp", net.JoinHostPort(at.Host, strconv.Itoa(at.Port)),
			handshake.ClientTLS(handshake.Endpoint{Fingerprint: at.Fingerprint}))
		if err != nil {
			t.Fatal(err)
		}
		c.Write(send)
		c.CloseWrite()
		var r answer
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if err := readMessage(bufio.NewReader(c), maxAnswer, &r); err == nil && r.Error == "" {
			t.Errorf("%q is answered with %+v", send, r)
		}
		c.Close()
	}
	if err := to.fetch(g, h, []uint32{8}); err != nil {
		t.Error(err)
	}
}

// TestHostileProducer: what comes from elsewhere cannot make a rank wait for ever, or take memory.
func TestHostileProducer(t *testing.T) {
	cert, fingerprint, err := handshake.Certificate("x")
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", handshake.ServerTLS(cert))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	says := make(chan string)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var q request
				if readMessage(c, maxRequest, &q) == nil {
					_ = writeMessage(c, json.RawMessage(<-says))
				}
			}()
		}
	}()
	to := newGroup(t, shape(1, 1)).agents[0]
	at := l.Addr().(*net.TCPAddr)
	good := shape(1, 1)
	for text, want := range map[string]string{
		`{}`: "does not say",
		`{"error":"` + strings.Repeat("x", 1000) + `"}`: "the other engine says: x",
		`[]`: "decode message",
		`{"shape":{"block_size":16,"kv_heads":4,"layers":6}}`: "version of the exchange of KV " +
			"blocks is 0, this one's 3",
		with(good, func(
			s *Shape) {
			s.Layout.TP = 1 << 40
		}): "a layout of", with(good,
			func(s *Shape) { s.Layout.TP = 3 }): "a layout of",
		with(good, func(s *Shape) {
			s.Layout.TP, s.Layout.PP = 4000,
				4000
		}): "a layout of", with(good, func(s *Shape) {
			s.Stages = layout.Stages{5,
				2}
			s.Layout.PP = 3
		}): "stages that begin", with(good,
			func(s *Shape) {}): "has 0 ranks",
	} {
		go func() { says <- text }()
		_, err := to.Fetch(context.Background(), &Fetch{Blocks: []uint32{1},
			From:    Address{Host: "127.0.0.1", Port: at.Port, Fingerprint: fingerprint},
			Timeout: time.Minute})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v", text, err)
		}
	}
}

func with(s Shape, change func(*Shape)) string {
	change(&s)
	text, _ := json.Marshal(answer{Version: version, Shape: &s})
	return string(text)
}

// TestTicket seals tickets, and finds every change of one.
func TestTicket(t *testing.T) {
	k := Ticket{DoRemotePrefill: true, EngineID: "e", BlockIDs: []uint32{1}, Tokens: 16, Host: "h",
		Port:   1,
		Secret: NewSecret()}
	k.SealBy([]byte("token"))
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	var back Ticket
	if err := json.Unmarshal(text, &back); err != nil || !back.SealedBy([]byte("token")) {
		t.Errorf("%s: %v", text, err)
	}
	if back.SealedBy([]byte("other")) || back.SealedBy(nil) {
		t.Error("sealed by another token")
	}
	for name, change := range map[string]func(k *Ticket){
		"host": func(k *Ticket) { k.Host = "x" }, "port": func(k *Ticket) { k.Port++ },
		"secret": func(k *Ticket) { k.Secret[0]++ }, "seal": func(k *Ticket) { k.Seal[0]++ },
		"tokens":      func(k *Ticket) { k.Tokens++ },
		"fingerprint": func(k *Ticket) { k.Fingerprint[0]++ },
	} {
		changed := back
		change(&changed)
		if changed.SealedBy([]byte("token")) {
			t.Errorf("a change of %s is not seen", name)
		}
	}
	if s := fmt.Sprintf("%v %s", k.Secret, k.Secret); strings.Contains(s, fmt.Sprintf("%x",
		k.Secret[:4])) {
		t.Errorf("a secret shows itself: %s", s)
	}
	for _, bad := range []string{`"00"`, `"` + strings.Repeat("zz", 32) + `"`, `1`} {
		if json.Unmarshal([]byte(bad), new(Secret)) == nil || json.Unmarshal([]byte(bad),
			new(Digest)) == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
