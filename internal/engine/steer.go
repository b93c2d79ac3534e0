package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// Steering is what a trainer has asked of the engines that were opened together: it holds for each
// of them, also for the next group of one whose ranks have failed, and for one that is opened
// later.
type Steering struct {
	hold    atomic.Int32
	asleep  atomic.Pointer[calls.Asleep]
	weights atomic.Pointer[weights.Update]
	// using is held by those that bring weights to ranks, for reading.
	using sync.RWMutex
}

// What a pause holds.
const (
	holdNothing = iota
	// holdNew lets those requests go on that the scheduler has.
	holdNew
	// holdAll computes nothing.
	holdAll
)

// Hold lets new requests wait, and with keep those in flight too; each engine must then be asked to
// Settle.
func (s *Steering) Hold(keep bool) {
	if keep {
		s.hold.Store(holdAll)
		return
	}
	s.hold.Store(holdNew)
}

// Release lets all requests go on; each engine must then be asked to Settle.
func (s *Steering) Release() { s.hold.Store(holdNothing) }

// SetAsleep says what is to sleep; each engine must then be asked to Rest.
func (s *Steering) SetAsleep(a calls.Asleep) { s.asleep.Store(&a) }

// Commit makes an update the weights that count, from now on and for every group that is started;
// each engine must then be asked to Swap. It returns those from before, nil for the model's own.
func (s *Steering) Commit(u *weights.Update) (before *weights.Update) { return s.weights.Swap(u) }

// Retire gives back the memory of an update that Commit has returned, once no engine uses it.
func (s *Steering) Retire(u *weights.Update) {
	if u == nil {
		return
	}
	s.using.Lock()
	defer s.using.Unlock()
	u.Close()
}

// held says whether generation is paused.
func (s *Steering) held() bool { return s.hold.Load() != holdNothing }

// replaces says that ranks do not compute with weights of the model's files.
func (s *Steering) replaces() bool {
	asleep := s.asleep.Load()
	return s.weights.Load() != nil || asleep != nil && asleep.Weights
}

// Steering is shared by the engines that were opened together.
func (e *Engine) Steering() *Steering { return e.steering }

// order is something that the loop does between two steps, with no plan in flight.
type order struct {
	ctx  context.Context
	do   func() error
	done chan error
	// drained waits until the scheduler has no request, and holds up no step.
	drained bool
	// must says that the group of ranks cannot go on when it fails.
	must bool
}

// obey asks the loop to do something, and waits for it. What has begun is not given up with ctx.
func (e *Engine) obey(o *order) error {
	o.done = make(chan error, 1)
	e.mu.Lock()
	if e.failure != nil {
		defer e.mu.Unlock()
		return e.failure
	}
	e.inbox.post(o)
	e.mu.Unlock()
	select {
	case err := <-o.done:
		return err
	case <-e.done:
		e.mu.Lock()
		defer e.mu.Unlock()
		return cmp.Or(e.failure, ErrStopped)
	case <-o.ctx.Done():
		return o.ctx.Err()
	}
}

func (e *Engine) between(ctx context.Context, do func() error) error {
	return e.obey(&order{ctx: ctx, do: do})
}

// insist has the loop do what the group of ranks cannot go on without: when it fails the next group
// does it.
func (e *Engine) insist(ctx context.Context, do func() error) error {
	for {
		err := e.obey(&order{ctx: ctx, do: do, must: true})
		if lost := (*executor.Failure)(nil); !errors.As(err, &lost) || errors.Is(err, ErrFailed) {
			return err
		}
	}
}

// Settle returns when the engine does what Hold or Release has asked for: with no step in flight.
func (e *Engine) Settle(ctx context.Context) error {
	return e.between(ctx, func() error { return nil })
}

// Drain returns when no request is in flight but those that a pause holds.
func (e *Engine) Drain(ctx context.Context) error {
	return e.obey(&order{ctx: ctx, do: func() error { return nil }, drained: true})
}

// AbortAll ends all requests with what they have.
func (e *Engine) AbortAll(ctx context.Context) error {
	return e.between(ctx, func() error {
		e.cancel(slices.Collect(maps.Keys(e.requests)), false)
		return nil
	})
}

// ResetPrefixCache empties the prefix cache. Requests that run would go on to use what they have:
// with running they are computed again, else their presence is an answer of false.
func (e *Engine) ResetPrefixCache(ctx context.Context, running bool) (done bool, err error) {
	err = e.between(ctx, func() error {
		if done = running || e.sched.Running() == 0; done {
			e.forget()
		}
		return nil
	})
	return done, err
}

// change has the ranks become what is asked of them now, which makes void what they have computed.
func (e *Engine) change() error {
	e.forget()
	return e.equip()
}

// forget makes what the ranks have computed of requests void.
func (e *Engine) forget() {
	e.sched.Forget()
	e.events.Emit(status.CacheReset{})
}

