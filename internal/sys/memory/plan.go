package memory

import (
	"fmt"
	"strings"
)

// Rank is what one rank takes of its host, in bytes.
type Rank struct {
	// Weights are packed, Table is what embeddings are looked up in: a part of the model's files,
	// which ranks of a host share, unless Own says that the rank has it alone.
	Weights int64 `json:"weights"`
	Table   int64 `json:"table"`
	Own     bool  `json:"own,omitempty"`
	// Draft is the weights of a draft model, and of its KV cache what is no block of the model's.
	Draft int64 `json:"draft,omitempty"`
	// Work is activations, logits and the state of requests, PerThread what each thread adds.
	Work      int64 `json:"work"`
	PerThread int64 `json:"per_thread"`
	// Process is what its process takes when it does nothing; 0 in the driver's.
	Process int64 `json:"process"`
	// Block is one block of its KV cache.
	Block int64 `json:"block"`
	// States is what it keeps of requests, however long they are.
	States int64 `json:"states,omitempty"`
	// Update is its share of weights that take the place of the first ones.
	Update int64 `json:"update"`
	// Loading is what it takes while it loads, and gives back before the first step.
	Loading int64 `json:"loading"`
	// Threads is how many it computes on.
	Threads int `json:"threads"`
}

// Heap is what steps take of Go's heap: what is asked for, what buffers that grow have beside, and
// what has not been collected yet. A rank's process keeps to it (debug.SetMemoryLimit).
func (r *Rank) Heap() int64 { return r.steps() * 3 / 2 }

func (r *Rank) steps() int64 { return r.Work + r.PerThread*int64(r.Threads) }

// Host is what a server has on a host.
type Host struct {
	// Name is for people.
	Name   string
	Bounds Bounds
	Ranks  []Rank
	// Driver is what the driver's process takes there beside its ranks, Update the weights that
	// come to a host whole, Files what files in memory may yet take.
	Driver, Update, Files int64
}

// Cache is how many blocks of KV cache each rank is to have.
type Cache struct {
	// Blocks are as asked for; 0 is as many as there is room for, up to Most.
	Blocks, Most int64
	// Least is how many a sequence of the greatest length needs, Positions how long that is.
	// Longest is how long one can be that so many have room for, Tokens how many they hold of
	// several.
	Least           int64
	Positions       int
	Longest, Tokens func(blocks int64) int64
	// Asked is the flag that Blocks come from, "" for none.
	Asked string
}

// Plan is what a server takes of each host.
type Plan struct {
	Hosts []Host
	// Share is the part of each limit that may be used.
	Share float64
	// Blocks are those of the KV cache of each rank.
	Blocks int64
	Cache  Cache
}

// Make plans a server: how many blocks the KV caches have, and whether all fits. The error is a
// *Misfit; the plan is then what would be needed.
func Make(hosts []Host, cache Cache, share float64) (*Plan, error) {
	p := &Plan{Hosts: hosts, Share: share, Cache: cache, Blocks: cache.Blocks}
	if p.Blocks > 0 {
		return p, p.check()
	}
	p.Blocks = max(cache.Most, cache.Least)
	for i := range hosts {
		h := &hosts[i]
		room, _, known := h.Bounds.Room(share)
		if each := h.blockBytes(); known && each > 0 {
			p.Blocks = min(p.Blocks, max(0, room-h.fixed())/each)
		}
	}
	p.Blocks = max(p.Blocks, cache.Least)
	return p, p.check()
}

// check finds a host that has less room than it needs, that which lacks the most.
func (p *Plan) check() error {
	var worst *Misfit
	for i := range p.Hosts {
		h := &p.Hosts[i]
		room, by, known := h.Bounds.Room(p.Share)
		need := h.need(p.Blocks)
		if known && need > room && (worst == nil || need-room > worst.Need-worst.Room) {
			worst = &Misfit{Host: h, Need: need, Room: room, By: by, plan: p}
		}
	}
	if worst != nil {
		return worst
	}
	return nil
}

