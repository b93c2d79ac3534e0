package join

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
	"github.com/eagleray/eagleray/internal/link/layout"
)

// TestLayouts joins ranks of several layouts, all on one host and on several, and has every
// communicator do what it is for.
func TestLayouts(t *testing.T) {
	for _, c := range []struct {
		layout layout.Layout
		hosts  []string
	}{
		{layout: layout.Layout{TP: 2, PP: 2}},
		{layout: layout.Layout{PP: 3}},
		{layout: layout.Layout{TP: 2, PP: 2, PCP: 2}},
		{layout.Layout{TP: 4}, []string{"a", "a", "b", "b"}},
		{layout.Layout{TP: 4}, []string{"a", "b", "a", "a"}},
		{layout.Layout{TP: 2, PP: 2}, []string{"a", "a", "b", "b"}},
		{layout.Layout{TP: 2, PP: 2}, []string{"a", "b", "b", "a"}},
		{layout.Layout{PP: 5}, []string{"a", "a", "b", "b", "c"}},
		{layout.Layout{TP: 2, PP: 2, PCP: 2}, []string{"a", "a", "a", "b", "b", "c", "c", "c"}},
	} {
		t.Run(fmt.Sprint(c.layout, " on ", c.hosts), func(t *testing.T) {
			d, err := Listen(Options{Layout: c.layout, QueueMemory: 1 << 20, Hosts: c.hosts,
				Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			var ranks sync.WaitGroup
			for rank := range c.layout.World() {
				ranks.Go(func() {
					r, err := Dial(*d.Invitation(rank), nil, nil)
					if err != nil {
						t.Error(err)
						return
					}
					defer r.Close()
					if want := neighbours(c.layout, c.hosts, rank); r.neighbours != want {
						t.Errorf("rank %d of %d ranks on its host, not %d", rank, r.neighbours,
							want)
					}
					groups, err := r.Groups(nil)
					if err != nil {
						t.Error(err)
						return
					}
					if err := errors.Join(exercise(groups, c.layout, rank),
						groups.Close()); err != nil {
						t.Errorf("rank %d: %v", rank, err)
					}
				})
			}
			if err := d.Admit(t.Context()); err != nil {
				t.Error(err)
			}
			ranks.Wait()
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// neighbours is how many ranks are on a rank's host.
func neighbours(l layout.Layout, hosts []string, rank int) (n int) {
	for p := range l.World() {
		if hosts == nil || hosts[p] == hosts[rank] {
			n++
		}
	}
	return n
}

// exercise uses every communicator of a rank, and checks that there are no others.
func exercise(g Groups, l layout.Layout, rank int) error {
	s, p := l.Sizes(), l.Place(rank)
	for _, c := range []struct {
		group    Group
		size, at int
		ranks    []int
		use      func(g Group, size, at int, ranks []int) error
	}{
		{g.TP, s.TP, p.TP, l.TPGroup(rank), sum},
		{g.PCP, s.PCP, p.PCP, l.PCPGroup(rank), gather},
		{g.DP, s.DP, p.DP, l.DPGroup(rank), gather},
		{g.PP, s.PP, p.PP, l.PPGroup(rank), pass},
	} {
		if (c.group != nil) != (c.size > 1) {
			return fmt.Errorf("a dimension of size %d has the group %v", c.size, c.group)
		}
		if c.group == nil {
			continue
		}
		c.group.Guard(uint64(len(c.ranks)))
		if err := c.use(c.group, c.size, c.at, c.ranks); err != nil {
			return err
		}
	}
	return nil
}

func sum(g Group, size, at int, ranks []int) error {
	for _, n := range []int{3, 100_000} {
		x, want := collectivetest.Contribution(at, n, 5), collectivetest.ExpectedSum(size, n, 5)
		if err := g.AllReduce(x); err != nil {
			return err
		}
		if err := collectivetest.SameBits(x, want); err != nil {
			return err
		}
	}
	return gather(g, size, at, ranks)
}

func gather(g Group, size, at int, ranks []int) error {
	x, all := []float32{float32(ranks[at])}, make([]float32, size)
	b := []byte{byte(at), 7}
	if err := errors.Join(g.AllGather(all, x), g.Broadcast(b, size-1)); err != nil {
		return err
	}
	for i, rank := range ranks {
		if all[i] != float32(rank) {
			return fmt.Errorf("gathered %v of ranks %v", all, ranks)
		}
	}
	if b[0] != byte(size-1) || b[1] != 7 {
		return fmt.Errorf("broadcast brings %v", b)
	}
	clear(all)
	if err := g.Gather(all, x, 0); err != nil || at == 0 && all[size-1] != float32(ranks[size-1]) {
		return fmt.Errorf("gathered %v of ranks %v, %w", all, ranks, err)
	}
	return nil
}

// pass sends a state through all stages, and what the last one makes of it back to the first, for
// several batches at once.
func pass(g Group, size, at int, _ []int) error {
	const batches = 4
	state, token := make([]byte, 300_001), make([]byte, 4)
	for batch := range batches {
		if at > 0 {
			if err := g.Recv(state, at-1); err != nil {
				return err
			}
		}
		state[batch] += byte(at + 1)
		state[len(state)-1] = byte(batch)
		if at < size-1 {
			if err := g.Send(state, at+1); err != nil {
				return err
			}
			clear(state)
			continue
		}
		binary.LittleEndian.PutUint32(token, uint32(state[batch])<<8|uint32(state[len(state)-1]))
		if err := g.Send(token, 0); err != nil {
			return err
		}
	}
	for batch := range batches {
		if at > 0 {
			break
		}
		if err := g.Recv(token, size-1); err != nil {
			return err
		}
		want := uint32(size*(size+1)/2)<<8 | uint32(batch)
		if got := binary.LittleEndian.Uint32(token); got != want {
			return fmt.Errorf("token %#x of batch %d, not %#x", got, batch, want)
		}
	}
	return nil
}

// TestInProcess runs the ranks of a layout as goroutines of this process.
func TestInProcess(t *testing.T) {
	for _, l := range []layout.Layout{{}, {TP: 2}, {PP: 3}, {TP: 4, PP: 2, PCP: 2}} {
		ranks, err := InProcess(l, time.Minute)
		if err != nil || len(ranks) != l.World() {
			t.Fatalf("%v: %d ranks, %v", l, len(ranks), err)
		}
		var done sync.WaitGroup
		for rank, g := range ranks {
			done.Go(func() {
				if err := errors.Join(exercise(g, l, rank), g.Close()); err != nil {
					t.Errorf("%v, rank %d: %v", l, rank, err)
				}
			})
		}
		done.Wait()
	}
	if _, err := InProcess(layout.Layout{PP: collective.MaxMembers + 1}, 0); err == nil {
		t.Error("a group that is too large was made")
	}
}

// TestNamesOfRanks checks that errors of a communicator say which ranks of the layout they mean.
func TestNamesOfRanks(t *testing.T) {
	l := layout.Layout{TP: 2, PP: 2}
	ranks, err := InProcess(l, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	var e *collective.Error
	if err := ranks[3].PP.Recv(make([]byte, 5), 0); !errors.As(err, &e) || e.Rank != 3 ||
		!slices.Equal(e.Missing, []int{1}) || !errors.Is(err, collective.ErrTimeout) {
		t.Errorf("late: %v", err)
	}
	for _, g := range ranks {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	if ranks, err = InProcess(l, time.Minute); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	for rank := 2; rank < 4; rank++ {
		go func() {
			ranks[rank].TP.Guard(uint64(rank))
			done <- ranks[rank].TP.AllReduce(make([]float32, 3))
		}()
	}
	for range 2 {
		if err := <-done; !errors.Is(err, collective.ErrMismatch) || !errors.As(err, &e) ||
			e.Rank < 2 || e.Rank > 3 {
			t.Errorf("states that differ: %v", err)
		}
	}
	for _, g := range ranks {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}
