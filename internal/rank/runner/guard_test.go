package runner

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/tcp"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
)

// hashes keeps what a rank guards. What rank 0 broadcasts, the other one gets next.
type hashes struct {
	all  []uint64
	rank int
	wire *[]byte
}

func (h *hashes) Guard(x uint64) { h.all = append(h.all, x) }

func (h *hashes) Broadcast(b []byte, _ int) error {
	if h.rank == 0 {
		*h.wire = append((*h.wire)[:0], b...)
	}
	copy(b, *h.wire)
	return nil
}

// guarding is a rank of two.
func guarding(t testing.TB, rank int, wire *[]byte) (*Runner, *hashes) {
	t.Helper()
	r, _ := newRunner(t, true)
	h := &hashes{rank: rank, wire: wire}
	o := r.opt
	o.Layout, o.Rank, o.TP = layout.Layout{TP: 2}, rank, h
	return New(o), h
}

// history is plans of two requests: prompts, one in two pieces, that sample, and go on.
func history() []*step.Plan {
	a := plan(1, piece{0, 0, 3, prompt, []uint32{4}})
	a.New = []step.NewRequest{{Slot: 0, PromptLen: 3, Tokens: tokens(3, 1), Params: greedy()},
		{Slot: 1, PromptLen: 20, Tokens: tokens(20, 2), Blocks: []uint32{9}, Params: greedy()}}
	b := plan(2, piece{0, 3, 1, sampled, nil}, piece{1, 16, 2, chunk, []uint32{5}})
	c := plan(3, piece{1, 18, 2, prompt, nil}, piece{0, 4, 1, sampled, nil})
	return []*step.Plan{a, b, c, plan(4, piece{0, 5, 1, sampled, nil}, piece{1, 20, 1, sampled,
		nil})}
}

// TestGuardIsTheSame has ranks that are told the same guard the same, although only the first one
// knows which tokens were sampled, and wants another hash for every plan.
func TestGuardIsTheSame(t *testing.T) {
	wire := new([]byte)
	first, h0 := guarding(t, 0, wire)
	second, h1 := guarding(t, 1, wire)
	for i, p := range history() {
		var res step.Result
		for _, r := range []*Runner{first, second} {
			if err := r.Execute(p, &res); err != nil {
				t.Fatal(err)
			}
		}
		if len(h0.all) != i+1 || slices.Contains(h0.all[:i], h0.all[i]) {
			t.Fatalf("hashes %x", h0.all)
		}
		if !slices.Equal(h0.all, h1.all) {
			t.Fatalf("rank 0 guards %x, rank 1 %x", h0.all, h1.all)
		}
	}
}

// TestGuardSeesEverything changes, in one of the plans or in what a rank has made of them, each
// thing that ranks must agree on.
func TestGuardSeesEverything(t *testing.T) {
	run := func(change func(i int, p *step.Plan, r *Runner)) uint64 {
		r, h := guarding(t, 0, new([]byte))
		for i, p := range history() {
			change(i, p, r)
			// What differs in the last plan may be refused, but not before it is hashed.
			if err := r.Execute(p, new(step.Result)); err != nil && i < 3 {
				t.Fatal(err)
			}
		}
		return h.all[len(h.all)-1]
	}
	want := run(func(int, *step.Plan, *Runner) {})
	if got := run(func(int, *step.Plan, *Runner) {}); got != want {
		t.Fatalf("hash %x, again %x", want, got)
	}
	for name, change := range map[string]func(i int, p *step.Plan, r *Runner){
		"a token of a prompt": func(i int, p *step.Plan, _ *Runner) {
			if i == 0 {
				p.New[1].Tokens[3] ^= 1
			}
		},
		"a cached block": func(i int, p *step.Plan, _ *Runner) {
			if i == 0 {
				p.New[1].Blocks[0]++
			}
		},
		"where the prompt ends": func(i int, p *step.Plan, _ *Runner) {
			if i == 0 {
				p.New[1].PromptLen--
			}
		},
		"log-probabilities of a prompt": func(i int, p *step.Plan, _ *Runner) {
			if i == 0 {
				p.New[1].Params.PromptLogprobs = 0
			}
		},
		"an adapter": func(i int, p *step.Plan, r *Runner) {
			if i == 0 {
				r.opt.Model.(*oracle).adapters = []uint32{2}
				p.New[1].Adapter = 2
			}
		},
		"a new block": func(i int, p *step.Plan, _ *Runner) {
			if i == 1 {
				p.Blocks[0]++
			}
		},
		"order": func(i int, p *step.Plan, _ *Runner) {
			if i == 3 {
				p.Rows[0], p.Rows[1] = p.Rows[1], p.Rows[0]
			}
		},
		"a row": func(i int, p *step.Plan, _ *Runner) {
			if i == 3 {
				p.Rows = p.Rows[:1]
			}
		},
		"sampling": func(i int, p *step.Plan, _ *Runner) {
			if i == 3 {
				p.Rows[1].Sample = false
			}
		},
		"a freed slot": func(i int, p *step.Plan, _ *Runner) {
			if i == 3 {
				p.Free = []uint32{2}
			}
		},
		"a state to go on from": func(i int, p *step.Plan, _ *Runner) {
			if i == 3 {
				p.Restore = []step.Snapshot{{Slot: 0, State: 9}}
			}
		},
		"a state to keep": func(i int, p *step.Plan, _ *Runner) {
			if i == 3 {
				p.Save = []step.Snapshot{{Slot: 0, State: 9}}
			}
		},
		"the plan": func(i int, p *step.Plan, _ *Runner) { p.ID += uint64(i / 3) },
		"a length": func(i int, _ *step.Plan, r *Runner) {
			if i == 3 {
				r.slots[1].tokens = append(r.slots[1].tokens, 1)
			}
		},
		"the last block of a table": func(i int, _ *step.Plan, r *Runner) {
			if i == 3 {
				r.slots[1].table[1]++
			}
		},
		"a token that is not there": func(i int, _ *step.Plan, r *Runner) {
			if i == 3 {
				r.slots[1].sampled = noToken
			}
		},
	} {
		if got := run(change); got == want {
			t.Errorf("%s: the hash stays %x", name, got)
		}
	}
}

