package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// method answers a call; args are valid until it returns.
type method func(w *worker, args []byte) ([]byte, error)

// methods are the handlers of all calls.
func methods() map[string]method {
	m := map[string]method{}
	handle(m, calls.CheckHealth, func(*worker, rpc.None) (none rpc.None, err error) {
		return none,
			nil
	})
	handle(m, calls.Echo, func(_ *worker, args rpc.Raw) (rpc.Raw, error) { return args, nil })
	handle(m, calls.RankInfo, (*worker).rankInfo)
	handle(m, calls.Probe, (*worker).probe)
	handle(m, calls.Times, (*worker).stepTimes)
	handle(m, calls.ExpertLoad, (*worker).expertLoad)
	handle(m, calls.ExpertsLoad, (*worker).loadExperts)
	handle(m, calls.ExpertsMove, (*worker).moveExperts)
	handle(m, calls.ExpertsDrop, (*worker).dropExperts)
	handle(m, calls.Sleep, (*worker).sleep)
	handle(m, calls.WeightsOpen, (*worker).weightsOpen)
	handle(m, calls.WeightsGet, (*worker).weightsGet)
	handle(m, calls.WeightsLoad, (*worker).weightsLoad)
	handle(m, calls.WeightsSwap, (*worker).weightsSwap)
	handle(m, calls.WeightsDrop, (*worker).weightsDrop)
	handle(m, calls.AdapterLoad, (*worker).adapterLoad)
	handle(m, calls.AdaptersTrim, (*worker).adaptersTrim)
	handle(m, calls.WeightsRoom, (*worker).weightsRoom)
	handle(m, calls.WeightsRoomSent, (*worker).weightsRoomSent)
	handle(m, calls.KVOpen, (*worker).openTransfers)
	handle(m, calls.KVRanks, (*worker).setRanks)
	handleLater(m, calls.KVPin, (*worker).theAgent, pin)
	handleLater(m, calls.KVRelease, (*worker).theAgent, release)
	handleLater(m, calls.KVFetch, (*worker).theAgent, fetch)
	handle(m, calls.KVCancel, (*worker).cancelFetch)
	handle(m, calls.OffloadOpen, (*worker).openFolder)
	handle(m, calls.OffloadRemove, (*worker).removeStored)
	handleLater(m, calls.OffloadLoad, (*worker).quietFolder, load)
	handleLater(m, calls.OffloadStore, (*worker).quietFolder, store)
	return m
}

// handle adds the handler of a call.
func handle[A, R any](m map[string]method, c rpc.Method[A, R], f func(*worker, A) (R, error)) {
	m[c.Name] = func(w *worker, args []byte) ([]byte, error) {
		a, err := rpc.Decode[A](args)
		if err != nil {
			return nil, err
		}
		r, err := f(w, a)
		if err != nil {
			return nil, err
		}
		return rpc.Encode(r)
	}
}

// background is what runs goroutines beside the records that a rank receives, and waits for them.
type background interface {
	Go(f func(ctx context.Context))
}

// handleLater adds the handler of a call of what of finds, or says is not there. The function that
// the handler returns runs in a goroutine of that, beside the records that follow, and its result
// is the answer; nil answers at once with the zero result.
func handleLater[A, R any, B background](m map[string]method, c rpc.Method[A, R],
	of func(*worker) (B, error), f func(B, A) (func(context.Context) R, error)) {
	m[c.Name] = func(w *worker, args []byte) ([]byte, error) {
		a, err := rpc.Decode[A](args)
		if err != nil {
			return nil, err
		}
		b, err := of(w)
		if err != nil {
			return nil, err
		}
		result, err := f(b, a)
		if err != nil || result == nil {
			return nil, err
		}
		r := queue.Reply{ID: w.called, Rank: uint32(w.opt.Rank)}
		b.Go(func(ctx context.Context) {
			value, err := rpc.Encode(result(ctx))
			if r.Value = value; err != nil {
				r.Type, r.Failure = fmt.Sprintf("%T", err), err.Error()
			}
			// A driver that is gone ends this rank another way.
			_ = w.send(queue.AppendReply(nil, &r))
		})
		return nil, errLater
	}
}

// errLater is returned by a method whose answer comes later, from another goroutine.
var errLater = errors.New("answered later")

// errExpired is the error of a call whose deadline passed before the rank reached it.
type errExpired struct{ late time.Duration }

func (e *errExpired) Error() string {
	return fmt.Sprintf("its time was over %v before the rank came to it", e.late)
}

// call answers one collective call. A method's own error goes to the caller, and the rank goes on.
// The arguments are the queue's memory: they are gone when the next record is received.
func (w *worker) call(body []byte) error {
	began := time.Now()
	c, err := queue.ParseCall(body)
	if err != nil {
		return err
	}
	w.status.Call(c.ID)
	w.status.Set(status.Call, 0)
	defer w.status.Call(0)
	w.called = c.ID
	r := queue.Reply{ID: c.ID, Rank: uint32(w.opt.Rank)}
	m := w.methods[c.Method]
	if w.opt.DriversClock {
		began = time.Unix(0, c.Sent)
	}
	late := time.Since(began) - c.Timeout
	switch {
	case m == nil:
		err = fmt.Errorf("unknown method %q", c.Method)
	case c.Timeout > 0 && late > 0:
		err = &errExpired{late}
	default:
		r.Value, err = m(w, c.Args)
	}
	if errors.Is(err, errLater) {
		return nil
	}
	if err != nil {
		r.Type, r.Failure, r.Value = fmt.Sprintf("%T", err), err.Error(), nil
	}
	w.out = queue.AppendReply(w.out[:0], &r)
	return w.send(w.out)
}

// probe returns the rank's clock, its niceness and its instruction set.
func (w *worker) probe(rpc.None) (calls.Probed, error) {
	return calls.Probed{Clock: time.Now().UnixNano(), Niceness: machine.Niceness(),
		ISA: w.rank.isa}, nil
}

// expertLoad returns the loads that this rank counts: none but on the first of the ranks that
// divide a layer, since all of these see the same rows.
func (w *worker) expertLoad(rpc.None) ([]calls.LayerLoad, error) {
	m := w.rank.weights.model
	if m == nil || w.rank.group.Rank > 0 {
		return nil, nil
	}
	var list []calls.LayerLoad
	for _, l := range m.ExpertLoads() {
		list = append(list, calls.LayerLoad(l))
	}
	return list, nil
}

// rankInfo describes the rank.
func (w *worker) rankInfo(rpc.None) (queue.Ready, error) { return w.info(), nil }

func (w *worker) info() queue.Ready {
	kernels := describe(&w.rank.init, w.rank.device)
	for _, n := range w.rank.neighbours {
		kernels += "; " + n.What() + " " + n.Way()
	}
	return queue.Ready{Rank: w.opt.Rank, PID: os.Getpid(), ISA: w.rank.isa,
		Threads: w.rank.threads, Kernels: kernels,
		Binding: w.rank.binding, WeightBytes: w.rank.weightBytes,
		Storing: w.rank.storing()}
}
