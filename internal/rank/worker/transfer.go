package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// errLater is returned by a method whose answer comes later, from another goroutine: see later.
var errLater = errors.New("answered later")

// later answers the call at hand with what f returns, in a goroutine of the agent, while the rank
// goes on with the records that follow.
func (w *worker) later(f func(ctx context.Context) []byte) ([]byte, error) {
	r := queue.Reply{ID: w.called, Rank: uint32(w.opt.Rank)}
	w.rank.agent.Go(func(ctx context.Context) {
		r.Value = f(ctx)
		// A driver that is gone ends this rank another way.
		_ = w.send(queue.AppendReply(nil, &r))
	})
	return nil, errLater
}

// endTransfers ends the rank's agent, and what is under way: when it has returned nothing reads or
// writes the cache but steps.
func (r *rank) endTransfers() {
	if r.agent != nil {
		r.agent.Close()
		r.agent = nil
	}
}

// transferring decodes the arguments of a call on transfers.
func (w *worker) transferring(args []byte, into any) error {
	if w.rank.agent == nil {
		return fmt.Errorf("rank %d takes part in no transfers", w.opt.Rank)
	}
	return json.Unmarshal(args, into)
}

// openTransfers starts the rank's agent, by a kvtransfer.Open, and returns its address.
func (w *worker) openTransfers(args []byte) ([]byte, error) {
	var o kvtransfer.Open
	if err := json.Unmarshal(args, &o); err != nil {
		return nil, err
	}
	r := w.rank
	r.endTransfers()
	if r.cache == nil {
		return nil, fmt.Errorf("rank %d has no cache", w.opt.Rank)
	}
	opt := kvtransfer.Options{Shape: o.Shape, Rank: w.opt.Rank, Memory: r.cache, Blocks: r.init.Blocks,
		Host: cmp.Or(o.Host, w.opt.Host, "127.0.0.1"), Plan: o.Plan,
		Remote: o.Remote}
	if o.Port > 0 {
		opt.Port = o.Port + w.opt.Rank
	}
	var err error
	if r.agent, err = kvtransfer.Listen(opt); err != nil {
		return nil, err
	}
	return json.Marshal(r.agent.Address())
}

// knowRanks tells the agent where those of all ranks are.
func (w *worker) knowRanks(args []byte) ([]byte, error) {
	var ranks []kvtransfer.Address
	if err := w.transferring(args, &ranks); err != nil {
		return nil, err
	}
	w.rank.agent.Know(ranks)
	return nil, nil
}

// hold hands out blocks. The first rank answers when they have been handed over, or are not any
// more: "true" or "false".
func (w *worker) hold(args []byte) ([]byte, error) {
	var h kvtransfer.Hold
	if err := w.transferring(args, &h); err != nil {
		return nil, err
	}
	a := w.rank.agent
	if err := a.Hold(h); err != nil || w.opt.Rank > 0 {
		return nil, err
	}
	return w.later(func(ctx context.Context) []byte {
		return fmt.Append(nil, a.Handed(ctx, h.Secret))
	})
}

// free ends the hand-out of a transfer, and answers when nobody reads its blocks.
func (w *worker) free(args []byte) ([]byte, error) {
	var s kvtransfer.Secret
	if err := w.transferring(args, &s); err != nil {
		return nil, err
	}
	a := w.rank.agent
	return w.later(func(context.Context) []byte { a.Free(s); return nil })
}

// fetch fetches blocks. It answers with a kvtransfer.Fetched, also when they do not come: the driver must
// know of every rank that it writes to them no more.
func (w *worker) fetch(args []byte) ([]byte, error) {
	var f kvtransfer.Fetch
	if err := w.transferring(args, &f); err != nil {
		return nil, err
	}
	a := w.rank.agent
	return w.later(func(ctx context.Context) []byte {
		done := kvtransfer.Fetched{Began: time.Now().UnixNano()}
		var err error
		if done.Moved, err = a.Fetch(ctx, &f); err != nil {
			done.Error = err.Error()
		}
		done.Ended = time.Now().UnixNano()
		text, _ := json.Marshal(done)
		return text
	})
}

// cancelFetch ends a fetch, which is answered as ever. It may come before the call to fetch is begun
// with, or when that is over.
func (w *worker) cancelFetch(args []byte) ([]byte, error) {
	var id uint64
	if err := w.transferring(args, &id); err != nil {
		return nil, err
	}
	w.rank.agent.Cancel(id)
	return nil, nil
}
