package config

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Nodes says on which machines the ranks run without Ray, and which one of them this is.
type Nodes struct {
	// Count is the number of machines; with 1 nothing else here has a meaning but Timeout.
	Count int
	// Rank is this machine's number; the driver is on 0.
	Rank int
	// Headless says that this process runs ranks for the driver, and does nothing else.
	Headless bool
	// Master is node 0's address, MasterPort the port at which the other nodes arrive.
	Master     string
	MasterPort int
	// TokenFile has the secret that all nodes know.
	TokenFile string
	// Timeout is how long nodes wait for each other at the start.
	Timeout time.Duration
}

// Address is where the other nodes arrive, host:port.
func (n *Nodes) Address() string {
	return net.JoinHostPort(n.Master, strconv.Itoa(n.MasterPort))
}

// nodeFlags defines the flags of --nnodes.
func (c *Config) nodeFlags(f *pflag.FlagSet) {
	n := &c.Parallel.Nodes
	f.IntVar(&n.Count, "nnodes", n.Count,
		"machines that the ranks are divided among, without Ray: each runs this program")
	f.IntVar(&n.Rank, "node-rank", n.Rank,
		"number of this machine: 0 has the API, the others are --headless")
	f.StringVar(&n.Master, "master-addr", n.Master,
		"address of node 0, at which the other nodes and all ranks reach it")
	f.IntVar(&n.MasterPort, "master-port", n.MasterPort, "port of node 0 for the other nodes")
	f.StringVar(&n.TokenFile, "cluster-token-file", n.TokenFile,
		"file with a secret that all nodes share, such as openssl rand -hex 32 prints")
	f.Var(&seconds{&n.Timeout}, "distributed-timeout-seconds",
		"how long the nodes wait for each other at the start")
	Paths(f, PathFile, "cluster-token-file")
}

// Setting is something that must be equal on all nodes.
type Setting struct {
	// Name is the flag's, with its dashes, or what else it is.
	Name  string `json:"name"`
	Value string `json:"value"`
}

// ownToNode are engine flags that may differ between nodes: they say which node this is, or only
// node 0 has a use for them.
var ownToNode = []string{"cluster-token-file", "node-rank", "distributed-timeout-seconds",
	"served-model-name", "tokenizer", "skip-tokenizer-init", "download-dir", "weights-cache",
	"generation-config",
	"override-generation-config", "chat-template", "trust-request-chat-template", "max-logprobs",
	"logprobs-mode",
	"kv-transfer-config", "kv-offloading-size", "kv-offloading-dir", "kv-offloading-backend",
	"runner", "pooler-config", "hf-overrides", "speculative-config",
	"max-num-queued-reqs", "queue-memory", "queue-port-range", "stall-warning",
	"execute-model-timeout-seconds", "on-failure", "max-restarts", "restart-window",
	"on-model-change", "master-addr",
	"master-port"}

// Settings are the flags of the engine that must be equal on all nodes. Those that have no effect
// are always equal.
func (c *Config) Settings() []Setting {
	var all []Setting
	if c.flags == nil {
		return nil
	}
	engine := pflag.NewFlagSet("", pflag.ContinueOnError)
	defaults := Default()
	defaults.EngineFlags(engine)
	c.flags.VisitAll(func(f *pflag.Flag) {
		if engine.Lookup(f.Name) == nil || f.Hidden || slices.Contains(ownToNode, f.Name) {
			return
		}
		value := f.Value.String()
		if value == "[]" {
			value = ""
		}
		all = append(all, Setting{"--" + f.Name, value})
	})
	return all
}

// validateNodes refuses what does not go together; Validate has looked at the sizes.
func (c *Config) validateNodes() error {
	p := &c.Parallel
	n := &p.Nodes
	switch {
	case n.Rank < 0 || n.Rank >= n.Count:
		return usage("--node-rank %d is outside of 0 to %d (--nnodes %d)",
			n.Rank, n.Count-1, n.Count)
	case n.Headless && n.Rank == 0:
		return usage("--headless on node 0, which has the API: --node-rank says which node this is")
	case n.Count == 1:
		return nil
	case p.Backend != "" && p.Backend != "mp":
		return usage("--nnodes %d with --distributed-executor-backend %s: nodes are for mp",
			n.Count, p.Backend)
	case n.Master == "":
		return usage("--nnodes %d needs --master-addr, the address of node 0", n.Count)
	case n.MasterPort < 1 || n.MasterPort > 65535:
		return usage("--master-port %d is not a port", n.MasterPort)
	case n.TokenFile == "":
		return usage("--nnodes %d needs --cluster-token-file, a file with the same secret on "+
			"every node", n.Count)
	case n.Rank > 0 && !n.Headless:
		return usage("--node-rank %d needs --headless: only node 0 has the API", n.Rank)
	}
	return p.checkNodes()
}

// checkNodes refuses replicas that cannot be divided among the nodes. Each node has as many ranks
// as every other: whole replicas, or an equal part of one.
func (p *Parallel) checkNodes() error {
	n, d, ranks := p.Nodes.Count, p.Engines(), p.Layout().World()
	if divisible(n, d, ranks) {
		return nil
	}
	nodes := nearest(n, func(n int) bool { return divisible(n, d, ranks) })
	if d == 1 {
		dimensions := "tensor × pipeline × prefill context"
		if p.ExpertParallel {
			dimensions += " × data"
		}
		return usage("--nnodes %d does not divide the %d ranks (%s parallel size): --nnodes %s "+
			"would", n, ranks, dimensions, nodes)
	}
	return usage("--nnodes %d with --data-parallel-size %d: nodes have whole replicas of %d "+
		"ranks, or equal parts of one: --nnodes %s would do, or --data-parallel-size %s", n, d,
		ranks, nodes, nearest(d, func(d int) bool { return divisible(n, d, ranks) }))
}

// divisible says whether replicas of so many ranks can be divided among nodes.
func divisible(nodes, replicas, ranks int) bool {
	if nodes <= replicas {
		return replicas%nodes == 0
	}
	return nodes%replicas == 0 && ranks%(nodes/replicas) == 0
}

// furthest is how far above a number another one is looked for.
const furthest = 1024

// nearest are the numbers next to one that will not do, below and above, that do, in words.
func nearest(n int, does func(int) bool) string {
	var found []string
	for below := n - 1; below > 0; below-- {
		if does(below) {
			found = append(found, strconv.Itoa(below))
			break
		}
	}
	for above := n + 1; above <= n+furthest; above++ {
		if does(above) {
			found = append(found, strconv.Itoa(above))
			break
		}
	}
	return strings.Join(found, " or ")
}

// localReplicas is how many replicas each node has, or takes part in.
func (p *Parallel) localReplicas() int { return max(1, p.DataParallelSize/max(1, p.Nodes.Count)) }
