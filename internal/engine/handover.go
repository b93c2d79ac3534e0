package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/executor"
	"github.com/eagleray/eagleray/internal/kvtransfer"
	"github.com/eagleray/eagleray/internal/schedule"
)

// arrival is the end of a fetch.
type arrival struct {
	key      uint64
	complete bool
}

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
		return &TransferError{"remote_num_tokens", fmt.Sprintf("%d tokens do not fill blocks of %d "+
			"(--block-size)", k.Tokens, t.shape.BlockSize)}
	case t.token != nil && !k.SealedBy(t.token):
		return &TransferError{"remote_seal", "it was not made by a server with this one's " +
			"--cluster-token-file"}
	case t.token == nil && !k.Address().Loopback():
		return &TransferError{"remote_host", "without --cluster-token-file blocks come from this host " +
			"only, by a loopback address"}
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
		t.start(e, q.Key, &kvtransfer.Fetch{Secret: q.Ticket.Secret, From: q.Ticket.Address(),
			Blocks: f.Blocks, First: f.First, Digest: f.Digest, Plan: f.Plan,
			Timeout: t.config.FetchTimeout})
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
		moved, err := t.fetch(e.ranks.life, group, f)
		if key == 0 {
			return
		}
		took := time.Since(began)
		e.metrics.Fetched(took, err == nil, moved.Memory, moved.Link)
		if err != nil {
			t.log.Warn("KV blocks have not come: they are computed here", "transfer", f.Secret.Name(),
				"blocks", len(f.Blocks), "error", err)
		} else {
			t.log.Debug("KV blocks have come", "transfer", f.Secret.Name(), "blocks", len(f.Blocks),
				"began", began.UnixMicro(), "took", took, "by_memory", moved.Memory, "by_link",
				moved.Link)
		}
		e.mu.Lock()
		e.received = append(e.received, arrival{key, err == nil})
		e.mu.Unlock()
		e.signal()
	})
}

// fetch returns when no rank writes to the blocks any more.
func (t *transfers) fetch(ctx context.Context, group *executor.Executor,
	f *kvtransfer.Fetch) (moved kvtransfer.Moved, err error) {
	args, err := json.Marshal(f)
	if err != nil {
		return moved, err
	}
	results, err := group.CollectiveRPC(ctx, "kv_fetch", args, executor.RPCOptions{})
	if err != nil {
		return moved, err // the group is over, and with it its agents
	}
	var errs []error
	for i, r := range results {
		var done kvtransfer.Fetched
		if err := json.Unmarshal(r, &done); err != nil {
			errs = append(errs, err)
		} else if done.Error != "" {
			errs = append(errs, fmt.Errorf("rank %d: %s", i, done.Error))
		}
		moved.Memory += done.Memory
		moved.Link += done.Link
	}
	return moved, errors.Join(errs...)
}

// handOver makes the ticket of a request that has ended, and has the ranks hand out its blocks.
func (e *Engine) handOver(o *schedule.Output) {
	t, h, q := e.transfers, o.HandOver, o.Owner.(*request)
	if t.first.Port == 0 {
		e.sched.Release(o.Key)
		return
	}
	k := &kvtransfer.Ticket{DoRemotePrefill: true, EngineID: t.id, Secret: kvtransfer.NewSecret(),
		BlockIDs: h.Blocks, Tokens: len(h.Blocks) * t.shape.BlockSize, Host: t.first.Host,
		Port: t.first.Port, Fingerprint: t.first.Fingerprint, Local: t.first.Local, TPSize: t.shape.Layout.Sizes().TP}
	k.RequestID = k.Secret.Name()
	if t.token != nil {
		k.SealBy(t.token)
	}
	q.ticket = k
	key, group := o.Key, e.group
	hold := kvtransfer.Hold{Secret: k.Secret, Blocks: slices.Clone(h.Blocks), Digest: h.Digest,
		Plan: h.Plan}
	t.running.Go(func() {
		began := time.Now()
		handed, err := t.hold(e.ranks.life, group, &hold)
		e.metrics.HandedOver(handed)
		if !handed {
			t.log.Warn("KV blocks were not fetched: they are given up", "transfer", k.RequestID,
				"blocks", len(hold.Blocks), "after", time.Since(began), "error", err)
		}
		e.mu.Lock()
		e.released = append(e.released, key)
		e.mu.Unlock()
		e.signal()
	})
}

// hold has the ranks hand out blocks until they have been handed over, or for as long as they are
// kept, and returns when nobody reads them any more.
func (t *transfers) hold(life context.Context, group *executor.Executor,
	h *kvtransfer.Hold) (handed bool, err error) {
	ctx, cancel := context.WithTimeoutCause(life, t.config.HoldTimeout,
		fmt.Errorf("nobody has come for %v", t.config.HoldTimeout))
	defer cancel()
	args, err := json.Marshal(h)
	if err != nil {
		return false, err
	}
	results, err := group.CollectiveRPC(ctx, "kv_hold", args, executor.RPCOptions{UniqueReply: true})
	handed = err == nil && string(results[0]) == "true"
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	secret, jsonErr := json.Marshal(h.Secret)
	if jsonErr != nil {
		return handed, jsonErr
	}
	_, freeErr := group.CollectiveRPC(life, "kv_free", secret, executor.RPCOptions{})
	return handed, cmp.Or(err, freeErr)
}