// pair is the communicators of two ranks, in memory and over TCP.
func pairs(t *testing.T) map[string][2]join.Group {
	t.Helper()
	memory, err := join.InProcess(layout.Layout{TP: 2}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var apart [2]join.Group
	for rank, conns := range [][]net.Conn{{nil, dialled}, {accepted, nil}} {
		g, err := tcp.Join(conns, rank, tcp.Options{MaxBytes: 1 << 10, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		apart[rank] = g
	}
	all := map[string][2]join.Group{"memory": {memory[0].TP, memory[1].TP}, "tcp": apart}
	for _, p := range all {
		t.Cleanup(func() { p[0].Close(); p[1].Close() })
	}
	return all
}

// TestRanksThatDisagreeStop gives one of two ranks another prompt of the same length: all it would
// send fits, and means something else. Both end in the next exchange.
func TestRanksThatDisagreeStop(t *testing.T) {
	for name, groups := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			done := make(chan error)
			for rank := range 2 {
				r, _ := newRunner(t, true)
				o := r.opt
				o.Layout, o.Rank, o.TP = layout.Layout{TP: 2}, rank, groups[rank]
				r = New(o)
				go func() {
					var err error
					for i, p := range history() {
						if i == 0 {
							p.New[1].Tokens[3] ^= int32(rank)
						}
						if err == nil {
							err = r.Execute(p, new(step.Result))
						}
					}
					done <- err
				}()
			}
			told := 0
			for range 2 {
				err := <-done
				var e *collective.Error
				if !errors.As(err, &e) {
					t.Fatalf("a rank ends with %v", err)
				}
				if errors.Is(err, collective.ErrAborted) {
					continue // by the other, which has seen it first
				}
				told++
				other := fmt.Sprintf("on rank %d", 1-e.Rank)
				if !errors.Is(err, collective.ErrMismatch) ||
					!strings.Contains(err.Error(), "step state") ||
					!strings.Contains(err.Error(), other) {
					t.Errorf("rank %d: %v", e.Rank, err)
				}
			}
			if told == 0 {
				t.Error("no rank says that they disagree")
			}
		})
	}
}

// BenchmarkGuard is the hash of a plan of 256 requests that decode.
func BenchmarkGuard(b *testing.B) {
	const n = 256
	p := pool.New(1)
	defer p.Close()
	r := New(Options{Model: newOracle(), Pool: p, BlockSize: 16, Blocks: 16 * n, Vocab: vocab,
		MaxSeqs: n, MaxModelLen: 1024, Layout: layout.Layout{TP: 2}, TP: discard{},
		Status: new(status.Rank)})
	decode := &step.Plan{ID: 2}
	for slot := range uint32(n) {
		r.slots[slot] = slot256(slot)
		decode.Rows = append(decode.Rows, step.Row{Slot: slot, Start: 200, Count: 1, Sample: true,
			Source: step.FromSampler})
	}
	b.ReportAllocs()
	for b.Loop() {
		r.guard(decode)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/row")
}

func slot256(at uint32) slot {
	return slot{used: true, tokens: make([]int32, 200), table: make([]int32, 13),
		sampled: elsewhere,
		trail:   uint64(at), params: sample.Params{}}
}

// discard is a port with no reader.
type discard struct{}

func (discard) Guard(uint64) {}

func (discard) Broadcast([]byte, int) error { return os.ErrInvalid }
