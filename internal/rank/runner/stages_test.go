package runner_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/link/layout"
)

// pipes are the ways between each two ranks of different stages.
type pipes struct {
	mu     sync.Mutex
	made   map[[2]int]chan []byte
	broken chan struct{}
	once   sync.Once
}

// pipeDepth is how many messages a pipe holds.
const pipeDepth = 8

func (g *pipes) between(from, to int) chan []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.made[[2]int{from, to}]
	if c == nil {
		c = make(chan []byte, pipeDepth)
		g.made[[2]int{from, to}] = c
	}
	return c
}

func (g *pipes) abort() { g.once.Do(func() { close(g.broken) }) }

var errBroken = errors.New("another rank has failed")

// pipe is a rank's end of those to the other stages.
type pipe struct {
	g     *pipes
	ranks []int
	own   int
}

func (p *pipe) Guard(uint64) {}

func (p *pipe) Send(b []byte, to int) error {
	select {
	case p.g.between(p.own, p.ranks[to]) <- slices.Clone(b):
		return nil
	case <-p.g.broken:
		return errBroken
	}
}

func (p *pipe) Recv(b []byte, from int) error {
	select {
	case got := <-p.g.between(p.ranks[from], p.own):
		if len(got) != len(b) {
			return fmt.Errorf("message of %d bytes, not %d", len(got), len(b))
		}
		copy(b, got)
		return nil
	case <-p.g.broken:
		return errBroken
	}
}

// TestStages runs models in stages, each of one rank or several, with as many plans in flight as
// there are stages and one more: tokens and log-probabilities have the bits of one rank.
func TestStages(t *testing.T) {
	for _, c := range []struct {
		name    string
		work    workload
		layouts []layout.Layout
	}{
		{"llama-tiny", short(), []layout.Layout{{PP: 2}, {PP: 4}, {TP: 2, PP: 2}}},
		{"opt-tiny", short(), []layout.Layout{{PP: 2}, {TP: 2, PP: 3, PCP: 2}}},
		{"qwen3-tiny", long(96, 18), []layout.Layout{{PP: 2, PCP: 2}, {TP: 2, PP: 2, PCP: 2}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, _ := newGroup(t, shipped(c.name), layout.Layout{}, "", c.work).generate(t, 1)
			for i, l := range c.layouts {
				for more := range 2 {
					if testing.Short() && more != i%2 {
						continue // the layouts take turns
					}
					g := newGroup(t, shipped(c.name), l, "", c.work)
					got, ahead := g.generate(t, l.PP+more)
					for key := range want {
						if !slices.Equal(got[key], want[key]) {
							t.Errorf("%v, %d plans in flight: request %d gives\n%v, not\n%v",
								l, l.PP+more, key, got[key], want[key])
						}
					}
					if (ahead > 0) != (more > 0) {
						t.Errorf("%v, %d plans in flight: %d ask for tokens of the sampler",
							l, l.PP+more, ahead)
					}
					for way, c := range g.pipes.made {
						// Of the last plans the first stage has not been told that they are
						// answered.
						if n := len(c); n > 0 && (way[1] != 0 || n > l.PP+more) {
							t.Errorf("%v: %d messages of rank %d to rank %d were not received",
								l, n, way[0], way[1])
						}
					}
				}
			}
		})
	}
}
