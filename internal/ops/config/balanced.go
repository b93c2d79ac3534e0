package config

import "github.com/spf13/pflag"

// Balanced says which of --data-parallel-size engines this server has where each of several servers
// has some, and something else balances requests over the servers: vLLM's external (one engine a
// server) and hybrid (several) load balancing.
type Balanced struct {
	External, Hybrid bool
	// Rank is the engine's number with External, Start that of the first one with Hybrid; -1 is not
	// given.
	Rank, Start int
}

func (b *Balanced) flags(f *pflag.FlagSet) {
	f.BoolVar(&b.External, "data-parallel-external-lb", false,
		"this server has one of the engines, and others have the rest")
	f.BoolVar(&b.Hybrid, "data-parallel-hybrid-lb", false,
		"this server has --data-parallel-size-local of the engines, and others have the rest")
	f.IntVar(&b.Rank, "data-parallel-rank", b.Rank,
		"number of this server's engine, with --data-parallel-external-lb, which it implies")
	f.IntVar(&b.Start, "data-parallel-start-rank", b.Start,
		"number of this server's first engine, with --data-parallel-hybrid-lb, which it implies")
	for _, name := range []string{"data-parallel-external-lb", "data-parallel-hybrid-lb",
		"data-parallel-rank", "data-parallel-start-rank"} {
		f.Lookup(name).Hidden = true
	}
}

// Any tells whether other servers have engines beside this one's.
func (b *Balanced) Any() bool { return b.External || b.Hybrid || b.Rank >= 0 || b.Start >= 0 }

// First is the number of the server's first engine among those of all servers.
func (b *Balanced) First() int { return max(0, b.Rank, b.Start) }

// checkBalanced refuses engines of a server that are not some of all.
func (p *Parallel) checkBalanced() error {
	b, n, local := &p.Balanced, p.DataParallelSize, p.DataParallelSizeLocal
	external := b.External || b.Rank >= 0
	switch {
	case b.Rank < -1 || b.Start < -1:
		return usage("--data-parallel-rank %d, --data-parallel-start-rank %d: must not be negative",
			b.Rank, b.Start)
	case !b.Any():
		return nil
	case p.ExpertParallel && n > 1:
		return usage("%s with --enable-expert-parallel: one driver plans the steps of all "+
			"--data-parallel-size %d places, which share the experts, so they have one API; "+
			"--nnodes divides them among machines", b.flag(), n)
	case external && (b.Hybrid || b.Start >= 0):
		return usage("%s with --data-parallel-hybrid-lb or --data-parallel-start-rank: a server "+
			"has one engine, or several", b.flag())
	case external && b.Rank < 0:
		return usage("--data-parallel-external-lb needs --data-parallel-rank, which of " +
			"--data-parallel-size engines this server has")
	case external && local > 1:
		return usage("--data-parallel-size-local %d with --data-parallel-rank %d: a server has "+
			"one engine then (--data-parallel-hybrid-lb is for several)", local, b.Rank)
	case !external && local < 1:
		return usage("--data-parallel-hybrid-lb needs --data-parallel-size-local, how many of " +
			"--data-parallel-size engines this server has")
	case b.First()+max(1, local) > n:
		return usage("%s %d: this server has engines %d to %d, of --data-parallel-size %d",
			b.flag(), b.First(), b.First(), b.First()+max(1, local)-1, n)
	}
	return nil
}

// flag is the one that says that there are other servers.
func (b *Balanced) flag() string {
	switch {
	case b.Rank >= 0:
		return "--data-parallel-rank"
	case b.External:
		return "--data-parallel-external-lb"
	case b.Start >= 0:
		return "--data-parallel-start-rank"
	}
	return "--data-parallel-hybrid-lb"
}
