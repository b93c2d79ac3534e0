package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch/nodes"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// transfers are an engine's part in the exchange of KV blocks with others (--kv-transfer-config).
// Blocks travel between ranks; here is what they are told, by calls that are answered when they
// have done it, each waited for by a goroutine. The step loop starts those and hears of them by its
// inbox.
type transfers struct {
	config *config.Transfer
	// port is where the first rank listens, 0 for any.
	port int
	id   string
	// model and weights name what was loaded; shape is that of the newest group.
	model, weights string
	shape          kvtransfer.Shape
	// token seals tickets; nil when engines have no secret in common.
	token []byte
	// running are the goroutines.
	running sync.WaitGroup

	// first is the agent of the first rank of the group; zero while there is none. offers are what
	// its ranks hold of requests that run.
	first  kvtransfer.Address
	offers map[uint64]*offer
}

// openTimeout bounds the calls by which the ranks of a group start to exchange blocks.
const openTimeout = 10 * time.Second

// newTransfers makes the engine's part, nil without --kv-transfer-config.
func newTransfers(b *groups.Launch) (*transfers, error) {
	c := &b.Config.Transfer
	if c.Role == "" {
		return nil, nil
	}
	t := &transfers{config: c, id: c.EngineID, port: c.Port,
		offers: map[uint64]*offer{}}
	if t.id == "" {
		t.id = string(handshake.NewInstance())
	}
	if b.Engines() > 1 {
		t.id += fmt.Sprintf("-%d", b.Number)
	}
	if t.port > 0 {
		t.port += b.Number * b.Ranks
	}
	if file := b.Config.Parallel.Nodes.TokenFile; file != "" {
		token, err := nodes.ReadToken(file)
		if err != nil {
			return nil, &config.UsageError{Err: fmt.Errorf("--cluster-token-file: %w", err)}
		}
		t.token = token[:]
	}
	t.model, t.weights = b.WeightsName()
	m := b.Model
	t.shape = kvtransfer.Shape{DType: b.Info.DType,
		BlockSize: b.Info.BlockSize, KVHeads: m.KVHeads, HeadDim: m.HeadDim, Layers: m.Layers}
	return t, nil
}

// computesWith names the model, and the weights that its ranks compute with now: those of a
// trainer's update by all that is in it, so that servers that were given the same one exchange
// blocks.
func (e *Engine) computesWith() string {
	t := e.transfers
	e.steering.using.RLock()
	defer e.steering.using.RUnlock()
	if u := e.steering.weights.Load(); u != nil {
		return t.model + ", update " + u.Digest()
	}
	return t.model + ", weights " + t.weights
}

// openTransfers lets the ranks of a group take part that has just started, or has other weights or
// another cache than before. While the cache sleeps they do not.
func (e *Engine) openTransfers() error {
	t := e.transfers
	if t == nil {
		return nil
	}
	t.first = kvtransfer.Address{}
	for key := range t.offers { // made to agents that are no more
		t.withdraw(key)
	}
	if asleep := e.steering.asleep.Load(); asleep != nil && asleep.KVCache {
		return nil
	}
	t.shape.Layout, t.shape.Stages = e.launching.Config.Parallel.Layout(), e.launching.Stages
	t.shape.ISA = e.group.Ranks()[0].ISA
	t.shape.Model = e.computesWith()
	ctx, cancel := context.WithTimeout(e.ranks.Life, openTimeout)
	defer cancel()
	addresses, err := executor.Call(ctx, e.group, calls.KVOpen, kvtransfer.Open{Shape: t.shape,
		Host: t.config.IP, Port: t.port, Remote: t.config.Remote, Plan: e.sched.Made()},
		executor.RPCOptions{})
	if err != nil {
		return fmt.Errorf("exchange of KV blocks: %w", err)
	}
	for i := range addresses {
		if !addresses[i].Loopback() && t.token == nil {
			return fmt.Errorf("exchange of KV blocks: %w", &config.UsageError{Err: fmt.Errorf(
				"--kv-transfer-config: rank %d listens at %s, which other machines reach: "+
					"--cluster-token-file is needed", i, addresses[i].Host)})
		}
	}
	if _, err = executor.Call(ctx, e.group, calls.KVRanks, addresses,
		executor.RPCOptions{}); err != nil {
		return fmt.Errorf("exchange of KV blocks: %w", err)
	}
	t.first = addresses[0]
	e.events.Emit(status.KVExchangeOpened{Role: t.config.Role, EngineID: t.id,
		Address: fmt.Sprintf("%s:%d", t.first.Host, t.first.Port), Ranks: len(addresses)})
	return nil
}
