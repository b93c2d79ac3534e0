// Package handover exchanges KV blocks with other engines (--kv-transfer-config). Blocks travel
// between ranks; this is what ranks are told, by calls that are answered when they have done it,
// each waited for by a goroutine. Package state decides what to do.
package handover

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/handover/state"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch/nodes"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// Exchange is an engine's part in the exchange of KV blocks; nil where there is none. Its methods
// belong to the step loop, but for Check and Wait.
type Exchange struct {
	opt    Options
	config *config.Transfer
	// patience is how long a rank may do nothing.
	patience time.Duration
	// port is where the first rank listens, 0 for any.
	port int
	id   string
	// shape is that of the newest group.
	shape kvtransfer.Shape
	// token seals tickets; nil when engines have no secret in common.
	token []byte
	// running are the goroutines.
	running sync.WaitGroup

	group *executor.Executor
	// first are the agents of the first rank of each place, nil while there are none.
	first   []kvtransfer.Address
	machine state.Machine
	// tickets are those of requests until they end, pins the transfers that the ranks hand out.
	tickets map[uint64]*kvtransfer.Ticket
	pins    map[state.Transfer]*pin
}

// Options are what an Exchange is connected with.
type Options struct {
	// Life ends with the engine.
	Life context.Context
	// Scheduler is the loop's.
	Scheduler *schedule.Places
	Events    status.Listener
	// Post brings a Message to the loop, which gives it to Handle. Any goroutine calls it.
	Post func(Message)
}

// Message tells the loop what became of a call.
type Message interface{ handle(*Exchange) }

// openTimeout bounds the calls by which the ranks of a group start to exchange blocks.
const openTimeout = 10 * time.Second

// New makes the exchange of an engine, nil without --kv-transfer-config.
func New(b *groups.Launch, o Options) (*Exchange, error) {
	c := &b.Config.Transfer
	if c.Role == "" {
		return nil, nil
	}
	x := &Exchange{opt: o, config: c, patience: b.Config.Queue.StepTimeout, id: c.EngineID,
		port:    c.Port,
		tickets: map[uint64]*kvtransfer.Ticket{}, pins: map[state.Transfer]*pin{}}
	if x.id == "" {
		x.id = string(handshake.NewInstance())
	}
	if p := &b.Config.Parallel; b.Engines() > 1 || p.Balanced.Any() {
		x.id += fmt.Sprintf("-%d", b.Rank)
	}
	if x.port > 0 {
		x.port += b.Number * b.Ranks
	}
	if file := b.Config.Parallel.Nodes.TokenFile; file != "" {
		token, err := nodes.ReadToken(file)
		if err != nil {
			return nil, &config.UsageError{Err: fmt.Errorf("--cluster-token-file: %w", err)}
		}
		x.token = token[:]
	}
	x.shape = b.CacheShape()
	if compute.StateBytes(x.shape.Cache) > 0 {
		return nil, &config.UsageError{Err: fmt.Errorf("--kv-transfer-config: layers of %q keep a "+
			"state of each request, which is not handed over", b.Info.Root)}
	}
	return x, nil
}

// Wait waits for what is under way; the group has ended.
func (x *Exchange) Wait() {
	if x != nil {
		x.running.Wait()
	}
}

