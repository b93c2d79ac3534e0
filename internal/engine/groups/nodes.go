package groups

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/nodes"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// NodeOptions configure RunNode.
type NodeOptions struct {
	Config config.Config
	// Log is nil for none.
	Log *slog.Logger
	// Version is the program's, which must be the same on all nodes.
	Version string
	// Output receives what worker processes print; nil is standard error.
	Output launch.Output
	// Null says that the ranks compute nothing.
	Null bool
}

// RunNode runs the ranks of a node other than node 0 until node 0 ends them, or ctx ends.
func RunNode(ctx context.Context, opt NodeOptions) error {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Output == nil {
		opt.Output = launch.Print(os.Stderr)
	}
	// Ranks of this node load the pinned files, also after the files of the folder are replaced.
	held, err := pinOnNode(&opt)
	if err != nil {
		return err
	}
	if held != nil {
		defer held.Close()
	}
	token, settings, err := clusterOf(&opt.Config, opt.Version, held)
	if err != nil {
		return err
	}
	n := &opt.Config.Parallel.Nodes
	return nodes.Serve(ctx, nodes.AgentOptions{Node: n.Rank, Address: n.Address(), Token: token,
		Settings: settings, Model: opt.Config.Model.Path, Timeout: n.Timeout,
		Worker: workerOf(&opt.Config), Output: opt.Output, Log: opt.Log})
}

// pinOnNode pins the model's files on a node without an engine; nil where it has no folder of the
// model.
func pinOnNode(opt *NodeOptions) (*checkpoint.Pinned, error) {
	m := &opt.Config.Model
	if m.Path == "" || opt.Null || !open.IsFolder(m.Path) {
		return nil, nil
	}
	dir, err := filepath.Abs(m.Path)
	if err != nil {
		return nil, err
	}
	return checkpoint.Pin(dir, m.LoadFormat != "dummy")
}

// clusterOf returns the cluster's secret, and the settings that must be equal on all nodes. held
// are the files of the model, nil where they are not known.
func clusterOf(c *config.Config, version string, held *checkpoint.Pinned) (handshake.Token,
	[]config.Setting, error) {
	n := &c.Parallel.Nodes
	token, err := nodes.ReadToken(n.TokenFile)
	if err != nil {
		return token, nil, &config.UsageError{Err: fmt.Errorf("--cluster-token-file: %w", err)}
	}
	program, err := join.BinaryHash()
	if err != nil {
		return token, nil, err
	}
	settings := []config.Setting{{Name: "version", Value: version},
		{Name: "SHA-256 of the program", Value: hex.EncodeToString(program[:6])}}
	settings = append(settings, modelSettings(&c.Model, held)...)
	return token, append(settings, c.Settings()...), nil
}

// listenForNodes admits the other nodes to this one, which is node 0.
func (b *Launch) listenForNodes() error {
	var held *checkpoint.Pinned
	if b.Files != nil {
		held = b.Files.Pinned
	}
	token, settings, err := clusterOf(b.Config, b.Version, held)
	if err != nil {
		return err
	}
	n := &b.Config.Parallel.Nodes
	c, err := nodes.Listen(nodes.Options{Nodes: n.Count, Address: n.Address(), Token: token,
		Settings: settings, Timeout: n.Timeout, Worker: workerOf(b.Config), Output: b.Output,
		Log: b.Log})
	if err != nil {
		return fmt.Errorf("--master-addr %s --master-port %d: %w", n.Master, n.MasterPort, err)
	}
	if tp := b.Config.Parallel.TensorParallelSize; min(b.Ranks, b.RanksHere())%tp != 0 {
		b.Log.Warn("tensor-parallel groups are divided among nodes: every layer waits for the "+
			"network (--pipeline-parallel-size divides layers)", "tensor_parallel_size", tp,
			"ranks_per_node", b.RanksHere())
	}
	b.Cluster = &Cluster{nodes: c, owner: c}
	b.Files.Watch(func() { c.Expect(modelSettings(&b.Config.Model, b.Files.Pinned)) })
	b.Cluster.Engines.Store(int64(b.Engines()))
	return nil
}

// modelSettings tell one model from another without reading all of it.
func modelSettings(m *config.Model, held *checkpoint.Pinned) []config.Setting {
	switch {
	case m.Path == "":
		return []config.Setting{{Name: "the model", Value: builtin.Name}}
	case held == nil || !open.IsFolder(m.Path):
		// A repository of the Hub; node 0 says which commit of it.
		return []config.Setting{{Name: "the model", Value: m.Path + " (no folder there)"}}
	}
	all := []config.Setting{{Name: "the model", Value: held.Location()}}
	var weights []checkpoint.File
	for _, f := range held.Files() {
		switch {
		case f.Name == "config.json":
			all = append(all, config.Setting{Name: "SHA-256 of its config.json", Value: f.Sum[:12]})
		case checkpoint.IsWeights(f.Name):
			weights = append(weights, f)
		}
	}
	if weights == nil {
		return all
	}
	return append(all, config.Setting{Name: "SHA-256 of samples of its weights",
		Value: checkpoint.Identity(weights)})
}

// MixedISA is a warning when ranks compute with different instruction sets, "" when they do not:
// each node takes its best, and only on one have all layouts the same bits.
func MixedISA(ranks []queue.Ready) string {
	for _, r := range ranks {
		if r.ISA != ranks[0].ISA {
			return fmt.Sprintf("rank %d computes with %s, rank %d with %s: bits depend on the "+
				"layout; --cpu-isa makes them equal", ranks[0].Rank, ranks[0].ISA, r.Rank, r.ISA)
		}
	}
	return ""
}

// CheckNodes refuses engines on nodes that have not joined.
func (b *Launch) CheckNodes(numbers []int, nodes int) error {
	for _, number := range numbers {
		g := b.group(number)
		missing := b.Cluster.nodes.Missing(&g)
		if len(missing) == 0 {
			continue
		}
		n := max(nodes, missing[len(missing)-1]+1)
		return open.Refuse("engine %d is for node %d, which has not come (serve --headless "+
			"--node-rank %d --nnodes %d --data-parallel-size %d, and the other flags as on node "+
			"0): %d engines have nodes", number, missing[0], missing[0], n, n*b.Share/b.Slots,
			number)
	}
	return nil
}
