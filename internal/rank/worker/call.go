package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// method is what a collective call runs on a rank; args are valid until it returns.
type method func(w *worker, args []byte) ([]byte, error)

// methods are the calls a rank knows.
func methods() map[string]method {
	return map[string]method{
		"check_health": func(*worker, []byte) ([]byte, error) { return nil, nil },
		"echo":         func(_ *worker, args []byte) ([]byte, error) { return args, nil },
		"rank_info":    (*worker).rankInfo,
		"probe":        (*worker).probe,
		"step_times":   (*worker).stepTimes,
		"sleep":        (*worker).sleep,
		"weights_open": (*worker).weightsOpen,
		"weights_get":  (*worker).weightsGet,
		"weights_load": (*worker).weightsLoad,
		"weights_swap": (*worker).weightsSwap,
		"weights_drop": (*worker).weightsDrop,
		"weights_room": (*worker).weightsRoom, "weights_room_sent": (*worker).weightsRoomSent,
		"kv_open":   (*worker).openTransfers,
		"kv_ranks":  (*worker).knowRanks,
		"kv_hold":   (*worker).hold,
		"kv_free":   (*worker).free,
		"kv_fetch":  (*worker).fetch,
		"kv_cancel": (*worker).cancelFetch,
	}
}

// errExpired is the error of a call whose time was over before the rank came to it.
type errExpired struct{ late time.Duration }

func (e *errExpired) Error() string {
	return fmt.Sprintf("its time was over %v before the rank came to it", e.late)
}

// call answers one collective call. A method's own error goes to the caller, and the rank goes on. The arguments
// are the queue's memory: they are gone when the next record is received.
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

// probe says what the rank's clock shows, and what its process may expect of its node.
func (w *worker) probe([]byte) ([]byte, error) {
	return json.Marshal(queue.Probe{Clock: time.Now().UnixNano(), Niceness: machine.Niceness(),
		ISA: w.rank.isa})
}

// rankInfo describes the rank as JSON.
func (w *worker) rankInfo([]byte) ([]byte, error) {
	return json.Marshal(queue.Ready{Rank: w.opt.Rank, PID: os.Getpid(), ISA: w.rank.isa,
		Threads: w.rank.threads, WeightBytes: w.rank.weightBytes})
}
