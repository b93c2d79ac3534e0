package memory

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

const mib = 1 << 20

func bounds(limit, left int64) Bounds {
	return Bounds{{From: "the host's memory", Limit: 64 << 30, Left: 60 << 30},
		{From: "/sys/fs/cgroup/pod/memory.max", Limit: limit, Left: left}}
}

// TestRoom finds the bound that allows the least.
func TestRoom(t *testing.T) {
	for _, c := range []struct {
		bounds Bounds
		share  float64
		want   int64
		by     string
	}{
		{bounds(1000, 800), 1, 800, "/sys/fs/cgroup/pod/memory.max"},
		{bounds(1000, 800), 0.9, 800, "/sys/fs/cgroup/pod/memory.max"},
		{bounds(1000, 800), 0.5, 500, "/sys/fs/cgroup/pod/memory.max"},
		{bounds(1<<40, 1<<39), 0.5, 32 << 30, "the host's memory"},
		{bounds(1000, 0), 0.5, 0, "/sys/fs/cgroup/pod/memory.max"},
	} {
		got, by, known := c.bounds.Room(c.share)
		if got != c.want || by.From != c.by || !known {
			t.Errorf("%v of %+v: %d by %s", c.share, c.bounds, got, by.From)
		}
	}
	if _, _, known := (Bounds)(nil).Room(1); known {
		t.Error("no bounds are known")
	}
}

// of16 is a cache whose blocks have 16 positions.
func of16(c Cache) Cache {
	c.Longest = func(blocks int64) int64 { return 16 * blocks }
	c.Tokens = c.Longest
	return c
}

// TestMake plans servers: how many blocks their caches have, and what does not fit, with what
// would.
func TestMake(t *testing.T) {
	rank := Rank{Weights: 1000 * mib, Table: 100 * mib, Work: 100 * mib, Process: 50 * mib,
		Block: mib}
	with := func(f func(r *Rank)) Rank {
		r := rank
		f(&r)
		return r
	}
	two := []Rank{rank, rank}
	sized := func(c Cache) Cache { c.Least, c.Positions = 10, 160; return of16(c) }
	for _, c := range []struct {
		name   string
		ranks  []Rank
		driver int64
		update int64
		bounds Bounds
		cache  Cache
		share  float64
		blocks int64
		// says is what the error has, beside what it always has.
		says []string
	}{
		{"all that is wanted", two, 0, 0, bounds(8<<30, 8<<30), Cache{Most: 500}, 0.9, 500, nil},
		{"what is left of the limit", two, 0, 0, bounds(2600*mib, 2600*mib), Cache{Most: 500}, 1,
			47, nil},
		{"what a part of the limit leaves", two, 0, 0, bounds(2600*mib, 2600*mib), Cache{Most: 500},
			0.98, 22, nil},
		{"others have some of it", two, 0, 0, bounds(8<<30, 2600*mib), Cache{Most: 500}, 0.9, 47,
			nil},
		{"the driver has some of it", two, 64 * mib, 0, bounds(2600*mib, 2600*mib),
			Cache{Most: 500}, 1, 16, nil},
		{"no sequence fits", two, 64 * mib, 0, bounds(2580*mib, 2580*mib), Cache{Most: 500}, 1, 10,
			[]string{"2 ranks do not fit",
				"2004 MiB of weights, 100 MiB of embeddings, 300 MiB of activations and logits",
				"21 MiB of KV cache for one sequence of --max-model-len 160",
				"164 MiB of processes",
				"2580 MiB may be used (left of the 2580 MiB of /sys/fs/cgroup/pod/memory.max)",
				": --max-model-len 96 fits; or divide the model among more machines"}},
		{"weights do not fit", two, 0, 0, bounds(1<<30, 1<<30), Cache{Most: 500}, 0.9, 10,
			[]string{"922 MiB may be used (0.9 (--gpu-memory-utilization) of the 1024 MiB",
				"MiB are missing: divide the model among more machines (-tp or -pp, with " +
					"--nnodes or Ray), or raise the limit"}},
		{"a greater part would do", two, 0, 0, bounds(2600*mib, 2600*mib), Cache{Most: 500}, 0.9,
			10, []string{"a greater --gpu-memory-utilization"}},
		{"cache as asked for", two, 0, 0, bounds(8<<30, 8<<30), Cache{Blocks: 500,
			Asked: bytesFlag}, 1, 500, nil},
		{"cache too large", two, 0, 0, bounds(2600*mib, 2600*mib), Cache{Blocks: 500,
			Asked: bytesFlag}, 1, 500, []string{"1002 MiB of KV cache (--kv-cache-memory-bytes)",
			": --kv-cache-memory-bytes 47M fits; or"}},
		{"blocks too many", two, 0, 0, bounds(2600*mib, 2600*mib), Cache{Blocks: 500,
			Asked: "--num-gpu-blocks-override"}, 1, 500,
			[]string{": --num-gpu-blocks-override 47 fits; or"}},
		{"cache too large for any", two, 0, 0, bounds(2520*mib, 2520*mib), Cache{Blocks: 500,
			Asked: bytesFlag}, 1, 500,
			[]string{": --max-model-len 128 fits with --kv-cache-memory-bytes 8M; or"}},
		{"updates", []Rank{with(func(r *Rank) { r.Update = r.Weights })}, 0, 2000 * mib,
			bounds(4<<30, 4<<30), Cache{Most: 500}, 1, 10,
			[]string{"3000 MiB of weight updates (--enable-rlhf)"}},
		{"steps are too large", []Rank{with(func(r *Rank) { r.Work = 4 << 30 })}, 0, 0,
			bounds(4<<30, 4<<30), Cache{Most: 500}, 1, 10,
			[]string{"lower --max-num-batched-tokens, --max-num-seqs or --max-model-len"}},
		{"each thread counts", []Rank{with(func(r *Rank) { r.PerThread, r.Threads = 100*mib, 10 })},
			0, 0, bounds(3<<30, 3<<30), Cache{Most: 500}, 1, 269, nil},
		{"states of requests", []Rank{with(func(r *Rank) { r.States = 400 * mib })}, 0, 0,
			bounds(1700*mib, 1700*mib), Cache{Most: 500}, 1, 10,
			[]string{"401 MiB of states of --max-num-seqs requests"}},
		{"a table of its own", []Rank{with(func(r *Rank) { r.Own = true }),
			with(func(r *Rank) { r.Own = true })}, 0, 0, bounds(2700*mib, 2700*mib),
			Cache{Most: 500}, 1, 47, nil},
		{"loading takes more than steps", []Rank{with(func(r *Rank) { r.Loading = 700 * mib })}, 0,
			0, bounds(1800*mib, 1800*mib), Cache{Blocks: 20}, 1, 20,
			[]string{"680 MiB of activations and logits"}},
		{"nothing is known", two, 0, 0, nil, Cache{Most: 500}, 0.9, 500, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Host{Name: "node 1", Bounds: c.bounds, Ranks: c.ranks, Driver: c.driver,
				Update: c.update}
			p, err := Make([]Host{h}, sized(c.cache), c.share)
			if p.Blocks != c.blocks {
				t.Errorf("%d blocks, want %d", p.Blocks, c.blocks)
			}
			if (err != nil) != (c.says != nil) {
				t.Fatal(err)
			}
			for _, want := range append(c.says,
				map[bool][]string{true: {"into the memory of node 1",
					" are missing: "}}[err != nil]...) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in %q", want, err)
				}
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %q", err)
			}
		})
	}
}