// blockBytes is a block of every rank of the host, with the page tables of that.
func (h *Host) blockBytes() (sum int64) {
	for i := range h.Ranks {
		sum += mapped(h.Ranks[i].Block)
	}
	return sum
}

// mapped is memory with its page tables.
func mapped(bytes int64) int64 { return bytes + bytes>>9 }

// Parts are what a host needs memory for, in bytes.
type Parts struct {
	Weights, Tables, Draft, Work, Cache, States, Processes, Updates, Files int64
}

// Total is all of it.
func (p Parts) Total() int64 {
	return p.Weights + p.Tables + p.Draft + p.Work + p.Cache + p.States + p.Processes + p.Updates +
		p.Files
}

// Parts are what the host needs with so many blocks.
func (h *Host) Parts(blocks int64) Parts {
	p := Parts{Processes: h.Driver, Updates: h.Update, Files: h.Files}
	var shared, loading int64
	for i := range h.Ranks {
		r := &h.Ranks[i]
		p.Weights += mapped(r.Weights)
		if r.Own {
			p.Tables += r.Table
		} else {
			shared = max(shared, r.Table)
		}
		p.Draft += mapped(r.Draft)
		p.Work += r.Heap()
		p.Cache += mapped(r.Block) * blocks
		p.States += mapped(r.States)
		p.Processes += r.Process
		p.Updates += r.Update
		loading += r.Loading
	}
	p.Tables += shared
	// What loading takes is given back before steps take theirs.
	p.Work += max(0, loading-p.Work-p.Cache)
	return p
}

func (h *Host) need(blocks int64) int64 { return h.Parts(blocks).Total() }

// fixed is what the host needs without a KV cache.
func (h *Host) fixed() int64 { return h.need(0) }

// GarbagePercent is how much more than is in use there may be on the heap of a driver in whose
// process all ranks of the host are (debug.SetGCPercent): what is planned for it then is enough.
func (h *Host) GarbagePercent() int {
	const driver, garbage = 16 << 20, 48 << 20
	var steps int64
	for i := range h.Ranks {
		steps += h.Ranks[i].steps()
	}
	return int(min(100, 100*(steps/4+garbage)/(steps*5/4+driver)))
}

// HeapRoom is how much of the host's room is left for Go's heap beside what does not lie there.
func (p *Plan) HeapRoom(h *Host) int64 {
	parts := h.Parts(p.Blocks)
	room, _, _ := h.Bounds.Room(p.Share)
	return max(room, parts.Total()) - (parts.Total() - parts.Work - parts.Processes)
}

// Misfit is why a plan cannot be carried out: a host has less room than is needed.
type Misfit struct {
	Host       *Host
	Need, Room int64
	By         Bound
	// More are ways out that the planner has found, before those that Ways knows.
	More []string
	plan *Plan
}

// Error names the numbers, where the limit comes from, and the ways out.
func (m *Misfit) Error() string { return m.What() + ": " + strings.Join(m.Ways(), "; or ") }

