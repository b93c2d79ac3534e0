package fleetbench

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// whenMethod asks a rank for its times.
const whenMethod = "when"

// times are when a rank had its last plan, and the call that asks for them.
type times struct{ plan, call time.Duration }

func (t times) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(t.plan))
	return binary.LittleEndian.AppendUint64(b, uint64(t.call))
}

func parseTimes(b []byte) (times, error) {
	if len(b) != 16 {
		return times{}, fmt.Errorf("times of %d bytes", len(b))
	}
	return times{time.Duration(binary.LittleEndian.Uint64(b)),
		time.Duration(binary.LittleEndian.Uint64(b[8:]))}, nil
}

// rank is one that only talks.
type rank struct {
	port   queue.Port
	number int
	output bool // it answers plans

	plan   step.Plan
	result step.Result
	had    times
	out    []byte
}

// serve answers the driver until it asks for the end or is gone.
func serve(port queue.Port, number int) error {
	r := &rank{port: port, number: number}
	for {
		record, err := port.Recv(time.Time{})
		if errors.Is(err, queue.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		at := now()
		kind, body, err := queue.Split(record)
		if err != nil {
			return err
		}
		if kind == queue.KindShutdown {
			return nil
		}
		if err := r.answer(kind, body, at); err != nil && !errors.Is(err, queue.ErrClosed) {
			return err
		}
	}
}

func (r *rank) answer(kind queue.Kind, body []byte, at time.Duration) error {
	switch kind {
	case queue.KindInit:
		var init queue.Init
		if err := json.Unmarshal(body, &init); err != nil {
			return err
		}
		r.output = r.number == init.Layout.Output()
		return queue.SendJSON(r.port, queue.KindReady,
			queue.Ready{Rank: r.number, PID: os.Getpid()})
	case queue.KindPlan:
		r.had.plan = at
		return r.execute(body)
	case queue.KindCall:
		r.had.call = at
		c, err := queue.ParseCall(body)
		if err != nil {
			return err
		}
		reply := queue.Reply{ID: c.ID, Rank: uint32(r.number), Value: r.had.append(nil)}
		r.out = queue.AppendReply(r.out[:0], &reply)
		return r.port.Send(r.out, time.Time{})
	}
	return fmt.Errorf("record of unknown kind %d", kind)
}

// execute samples a token for every request of a plan, where the rank answers plans.
func (r *rank) execute(body []byte) error {
	if err := step.DecodePlan(body, &r.plan); err != nil {
		return err
	}
	r.port.Status().Received(r.plan.ID)
	if r.output {
		r.result.Reset(r.plan.ID)
		for i := range r.plan.Rows {
			r.result.Append(r.plan.Rows[i].Slot, r.plan.Rows[i].Last)
		}
		r.out = step.AppendResult(append(r.out[:0], byte(queue.KindResult)), &r.result)
		if err := r.port.Send(r.out, time.Time{}); err != nil {
			return err
		}
	}
	r.port.Status().Finished(r.plan.ID)
	return nil
}

// Verb is the first argument of a rank's process.
const Verb = "fleet-rank"

// Main is a rank in a process of its own: it joins the driver and serves it until it is gone.
func Main() error {
	inv, err := invited.ReadInvitation()
	if err != nil {
		return err
	}
	r, err := join.Dial(inv, machine.Memory(), nil)
	if err != nil {
		return err
	}
	defer r.Close()
	// As package worker does: the waits of a ring are cheapest on a thread of one's own.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return serve(r.Port(), inv.Rank)
}