// TestTheTightestHostCounts sizes caches for the host with the least room, and names the one that
// lacks the most.
func TestTheTightestHostCounts(t *testing.T) {
	rank := Rank{Weights: 100 * mib, Block: mib}
	hosts := func(left ...int64) (all []Host) {
		for i, n := range left {
			all = append(all, Host{Name: string(rune('a' + i)), Bounds: bounds(n, n),
				Ranks: []Rank{rank}})
		}
		return all
	}
	p, err := Make(hosts(1<<30, 300*mib, 500*mib), Cache{Most: 5000, Least: 10}, 1)
	if err != nil || p.Blocks != 199 {
		t.Errorf("%d blocks, %v", p.Blocks, err)
	}
	_, err = Make(hosts(1<<30, 90*mib, 50*mib), Cache{Most: 5000, Least: 10}, 1)
	if m := (*Misfit)(nil); !errors.As(err, &m) || m.Host.Name != "c" {
		t.Error(err)
	}
}

// TestPlansFit holds of random servers: a plan without an error fits into every host, and one block
// more does not, unless no more was wanted.
func TestPlansFit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	misfits := 0
	for range 20_000 {
		var hosts []Host
		for range 1 + r.IntN(3) {
			h := Host{Bounds: bounds(r.Int64N(8<<30), r.Int64N(8<<30)), Driver: r.Int64N(100 * mib),
				Update: r.Int64N(2) * mib * 500}
			for range 1 + r.IntN(4) {
				h.Ranks = append(h.Ranks, Rank{Weights: r.Int64N(500 * mib),
					Table: r.Int64N(100 * mib), Own: r.IntN(2) == 0,
					Work: r.Int64N(100 * mib), PerThread: r.Int64N(mib), Threads: r.IntN(8),
					Process: r.Int64N(50 * mib), Block: 1 + r.Int64N(mib),
					States: r.Int64N(2) * r.Int64N(50*mib), Update: r.Int64N(mib),
					Loading: r.Int64N(200 * mib)})
			}
			hosts = append(hosts, h)
		}
		c := of16(Cache{Least: 1 + r.Int64N(50), Positions: 800})
		if c.Most = r.Int64N(2000); r.IntN(3) == 0 {
			c.Blocks, c.Asked = 1+r.Int64N(3000), bytesFlag
		}
		share := 0.5 + r.Float64()/2
		p, err := Make(hosts, c, share)
		if err != nil {
			misfits++
			m := err.(*Misfit)
			if m.Need <= m.Room || m.Need != m.Host.Parts(p.Blocks).Total() {
				t.Fatalf("%d of %d: %v", m.Need, m.Room, err)
			}
			continue
		}
		full := false
		for i := range hosts {
			room, _, _ := hosts[i].Bounds.Room(share)
			if need := hosts[i].Parts(p.Blocks).Total(); need > room {
				t.Fatalf("%d bytes are planned for %d", need, room)
			}
			// What loading takes may leave room to a cache beside.
			full = full || hosts[i].Parts(p.Blocks+1).Total() > room ||
				hosts[i].Parts(0).Total()+hosts[i].blockBytes()*(p.Blocks+1) > room
		}
		if wanted := max(c.Most, c.Least); c.Blocks == 0 && p.Blocks < wanted && !full {
			t.Fatalf("%d blocks, %d were wanted, and there is room", p.Blocks, wanted)
		}
	}
	if misfits < 1000 || misfits > 19_000 {
		t.Errorf("%d misfits", misfits)
	}
}