// What names the numbers, and where the limit comes from.
func (m *Misfit) What() string {
	p := m.Host.Parts(m.plan.Blocks)
	var parts []string
	for _, x := range []struct {
		name  string
		bytes int64
	}{
		{"weights", p.Weights}, {"embeddings", p.Tables},
		{"draft model (--speculative-config)", p.Draft}, {"activations and logits", p.Work},
		{m.cache(), p.Cache},
		{"states of --max-num-seqs requests", p.States},
		{"weight updates (--enable-rlhf)", p.Updates},
		{"files in memory (--kv-offloading-size)", p.Files}, {"processes", p.Processes},
	} {
		if x.bytes > 0 {
			parts = append(parts, size(x.bytes)+" of "+x.name)
		}
	}
	return fmt.Sprintf("%s into the memory of %s: %s make %s, and %s may be used (%s), %s are "+
		"missing", count(len(m.Host.Ranks), "rank does not fit", "ranks do not fit"), m.Host.Name,
		strings.Join(parts, ", "), size(m.Need), size(m.Room), m.By.describe(m.plan.Share),
		size(m.Need-m.Room))
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// cache names the KV cache, and what it is for.
func (m *Misfit) cache() string {
	c := &m.plan.Cache
	switch {
	case c.Asked != "":
		return fmt.Sprintf("KV cache (%s)", c.Asked)
	case c.Blocks > 0:
		return "KV cache"
	}
	return fmt.Sprintf("KV cache for one sequence of --max-model-len %d", c.Positions)
}

// Asked says that all fits but the size of the KV cache that was asked for.
func (m *Misfit) Asked() bool {
	return m.plan.Cache.Asked != "" && m.Fit() >= max(1, m.plan.Cache.Least)
}

// Fit is how many blocks of KV cache fit beside all else.
func (m *Misfit) Fit() int64 {
	if each := m.Host.blockBytes(); each > 0 {
		return max(0, m.Room-m.Host.fixed()) / each
	}
	return 0
}

// Longest is the greatest length of a sequence whose KV cache fits beside all else.
func (m *Misfit) Longest() int64 { return m.plan.Cache.Longest(m.Fit()) }

// Ways are what can be done, the nearest first.
func (m *Misfit) Ways() (ways []string) {
	h, c, fit := m.Host, &m.plan.Cache, m.Fit()
	switch {
	case fit == 0:
	case c.Blocks > 0 && fit >= c.Least:
		ways = append(ways, fmt.Sprintf("%s fits", c.value(fit, h)))
	default:
		ways = append(ways, fmt.Sprintf("--max-model-len %d fits", m.Longest()))
		if c.Blocks > 0 {
			ways[0] += " with " + c.value(fit, h)
		}
	}
	if fit == 0 && len(m.More) == 0 && h.work() > (m.Need-m.Room)/2 {
		ways = append(ways, "lower --max-num-batched-tokens, --max-num-seqs or --max-model-len")
	}
	if room, _, _ := h.Bounds.Room(1); room >= m.Need {
		ways = append(ways, "a greater --gpu-memory-utilization")
	}
	ways = append(ways, m.More...)
	return append(ways, "divide the model among more machines (-tp or -pp, with --nnodes or "+
		"Ray), or raise the limit")
}

func (h *Host) work() int64 { return h.Parts(0).Work }

// value is the flag that asks for blocks, with so many.
func (c *Cache) value(blocks int64, h *Host) string {
	if c.Asked != "" && c.Asked != bytesFlag {
		return fmt.Sprintf("%s %d", c.Asked, blocks)
	}
	var most int64
	for i := range h.Ranks {
		most = max(most, h.Ranks[i].Block)
	}
	return fmt.Sprintf("%s %dM", bytesFlag, blocks*most>>20)
}

const bytesFlag = "--kv-cache-memory-bytes"

// Table is the plan as lines for people.
func (p *Plan) Table() (lines []string) {
	for i := range p.Hosts {
		h := &p.Hosts[i]
		parts := h.Parts(p.Blocks)
		line := func(name string, bytes int64, format string, args ...any) {
			if bytes != 0 {
				text := fmt.Sprintf("  %-24s%10d  "+format, append([]any{name, bytes >> 20},
					args...)...)
				lines = append(lines, strings.TrimRight(text, " "))
			}
		}
		lines = append(lines, fmt.Sprintf("memory of %s, in MiB", h.Name))
		line("weights", parts.Weights, "%s", count(len(h.Ranks), "rank", "ranks"))
		line("embeddings", parts.Tables, "of the model's files, as they come into use")
		line("draft model", parts.Draft, "--speculative-config")
		line("activations and logits", parts.Work, "")
		line("KV cache", parts.Cache, "%d tokens on each rank, as they come into use",
			p.Cache.Tokens(p.Blocks))
		line("weight updates", parts.Updates, "--enable-rlhf")
		line("files in memory", parts.Files, "--kv-offloading-size, as they come")
		line("processes", parts.Processes, "")
		line("together", parts.Total(), "")
		room, by, known := h.Bounds.Room(p.Share)
		if !known {
			lines = append(lines, "  how much may be used is not known")
			continue
		}
		line("may be used", room, "%s", by.describe(p.Share))
		if left := room - parts.Total(); left < 0 {
			line("missing", -left, "")
		}
	}
	return lines
}
