package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/eagleray/eagleray/internal/builtin"
	"github.com/eagleray/eagleray/internal/config"
	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/executor/launch/nodes"
	"github.com/eagleray/eagleray/internal/join"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/queue/handshake"
)

// RunNode runs the ranks of a node other than node 0 until node 0 ends them, or ctx ends.
func RunNode(ctx context.Context, opt Options) error {
	token, settings, err := clusterOf(&opt)
	if err != nil {
		return err
	}
	n := &opt.Config.Parallel.Nodes
	return nodes.Serve(ctx, nodes.AgentOptions{Node: n.Rank, Address: n.Address(), Token: token,
		Settings: settings, Timeout: n.Timeout, Output: opt.workerOutput(), Log: opt.Log})
}

func (o *Options) workerOutput() launch.Output {
	if o.WorkerOutput == nil {
		return launch.Print(os.Stderr)
	}
	return o.WorkerOutput
}

// clusterOf is what this node shows the others: the secret, and what must be equal.
func clusterOf(opt *Options) (handshake.Token, []config.Setting, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	n := &opt.Config.Parallel.Nodes
	token, err := nodes.ReadToken(n.TokenFile)
	if err != nil {
		return token, nil, &config.UsageError{Err: fmt.Errorf("--cluster-token-file: %w", err)}
	}
	program, err := join.BinaryHash()
	if err != nil {
		return token, nil, err
	}
	settings := []config.Setting{{Name: "version", Value: opt.Version},
		{Name: "SHA-256 of the program", Value: hex.EncodeToString(program[:6])}}
	model, err := modelSettings(&opt.Config.Model)
	if err != nil {
		return token, nil, err
	}
	settings = append(settings, model...)
	return token, append(settings, opt.Config.Settings()...), nil
}

// listenForNodes lets the other nodes come to this one, which is node 0.
func (b *opening) listenForNodes() error {
	token, settings, err := clusterOf(&b.opt)
	if err != nil {
		return err
	}
	n := &b.cfg.Parallel.Nodes
	c, err := nodes.Listen(nodes.Options{Nodes: n.Count, Address: n.Address(), Token: token,
		Settings: settings, Timeout: n.Timeout, Output: b.opt.workerOutput(), Log: b.opt.Log})
	if err != nil {
		return fmt.Errorf("--master-addr %s --master-port %d: %w", n.Master, n.MasterPort, err)
	}
	if tp := b.cfg.Parallel.TensorParallelSize; min(b.ranks, b.ranksHere())%tp != 0 {
		b.opt.Log.Warn("tensor-parallel groups are divided among nodes: every layer waits for the "+
			"network (--pipeline-parallel-size divides layers)", "tensor_parallel_size", tp,
			"ranks_per_node", b.ranksHere())
	}
	b.cluster = &cluster{nodes: c, holder: c}
	b.share = b.ranksHere()
	b.cluster.engines.Store(int64(b.engines()))
	return nil
}

// modelSettings tell one model from another without reading all of it.
func modelSettings(m *config.Model) ([]config.Setting, error) {
	if m.Path == "" {
		return []config.Setting{{Name: "the model", Value: builtin.Name}}, nil
	}
	info, err := os.Stat(m.Path)
	if err != nil || !info.IsDir() {
		// A repository of the Hub; node 0 says which commit of it.
		return []config.Setting{{Name: "the model", Value: m.Path + " (no folder there)"}}, nil
	}
	dir, err := filepath.Abs(m.Path)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	all := []config.Setting{{Name: "the model", Value: dir},
		{Name: "SHA-256 of its config.json", Value: hex.EncodeToString(sum[:6])}}
	if m.LoadFormat == "dummy" {
		return all, nil
	}
	weights, err := sampleWeights(dir)
	return append(all, config.Setting{Name: "SHA-256 of samples of its weights", Value: weights}), err
}

// A weight file is sampled in so many places, so many bytes each. Another training of the same
// model has the same sizes and names, and almost no number in common.
const (
	samples    = 64
	sampleSize = 4096
)

// sampleWeights is a hash of the names and sizes of the weight files in a folder, and of samples of
// what is in them.
func sampleWeights(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, path := range files {
		if err := sampleFile(h, path); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}

func sampleFile(h io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "%q", filepath.Base(path))
	_ = binary.Write(h, binary.LittleEndian, info.Size()) // a hash takes everything
	last := max(0, info.Size()-sampleSize)
	for i := range int64(samples) {
		at := last * i / (samples - 1)
		if _, err := io.Copy(h, io.NewSectionReader(f, at, sampleSize)); err != nil {
			return err
		}
	}
	return nil
}

// mixedISA is a warning when ranks compute with different instruction sets, "" when they do not:
// each node takes its best, and only on one have all layouts the same bits.
func mixedISA(ranks []queue.Ready) string {
	for _, r := range ranks {
		if r.ISA != ranks[0].ISA {
			return fmt.Sprintf("rank %d computes with %s, rank %d with %s: bits depend on the layout; "+
				"--cpu-isa makes them equal", ranks[0].Rank, ranks[0].ISA, r.Rank, r.ISA)
		}
	}
	return ""
}
