// Package steer is what a trainer asks of engines, and how ranks are brought to it: pauses, sleep
// and new weights. It holds for each engine of a server, also for the next group of one whose ranks
// have failed, and for one that is opened later.
package steer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// Wanted is what the engines that were opened together are to be. Its zero value lets them compute
// with the model's own weights.
type Wanted struct {
	pause  atomic.Int32
	asleep atomic.Pointer[calls.Asleep]
	update atomic.Pointer[weights.Update]
	// adapters are those that requests may have, nil before there was one.
	adapters atomic.Pointer[[]*weights.Update]
	// using is held, for reading, by those that bring weights to ranks.
	using sync.RWMutex
}

// What a pause stops.
const (
	pauseNothing = iota
	// pauseNew lets those requests go on that the scheduler has.
	pauseNew
	// pauseAll computes nothing.
	pauseAll
)

// Pause has new requests wait, and with all those in flight too. Each engine does it from its next
// step on.
func (w *Wanted) Pause(all bool) {
	if all {
		w.pause.Store(pauseAll)
		return
	}
	w.pause.Store(pauseNew)
}

// Resume lets all requests go on.
func (w *Wanted) Resume() { w.pause.Store(pauseNothing) }

// Paused says whether new requests wait.
func (w *Wanted) Paused() bool { return w.pause.Load() != pauseNothing }

// PausedAll says whether no request is computed.
func (w *Wanted) PausedAll() bool { return w.pause.Load() == pauseAll }

// Sleep says what is to sleep; ranks must then be brought to it.
func (w *Wanted) Sleep(a calls.Asleep) { w.asleep.Store(&a) }

// CacheSleeps says whether ranks have no KV cache.
func (w *Wanted) CacheSleeps() bool {
	a := w.asleep.Load()
	return a != nil && a.KVCache
}

// Commit makes an update the weights that count, from now on and for every group that is started;
// ranks must then be brought to it. It returns those from before, nil for the model's own.
func (w *Wanted) Commit(u *weights.Update) (before *weights.Update) { return w.update.Swap(u) }

// Update is the one that was committed last, nil for the model's own weights.
func (w *Wanted) Update() *weights.Update { return w.update.Load() }

// UpdateName names the update by all that is in it, so that servers that were given the same one
// know it; "" for the model's own weights.
func (w *Wanted) UpdateName() string {
	w.using.RLock()
	defer w.using.RUnlock()
	if u := w.update.Load(); u != nil {
		return u.Digest()
	}
	return ""
}

// Retire gives back the memory of an update that Commit has returned, once no engine uses it.
func (w *Wanted) Retire(u *weights.Update) {
	if u == nil {
		return
	}
	w.using.Lock()
	defer w.using.Unlock()
	u.Close()
}

// Replaces says that ranks do not compute with weights of the model's files.
func (w *Wanted) Replaces() bool {
	asleep := w.asleep.Load()
	return w.update.Load() != nil || asleep != nil && asleep.Weights
}

// Plain says that ranks which have just been started need nothing more.
func (w *Wanted) Plain() bool {
	return w.update.Load() == nil && w.asleep.Load() == nil && w.adapters.Load() == nil
}

// SetAdapters says which adapters ranks are to have, from now on and in every group that is
// started; those that compute must then be brought to it (OpenAdapter, TrimAdapters). One that is
// left out is retired once no engine uses it.
func (w *Wanted) SetAdapters(list []*weights.Update) { w.adapters.Store(&list) }

// Adapters are those that ranks are to have.
func (w *Wanted) Adapters() []*weights.Update {
	if list := w.adapters.Load(); list != nil {
		return *list
	}
	return nil
}

// AdapterName names the adapter of an id by all that is in it, so that servers that were given the
// same one know it; "" for none. A request that may use it holds it.
func (w *Wanted) AdapterName(id uint32) string {
	for _, u := range w.Adapters() {
		if u.Adapter.ID == id {
			return u.Digest()
		}
	}
	return ""
}

// OpenAdapter brings an adapter to the ranks, unless weights sleep: then they get it when they
// wake. StepAdapter has them load some more of it, and returns whether all have all of it.
func (w *Wanted) OpenAdapter(group *executor.Executor, u *weights.Update) error {
	if w.weightsSleep() {
		return nil
	}
	return sendTo(group, u, func() {})
}

// StepAdapter takes few milliseconds.
func (w *Wanted) StepAdapter(group *executor.Executor, u *weights.Update) (done bool, err error) {
	if w.weightsSleep() {
		return true, nil
	}
	list, err := call(group, calls.AdapterLoad, u.ID)
	return err == nil && !slices.Contains(list, false), err
}

func (w *Wanted) weightsSleep() bool {
	asleep := w.asleep.Load()
	return asleep != nil && asleep.Weights
}

// loadAdapter has ranks that compute nothing meanwhile load an adapter.
func (w *Wanted) loadAdapter(group *executor.Executor, u *weights.Update) error {
	err := w.OpenAdapter(group, u)
	for done := false; !done && err == nil; {
		done, err = w.StepAdapter(group, u)
	}
	return err
}

// TrimAdapters has the ranks drop all adapters but those that are wanted.
func (w *Wanted) TrimAdapters(group *executor.Executor) error {
	updates := []string{}
	for _, u := range w.Adapters() {
		updates = append(updates, u.ID)
	}
	return do(group, calls.AdaptersTrim, updates)
}

// Equip equips ranks that may just have been started to what is wanted.
func (w *Wanted) Equip(group *executor.Executor) error {
	w.using.RLock()
	defer w.using.RUnlock()
	asleep, u := w.asleep.Load(), w.update.Load()
	if asleep != nil {
		told := calls.Asleep{Weights: asleep.Weights, KVCache: asleep.KVCache, Later: u != nil}
		if err := do(group, calls.Sleep, told); err != nil {
			return err
		}
	}
	if asleep != nil && asleep.Weights {
		return nil
	}
	if u != nil {
		if err := load(group, u, func() {}); err != nil {
			return err
		}
		if err := do(group, calls.WeightsSwap, u.ID); err != nil {
			return err
		}
	}
	if w.adapters.Load() == nil {
		return nil
	}
	for _, a := range w.Adapters() {
		if err := w.loadAdapter(group, a); err != nil {
			return err
		}
	}
	return w.TrimAdapters(group)
}

// Reserve has the ranks find the memory for an update. It returns the host of each, as weights.Here
// has it, "" of one that needs none.
func Reserve(group *executor.Executor) (hosts []string, err error) {
	list, err := call(group, calls.WeightsRoom, rpc.None{})
	for i := range list {
		hosts = append(hosts, list[i].Host)
	}
	return hosts, err
}

// ReserveSent has ranks find the memory for an update that they are sent, and after that for the
// next ones, beside their steps.
func ReserveSent(group *executor.Executor, room *weights.Room) error {
	return do(group, calls.WeightsRoomSent, *room)
}

// Stage has every rank load its share of an update, beside what it computes with. On an error no
// rank keeps anything of it. It calls claimed once every host of its ranks is claimed, by it or by
// another engine.
func Stage(group *executor.Executor, u *weights.Update, claimed func()) error {
	err := load(group, u, claimed)
	if err != nil && group.Err() == nil {
		if dropping := Drop(group); dropping != nil {
			return fmt.Errorf("%w; and it was not dropped: %w", err, dropping)
		}
	}
	return err
}

// Drop has the ranks forget an update that is not to be committed.
func Drop(group *executor.Executor) error { return do(group, calls.WeightsDrop, rpc.None{}) }

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
