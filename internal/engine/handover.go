package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// TransferError says what is wrong with what a request says of KV blocks elsewhere.
type TransferError struct {
	// Field is within kv_transfer_params.
	Field, Reason string
}

func (e *TransferError) Error() string { return fmt.Sprintf("%s: %s", e.Field, e.Reason) }

// wait waits for what is under way; the group has ended.
func (t *transfers) wait() {
	if t != nil {
		t.running.Wait()
	}
}

// checkTransfer refuses a request, the i-th of those submitted, that asks for what cannot be.
func (e *Engine) checkTransfer(r *Request, i int) error {
	k, t := r.Ticket, e.transfers
	switch {
	case k == nil && !r.HandOver:
		return nil
	case t == nil:
		return &TransferError{"", "the server was started without --kv-transfer-config"}
	case r.HandOver && !t.config.Produces():
		return &TransferError{"do_remote_decode", "the server is a kv_consumer"}
	case r.HandOver && i > 0:
		return &TransferError{"do_remote_decode", "one sequence is handed over at a time"}
	case k == nil:
		return nil
	case !t.config.Consumes():
		return &TransferError{"do_remote_prefill", "the server is a kv_producer"}
	case k.Tokens < 1 || k.Tokens%t.shape.BlockSize != 0:
		return &TransferError{"remote_num_tokens",
			fmt.Sprintf("%d tokens do not fill blocks of %d (--block-size)", k.Tokens,
				t.shape.BlockSize)}
	case t.token != nil && !k.SealedBy(t.token):
		return &TransferError{"remote_seal", "it was not made by a server with this one's " +
			"--cluster-token-file"}
	case t.token == nil && !k.Address().Loopback():
		return &TransferError{"remote_host",
			"without --cluster-token-file blocks come from this host only, by a loopback address"}
	}
	return nil
}

// fetch has the ranks fetch what the scheduler has asked for.
func (e *Engine) fetch() {
	t := e.transfers
	if t == nil {
		return
	}
	for _, f := range e.sched.Fetches(nil) {
		q := f.Owner.(*request)
		if len(f.Blocks) == 0 {
			e.renounce(q)
			continue
		}
		q.asked = true
		t.start(e, q.Key, &kvtransfer.Fetch{ID: q.Key, Secret: q.Ticket.Secret,
			From:   q.Ticket.Address(),
			Blocks: f.Blocks, First: f.First, Digest: f.Digest, Plan: f.Plan,
			Timeout: t.config.FetchTimeout})
	}
}

// forsake ends the fetches that no request waits for any more: the ranks stop to read and to write,
// and tell the producer.
func (e *Engine) forsake() {
	t := e.transfers
	if t == nil {
		return
	}
	for _, key := range e.sched.Forsaken(nil) {
		group := e.group
		t.running.Go(func() {
			// A group that has failed has ended them.
			_, _ = executor.Call(e.ranks.Life, group, calls.KVCancel, key, executor.RPCOptions{})
		})
	}
}

// renounce tells the producer of a request's blocks that they are not needed.
func (e *Engine) renounce(q *request) {
	if q.Ticket == nil || q.choice > 0 || q.asked || e.transfers == nil {
		return
	}
	q.asked = true
	e.transfers.start(e, 0, &kvtransfer.Fetch{Secret: q.Ticket.Secret, From: q.Ticket.Address(),
		Timeout: e.transfers.config.FetchTimeout})
}

// start has the ranks of the group fetch blocks for the request of a key; 0 is for none.
func (t *transfers) start(e *Engine, key uint64, f *kvtransfer.Fetch) {
	group, began := e.group, time.Now()
	t.running.Go(func() {
		moved, err := t.fetch(e.ranks.Life, group, f)
		if key == 0 {
			return
		}
		e.events.Emit(status.KVFetched{Transfer: f.Secret.Name(), Blocks: len(f.Blocks),
			Began: began,
			Took:  time.Since(began), ByMemory: moved.Memory, ByLink: moved.Link, Err: err})
		e.post(arrival{key, err == nil})
	})
}

// fetch returns when no rank writes to the blocks any more.
func (t *transfers) fetch(ctx context.Context, group *executor.Executor,
	f *kvtransfer.Fetch) (moved kvtransfer.Moved, err error) {
	results, err := executor.Call(ctx, group, calls.KVFetch, *f, executor.RPCOptions{})
	if err != nil {
		return moved, err // the group is over, and with it its agents
	}
	var errs []error
	for i, done := range results {
		if done.Error != "" {
			errs = append(errs, fmt.Errorf("rank %d: %s", i, done.Error))
		}
		moved.Memory += done.Memory
		moved.Link += done.Link
	}
	return moved, errors.Join(errs...)
}