// Open lets the ranks of a group take part that has just started, or has other weights or another
// cache than before.
func (x *Exchange) Open(g groups.Caching) error {
	x.Close()
	x.group = g.Executor
	x.shape.Layout, x.shape.Stages = g.Shape.Layout, g.Shape.Stages
	x.shape.Model, x.shape.ISA = g.Shape.Model, g.Shape.ISA
	ctx, cancel := context.WithTimeout(x.opt.Life, openTimeout)
	defer cancel()
	addresses, err := executor.Call(ctx, g.Executor, calls.KVOpen, kvtransfer.Open{Shape: x.shape,
		Host: x.config.IP, Port: x.port, Remote: x.config.Remote, Plan: x.opt.Scheduler.Made()},
		executor.RPCOptions{})
	if err != nil {
		return fmt.Errorf("exchange of KV blocks: %w", err)
	}
	for i := range addresses {
		if !addresses[i].Loopback() && x.token == nil {
			return fmt.Errorf("exchange of KV blocks: %w", &config.UsageError{Err: fmt.Errorf(
				"--kv-transfer-config: rank %d listens at %s, which other machines reach: "+
					"--cluster-token-file is needed", i, addresses[i].Host)})
		}
	}
	_, err = executor.Call(ctx, g.Executor, calls.KVRanks, addresses, executor.RPCOptions{})
	if err != nil {
		return fmt.Errorf("exchange of KV blocks: %w", err)
	}
	l := x.shape.Layout.Sizes()
	for dp := range l.DP {
		x.first = append(x.first, addresses[l.Rank(layout.Place{DP: dp})])
	}
	x.opt.Events.Emit(status.KVExchangeOpened{Role: x.config.Role, EngineID: x.id,
		Address: fmt.Sprintf("%s:%d", x.first[0].Host, x.first[0].Port), Ranks: len(addresses)})
	return nil
}

// Close has no more blocks handed out, until Open: the ranks' agents are gone, or the cache sleeps.
func (x *Exchange) Close() {
	if x == nil {
		return
	}
	x.first = nil
	x.machine.Restart()
	x.perform()
}

// Admit takes note of a request with a ticket; first is the first output of its prompt.
func (x *Exchange) Admit(key uint64, t *kvtransfer.Ticket, first bool) {
	if x == nil || t == nil {
		return
	}
	x.tickets[key] = t
	x.machine.Admit(key, first)
}

// Planned has the ranks do what the plan that was just made asks for, and which fetches no request
// waits for any more. It is called before the ranks get the plan.
func (x *Exchange) Planned() {
	if x == nil {
		return
	}
	for _, f := range x.opt.Scheduler.Fetches(nil) {
		x.machine.Fetch(f)
	}
	for _, p := range x.opt.Scheduler.Pins(nil) {
		if x.first != nil {
			x.machine.PlanPin(p.Key, p.HandOver)
		}
	}
	x.perform()
}

// Publish makes the ticket of a request that has ended with blocks to hand over; nil when the ranks
// hand out nothing.
func (x *Exchange) Publish(key uint64, h *schedule.HandOver) *kvtransfer.Ticket {
	if x.first == nil {
		x.opt.Scheduler.Release(key)
		return nil
	}
	t := x.machine.Publish(key, h)
	x.perform()
	p := x.pins[t]
	if p == nil {
		return nil // the group is over
	}
	at := &x.first[h.Place]
	k := &kvtransfer.Ticket{DoRemotePrefill: true, EngineID: x.id, Secret: p.hold.Secret,
		BlockIDs: present(h.Blocks), Host: at.Host, Port: at.Port,
		Tokens:      len(h.Blocks) / x.shape.Groups() * x.shape.BlockSize,
		Fingerprint: at.Fingerprint, Local: at.Local,
		TPSize: x.shape.Layout.Sizes().TP}
	k.RequestID = k.Secret.Name()
	if x.token != nil {
		k.SealBy(x.token)
	}
	return k
}

// present are blocks without those that are not handed over.
func present(blocks []uint32) []uint32 {
	return slices.DeleteFunc(slices.Clone(blocks), func(b uint32) bool { return b == step.NoBlock })
}

// End takes note that a request has ended, after Publish if it hands blocks over.
func (x *Exchange) End(key uint64) {
	if x == nil {
		return
	}
	x.machine.End(key)
	x.perform()
	delete(x.tickets, key)
}

// Unpublish has the blocks of a request back that has ended and whose ticket was not read, with the
// call of Cancelled that follows.
func (x *Exchange) Unpublish(key uint64) {
	if x != nil {
		x.machine.Unpublish(key)
	}
}

// Cancelled ends the fetches that no request waits for any more.
func (x *Exchange) Cancelled() {
	if x == nil {
		return
	}
	for _, key := range x.opt.Scheduler.Cancelled(nil) {
		x.machine.Cancel(key)
	}
	x.perform()
}

// Handle does what a message says.
func (x *Exchange) Handle(m Message) {
	m.handle(x)
	x.perform()
}