// Reserve has the ranks find the memory for an update. It returns the host of each, as weights.Here
// has it, "" of one that needs none.
func (e *Engine) Reserve(ctx context.Context) (hosts []string, err error) {
	err = e.between(ctx, func() error {
		list, err := call(e.group, calls.WeightsRoom, rpc.None{})
		for i := range list {
			hosts = append(hosts, list[i].Host)
		}
		return err
	})
	return hosts, err
}

// ReserveSent has ranks find the memory for an update that they are sent, and after that for the
// next ones, beside their steps.
func (e *Engine) ReserveSent(ctx context.Context, room *weights.Room) error {
	return e.between(ctx, func() error { return do(e.group, calls.WeightsRoomSent, *room) })
}

// Stage has every rank load its share of an update, beside what it computes with. On an error no
// rank keeps anything of it. It calls claimed once every host of its ranks is claimed, by it or by
// another engine.
func (e *Engine) Stage(ctx context.Context, u *weights.Update, claimed func()) error {
	if e.transfers != nil {
		u.Digest() // here it holds up no step
	}
	return e.between(ctx, func() error {
		err := stage(e.group, u, claimed)
		if err != nil && e.group.Err() == nil {
			if dropping := do(e.group, calls.WeightsDrop, rpc.None{}); dropping != nil {
				return fmt.Errorf("%w; and it was not dropped: %w", err, dropping)
			}
		}
		return err
	})
}

// Swap has the ranks compute with the update that was committed. Requests in flight are computed
// again from their tokens so far. When the ranks fail, those in their place have it.
func (e *Engine) Swap(ctx context.Context) error {
	return e.insist(ctx, e.change)
}

// CatchUp brings an engine that was opened beside others to what was asked of those meanwhile.
func (e *Engine) CatchUp(ctx context.Context) error {
	if e.steering.weights.Load() == nil && e.steering.asleep.Load() == nil {
		return nil
	}
	return e.Swap(ctx)
}

// Drop has the ranks forget an update that is not to be committed.
func (e *Engine) Drop(ctx context.Context) error {
	return e.between(ctx, func() error { return do(e.group, calls.WeightsDrop, rpc.None{}) })
}

// Rest has the ranks sleep or wake up as SetAsleep has asked for.
func (e *Engine) Rest(ctx context.Context) error {
	return e.insist(ctx, e.change)
}

// Call runs a method on every rank, between two steps, and returns the results in rank order.
func (e *Engine) Call(ctx context.Context, method string, args []byte,
	timeout time.Duration) (results [][]byte, err error) {
	err = e.between(ctx, func() error {
		results, err = e.group.CollectiveRPC(ctx, method, args,
			executor.RPCOptions{Timeout: timeout})
		return err
	})
	return results, err
}

// callTimeout bounds what ranks do about weights: it is far more than the largest take.
const callTimeout = 15 * time.Minute

// call calls a method on every rank.
func call[A, R any](group *executor.Executor, m rpc.Method[A, R], args A) ([]R, error) {
	return executor.Call(context.Background(), group, m, args,
		executor.RPCOptions{Timeout: callTimeout})
}

// do is call for a method that returns nothing.
func do[A any](group *executor.Executor, m rpc.Method[A, rpc.None], args A) error {
	_, err := call(group, m, args)
	return err
}

// catchUp brings ranks that may just have been started to what was asked of those before.
func catchUp(group *executor.Executor, s *Steering) error {
	s.using.RLock()
	defer s.using.RUnlock()
	asleep, u := s.asleep.Load(), s.weights.Load()
	if asleep != nil {
		told := calls.Asleep{Weights: asleep.Weights, KVCache: asleep.KVCache, Later: u != nil}
		if err := do(group, calls.Sleep, told); err != nil {
			return err
		}
	}
	if u == nil || asleep != nil && asleep.Weights {
		return nil
	}
	if err := stage(group, u, func() {}); err != nil {
		return err
	}
	return do(group, calls.WeightsSwap, u.ID)
}

// turnTo does what was asked of the loop, as far as it can be done now. It returns the failure of
// the group that comes of it.
func (e *Engine) turnTo() (failed error) {
	if e.launching.Files.Number() != e.revision {
		return errAdopted
	}
	if len(e.todo) == 0 {
		return nil
	}
	left := e.todo[:0]
	for i, o := range e.todo {
		busy := len(e.flights) > 0 || o.drained && e.sched.Running()+e.sched.Waiting() > 0
		if busy && o.ctx.Err() == nil {
			left = append(left, o)
			continue
		}
		err := o.ctx.Err()
		if err == nil {
			if err = o.do(); o.must {
				failed = err
			}
		}
		o.done <- err
		if failed == nil {
			failed = e.group.Err()
		}
		if failed != nil {
			e.todo = append(left, e.todo[i+1:]...)
			return failed
		}
	}
	clear(e.todo[len(left):])
	e.todo = left
	return nil
}

// waits says that no plan is to be made now.
func (e *Engine) waits() bool {
	if e.steering.hold.Load() == holdAll {
		return true
	}
	return slices.ContainsFunc(e.todo, func(o *order) bool { return !o.drained })
}
