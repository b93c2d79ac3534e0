package config

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// Balanced says which of --data-parallel-size engines this server has where each of several servers
// has some, and something else balances requests over the servers: vLLM's external (one engine a
// server) and hybrid (several) load balancing.
type Balanced struct {
	External, Hybrid bool
	// Rank is the engine's number with External, Start that of the first one with Hybrid; nil is
	// not given.
	Rank, Start *int
}

// number is the value of a flag that may be left out.
type number struct{ of **int }

// Set implements pflag.Value.
func (n number) Set(text string) error {
	v, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%q is not a number", text)
	}
	*n.of = &v
	return nil
}

// String implements pflag.Value.
func (n number) String() string {
	if n.of == nil || *n.of == nil {
		return ""
	}
	return strconv.Itoa(**n.of)
}

// Type implements pflag.Value.
func (number) Type() string { return "int" }

func (b *Balanced) flags(f *pflag.FlagSet) {
	f.BoolVar(&b.External, "data-parallel-external-lb", false,
		"this server has one of the engines, and others have the rest")
	f.BoolVar(&b.Hybrid, "data-parallel-hybrid-lb", false,
		"this server has --data-parallel-size-local of the engines, and others have the rest")
	f.Var(number{&b.Rank}, "data-parallel-rank",
		"number of this server's engine, with --data-parallel-external-lb, which it implies")
	f.Var(number{&b.Start}, "data-parallel-start-rank",
		"number of this server's first engine, with --data-parallel-hybrid-lb, which it implies")
	for _, name := range []string{"data-parallel-external-lb", "data-parallel-hybrid-lb",
		"data-parallel-rank", "data-parallel-start-rank"} {
		f.Lookup(name).Hidden = true
	}
}

// Any tells whether other servers have engines beside this one's.
func (b *Balanced) Any() bool { return b.External || b.Hybrid || b.Rank != nil || b.Start != nil }

// First is the number of the server's first engine among those of all servers.
func (b *Balanced) First() int {
	for _, n := range []*int{b.Rank, b.Start} {
		if n != nil {
			return *n
		}
	}
	return 0
}

// checkBalanced refuses engines of a server that are not some of all.
func (p *Parallel) checkBalanced() error {
	b, n, local := &p.Balanced, p.DataParallelSize, p.DataParallelSizeLocal
	external := b.External || b.Rank != nil
	switch {
	case !b.Any():
		return nil
	case b.First() < 0:
		return usage("%s %d: must not be negative", b.flag(), b.First())
	case p.ExpertParallel && n > 1:
		return usage("%s with --enable-expert-parallel: one driver plans the steps of all "+
			"--data-parallel-size %d places, which share the experts, so they have one API; "+
			"--nnodes divides them among machines", b.flag(), n)
	case external && (b.Hybrid || b.Start != nil):
		return usage("%s with --data-parallel-hybrid-lb or --data-parallel-start-rank: a server "+
			"has one engine, or several", b.flag())
	case external && b.Rank == nil:
		return usage("--data-parallel-external-lb needs --data-parallel-rank, which of " +
			"--data-parallel-size engines this server has")
	case external && local > 1:
		return usage("--data-parallel-size-local %d with --data-parallel-rank %d: a server has "+
			"one engine then (--data-parallel-hybrid-lb is for several)", local, *b.Rank)
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
	case b.Rank != nil:
		return "--data-parallel-rank"
	case b.External:
		return "--data-parallel-external-lb"
	case b.Start != nil:
		return "--data-parallel-start-rank"
	}
	return "--data-parallel-hybrid-lb"
}