// offer is what the ranks hand out of a request before it has ended: no engine can ask for it
// before its ticket is out. One that never is to be handed over is withdrawn.
type offer struct {
	hold kvtransfer.Pin
	// end ends it.
	end context.CancelCauseFunc
	// state is offerOpen until it is claimed, for its ticket, or over.
	state atomic.Int32
}

const (
	offerOpen = iota
	offerClaimed
	offerOver
)

// errWithdrawn ends an offer.
var errWithdrawn = errors.New("the request ended otherwise")

// offer has the ranks hand out what the plan that was just made completes, from when they have
// executed it: they hear of it before the plan. Were they told when its result is here, they would
// only hear of it after the plan that follows, which may be another long prompt.
func (e *Engine) offer() {
	t := e.transfers
	if t == nil || t.first.Port == 0 {
		return
	}
	for _, o := range e.sched.Offers(nil) {
		t.withdraw(o.Key) // of a request that was preempted
		if f, err := t.hold(e, o.Key, &o.HandOver); err == nil {
			t.offers[o.Key] = f
		} // else the ranks are told at its end
	}
}

// withdraw ends the offer of a request that is not handed over.
func (t *transfers) withdraw(key uint64) {
	if t == nil {
		return
	}
	if o := t.offers[key]; o != nil {
		delete(t.offers, key)
		o.end(errWithdrawn)
	}
}

// claim returns the offer of a request that has ended with what was offered, nil when there is none
// any more.
func (t *transfers) claim(key uint64, h *schedule.HandOver) *offer {
	o := t.offers[key]
	if o == nil || o.hold.Digest != h.Digest || o.hold.Plan != h.Plan ||
		!slices.Equal(o.hold.Blocks, h.Blocks) || !o.state.CompareAndSwap(offerOpen, offerClaimed) {
		return nil
	}
	delete(t.offers, key)
	return o
}

// handOver makes the ticket of a request that has ended, and has the ranks hand out its blocks.
func (e *Engine) handOver(r *schedule.Output) {
	t, h, q := e.transfers, r.HandOver, r.Owner.(*request)
	if t.first.Port == 0 {
		e.sched.Release(r.Key)
		return
	}
	o := t.claim(r.Key, h)
	if o == nil {
		var err error
		if o, err = t.hold(e, r.Key, h); err != nil {
			e.sched.Release(r.Key) // the group is over
			return
		}
		o.state.Store(offerClaimed)
	}
	k := &kvtransfer.Ticket{DoRemotePrefill: true, EngineID: t.id, Secret: o.hold.Secret,
		BlockIDs: h.Blocks, Tokens: len(h.Blocks) * t.shape.BlockSize, Host: t.first.Host,
		Port: t.first.Port, Fingerprint: t.first.Fingerprint, Local: t.first.Local,
		TPSize: t.shape.Layout.Sizes().TP}
	k.RequestID = k.Secret.Name()
	if t.token != nil {
		k.SealBy(t.token)
	}
	q.ticket = k
}

// hold has the ranks hand out blocks until they have been handed over, or for as long as they are
// kept. When no engine reads them any more, and they were claimed, they are released.
func (t *transfers) hold(e *Engine, key uint64, h *schedule.HandOver) (*offer, error) {
	o := &offer{hold: kvtransfer.Pin{Secret: kvtransfer.NewSecret(),
		Blocks: slices.Clone(h.Blocks),
		Digest: h.Digest, Plan: h.Plan}}
	life, group, began := e.ranks.Life, e.group, time.Now()
	wait, err := executor.Begin(life, group, calls.KVPin, o.hold,
		executor.RPCOptions{UniqueReply: true})
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancelCause(life)
	o.end = end
	t.running.Go(func() {
		defer end(nil)
		ctx, cancel := context.WithTimeoutCause(ctx, t.config.HoldTimeout,
			fmt.Errorf("nobody has come for %v", t.config.HoldTimeout))
		defer cancel()
		results, err := wait(ctx)
		handed := err == nil && results[0]
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		_, freeErr := executor.Call(life, group, calls.KVRelease, o.hold.Secret,
			executor.RPCOptions{})
		if o.state.CompareAndSwap(offerOpen, offerOver) {
			return
		}
		e.events.Emit(status.KVHandedOver{Transfer: o.hold.Secret.Name(),
			Blocks: len(o.hold.Blocks),
			After:  time.Since(began), Fetched: handed, Err: cmp.Or(err, freeErr)})
		e.post(released(key))
	})
	return o, nil
}
