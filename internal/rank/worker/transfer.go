package worker

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// endTransfers closes the rank's agent and its folder, with what they transfer. After it has
// returned only steps read or write the cache.
func (r *rank) endTransfers() {
	if r.agent != nil {
		r.agent.Close()
		r.agent = nil
	}
	r.endOffload()
}

// theAgent is the rank's.
func (w *worker) theAgent() (*kvtransfer.Agent, error) {
	if w.rank.agent == nil {
		return nil, fmt.Errorf("rank %d takes part in no transfers", w.opt.Rank)
	}
	return w.rank.agent, nil
}

// openTransfers starts the rank's agent, and returns its address.
func (w *worker) openTransfers(o kvtransfer.Open) (at kvtransfer.Address, err error) {
	r := w.rank
	r.endTransfers()
	if r.cache == nil {
		return at, fmt.Errorf("rank %d has no cache", w.opt.Rank)
	}
	if err := r.device.Finish(); err != nil { // all up to o.Plan
		return at, err
	}
	opt := kvtransfer.Options{Shape: o.Shape, Place: r.init.Layout.Place(w.opt.Rank).DP,
		Memory: r.cache, Blocks: r.init.Blocks, Host: cmp.Or(o.Host, w.opt.Host, "127.0.0.1"),
		Plan: o.Plan, Remote: o.Remote}
	opt.Shape.Layout, opt.Rank = r.init.Layout.Caching(w.opt.Rank)
	if o.Port > 0 {
		opt.Port = o.Port + w.opt.Rank
	}
	if r.agent, err = kvtransfer.Listen(opt); err != nil {
		return at, err
	}
	return r.agent.Address(), nil
}

// setRanks passes the addresses of the agents of this one's engine to it, of those of all ranks.
func (w *worker) setRanks(all []kvtransfer.Address) (none rpc.None, err error) {
	a, err := w.theAgent()
	if err != nil {
		return none, err
	}
	var ranks []kvtransfer.Address
	for rank, at := range all {
		if a.Of(w.rank.init.Layout.Place(rank).DP) {
			ranks = append(ranks, at)
		}
	}
	a.SetRanks(ranks)
	return none, nil
}

// pin pins blocks for a peer, on the ranks of their place. The first of these answers when the peer
// has fetched them or they are released.
func pin(a *kvtransfer.Agent, h kvtransfer.Pin) (func(context.Context) bool, error) {
	if !a.Of(h.Place) {
		return nil, nil
	}
	if err := a.Pin(h); err != nil || !a.First() {
		return nil, err
	}
	return func(ctx context.Context) bool { return a.AwaitFetched(ctx, h.Secret) }, nil
}

// release unpins the blocks of a transfer, and answers when no other engine reads them.
func release(a *kvtransfer.Agent, s kvtransfer.Secret) (func(context.Context) rpc.None, error) {
	return func(context.Context) (none rpc.None) { a.Release(s); return none }, nil
}

// fetch fetches blocks, on the ranks of their place. It answers also after a failure: the driver
// reuses the blocks once no rank writes to them.
func fetch(a *kvtransfer.Agent, f kvtransfer.Fetch) (func(context.Context) kvtransfer.Fetched,
	error) {
	if !a.Of(f.Place) {
		return nil, nil
	}
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

// cancelFetch cancels a fetch, which still answers. It may arrive before the fetch begins, or after
// its end.
func (w *worker) cancelFetch(id uint64) (none rpc.None, err error) {
	a, err := w.theAgent()
	if err == nil {
		a.Cancel(id)
	}
	return none, err
}
