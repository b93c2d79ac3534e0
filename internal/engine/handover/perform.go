package handover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/engine/handover/state"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// pin is a transfer that the ranks hand out.
type pin struct {
	hold  kvtransfer.Pin
	began time.Time
	// end ends it early.
	end context.CancelCauseFunc
}

// errUnpinned ends a pin whose ticket was not published, or not read.
var errUnpinned = errors.New("the request ended otherwise, or its client has gone")

// fetchEnded is the end of a fetch for a request.
type fetchEnded struct {
	key uint64
	ok  bool
}

func (m fetchEnded) handle(x *Exchange) { x.machine.FetchEnded(m.key, m.ok) }

// pinEnded is the end of a pin: fetched says that the other engine has its blocks, err why not.
type pinEnded struct {
	transfer state.Transfer
	fetched  bool
	err      error
}

func (m pinEnded) handle(x *Exchange) {
	p := x.pins[m.transfer]
	delete(x.pins, m.transfer)
	if !x.machine.PinEnded(m.transfer) {
		return
	}
	x.opt.Events.Emit(status.KVHandedOver{Transfer: p.hold.Secret.Name(),
		Blocks: len(present(p.hold.Blocks)), After: time.Since(p.began), Fetched: m.fetched,
		Err: m.err})
}

// perform does what the machine asks for.
func (x *Exchange) perform() {
	for actions := x.machine.Actions(); len(actions) > 0; actions = x.machine.Actions() {
		for _, a := range slices.Clone(actions) { // doing them may add others
			x.do(a)
		}
	}
}

func (x *Exchange) do(a state.Action) {
	switch a := a.(type) {
	case state.Pin:
		if err := x.pin(a.Transfer, &a.Blocks); err != nil {
			x.machine.PinEnded(a.Transfer) // the group is over
		}
	case state.Unpin:
		if p := x.pins[a.Transfer]; p != nil {
			p.end(errUnpinned)
		}
	case state.Release:
		x.opt.Scheduler.Release(a.Request)
	case state.Fetch:
		t := x.tickets[a.Key]
		x.fetch(a.Key, &kvtransfer.Fetch{ID: a.Key, Place: a.Place, Secret: t.Secret,
			From: t.Address(), Blocks: a.Blocks, First: a.First,
			Digest: a.Digests[len(a.Digests)-1], Plan: a.Plan, Timeout: x.config.FetchTimeout})
	case state.CancelFetch:
		group := x.group
		x.running.Go(func() {
			// A group that has failed has ended them.
			_, _ = executor.Call(x.opt.Life, group, calls.KVCancel, a.Request,
				executor.RPCOptions{})
		})
	case state.Complete:
		blocks := 0
		if a.OK {
			blocks = math.MaxInt
		}
		x.opt.Scheduler.Fetched(a.Request, blocks)
	case state.Decline:
		t := x.tickets[a.Request]
		x.fetch(0, &kvtransfer.Fetch{Secret: t.Secret, From: t.Address(),
			Timeout: x.config.FetchTimeout})
	}
}

// fetch has the ranks of the group fetch blocks for the request of a key; 0 declines them.
func (x *Exchange) fetch(key uint64, f *kvtransfer.Fetch) {
	group, began := x.group, time.Now()
	x.running.Go(func() {
		moved, err := fetched(x.opt.Life, group, f, x.patience)
		if key == 0 {
			return
		}
		x.opt.Events.Emit(status.KVFetched{Transfer: f.Secret.Name(), Blocks: len(f.Blocks),
			Began: began, Took: time.Since(began), ByMemory: moved.Memory, ByLink: moved.Link,
			Err: err})
		x.opt.Post(fetchEnded{key, err == nil})
	})
}

// fetched returns when no rank writes to the blocks any more. Patience is with a rank whose time is
// over: its device may hang.
func fetched(ctx context.Context, group *executor.Executor, f *kvtransfer.Fetch,
	patience time.Duration) (moved kvtransfer.Moved, err error) {
	results, err := executor.Call(ctx, group, calls.KVFetch, *f,
		executor.RPCOptions{Owed: f.Timeout + patience})
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

// pin has the ranks hand blocks out until the other engine has fetched them, the transfer is
// unpinned, or nothing has come for as long as is configured.
func (x *Exchange) pin(t state.Transfer, h *schedule.HandOver) error {
	p := &pin{hold: kvtransfer.Pin{Place: h.Place, Secret: kvtransfer.NewSecret(),
		Blocks: slices.Clone(h.Blocks), Digest: h.Digest, Plan: h.Plan}, began: time.Now()}
	life, group := x.opt.Life, x.group
	wait, err := executor.Begin(life, group, calls.KVPin, p.hold,
		executor.RPCOptions{UniqueReply: true,
			ReplyRank: x.shape.Layout.Rank(layout.Place{DP: h.Place})})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(life)
	p.end = end
	x.pins[t] = p
	x.running.Go(func() {
		defer end(nil)
		ctx, cancel := context.WithTimeoutCause(ctx, x.config.HoldTimeout,
			fmt.Errorf("nobody has come for %v", x.config.HoldTimeout))
		defer cancel()
		results, err := wait(ctx)
		handed := err == nil && results[0]
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		_, freeErr := executor.Call(life, group, calls.KVRelease, p.hold.Secret,
			executor.RPCOptions{Owed: x.patience})
		x.opt.Post(pinEnded{t, handed, cmp.Or(err, freeErr)})
	})
	return nil
}
