package worker

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// endTransfers ends the rank's agent, and what is under way: when it has returned nothing reads or
// writes the cache but steps.
func (r *rank) endTransfers() {
	if r.agent != nil {
		r.agent.Close()
		r.agent = nil
	}
}

func (w *worker) noAgent() error {
	return fmt.Errorf("rank %d takes part in no transfers", w.opt.Rank)
}

// openTransfers starts the rank's agent, and returns its address.
func (w *worker) openTransfers(o kvtransfer.Open) (at kvtransfer.Address, err error) {
	r := w.rank
	r.endTransfers()
	if r.cache == nil {
		return at, fmt.Errorf("rank %d has no cache", w.opt.Rank)
	}
	opt := kvtransfer.Options{Shape: o.Shape, Rank: w.opt.Rank, Memory: r.cache,
		Blocks: r.init.Blocks,
		Host:   cmp.Or(o.Host, w.opt.Host, "127.0.0.1"), Plan: o.Plan,
		Remote: o.Remote}
	if o.Port > 0 {
		opt.Port = o.Port + w.opt.Rank
	}
	if r.agent, err = kvtransfer.Listen(opt); err != nil {
		return at, err
	}
	return r.agent.Address(), nil
}

// knowRanks tells the agent where those of all ranks are.
func (w *worker) knowRanks(ranks []kvtransfer.Address) (none rpc.None, err error) {
	if w.rank.agent == nil {
		return none, w.noAgent()
	}
	w.rank.agent.Know(ranks)
	return none, nil
}

// hold hands out blocks. The first rank answers when they have been handed over, or are not any
// more.
func (w *worker) hold(h kvtransfer.Hold) (func(context.Context) bool, error) {
	a := w.rank.agent
	if err := a.Hold(h); err != nil || w.opt.Rank > 0 {
		return nil, err
	}
	return func(ctx context.Context) bool { return a.Handed(ctx, h.Secret) }, nil
}

// free ends the hand-out of a transfer, and answers when no other engine reads its blocks.
func (w *worker) free(s kvtransfer.Secret) (func(context.Context) rpc.None, error) {
	a := w.rank.agent
	return func(context.Context) (none rpc.None) { a.Free(s); return none }, nil
}

// fetch fetches blocks. It answers also when they do not come: the driver must know of every rank
// that it writes to them no more.
func (w *worker) fetch(f kvtransfer.Fetch) (func(context.Context) kvtransfer.Fetched, error) {
	a := w.rank.agent
	return func(ctx context.Context) kvtransfer.Fetched {
		done := kvtransfer.Fetched{Began: time.Now().UnixNano()}
		var err error
		if done.Moved, err = a.Fetch(ctx, &f); err != nil {
			done.Error = err.Error()
		}
		done.Ended = time.Now().UnixNano()
		return done
	}, nil
}

// cancelFetch ends a fetch, which is answered as ever. It may come before the call to fetch is
// begun with, or when that is over.
func (w *worker) cancelFetch(id uint64) (none rpc.None, err error) {
	if w.rank.agent == nil {
		return none, w.noAgent()
	}
	w.rank.agent.Cancel(id)
	return none, nil
}
