// Package worker is the loop of one rank: it receives its configuration, loads its shard, then runs
// plans and calls in the order they come and answers them.
package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/eagleray/eagleray/internal/collective"
	"github.com/eagleray/eagleray/internal/join"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/status"
	"github.com/eagleray/eagleray/internal/step"
)

// Options are what a rank is given beside its port.
type Options struct {
	// Rank is its number.
	Rank int
	// Groups joins the rank's communicators, which the rank then closes. It is called when there are
	// several ranks.
	Groups func() (join.Groups, error)
	// Threads is how many cores the rank computes on when its configuration does not say; 0 is all.
	Threads int
	// DriversClock says that the rank's clock is the driver's: they are on one host.
	DriversClock bool
}

// errShutdown ends the loop without being a failure.
var errShutdown = errors.New("shutdown")

// Run serves the driver at the other end of port until it asks for shutdown or goes away; both
// return nil. Any other end is reported to the driver as a queue.Failure and returned.
func Run(port queue.Port, opt Options) error {
	w := &worker{port: port, status: port.Status(), opt: opt, methods: methods()}
	w.status.Set(status.Init, 0)
	defer w.close()
	err := w.guard(w.start)
	for err == nil {
		err = w.guard(w.serveOne)
	}
	if errors.Is(err, errShutdown) || errors.Is(err, queue.ErrClosed) {
		return nil
	}
	f := queue.Failure{Rank: opt.Rank, PID: os.Getpid(), Phase: w.status.Snapshot().Phase.String(), Step: w.plan.ID,
		Type: fmt.Sprintf("%T", err), Message: err.Error(), Follows: errors.Is(err, collective.ErrLeft) || errors.Is(err, collective.ErrAborted)}
	var late *collective.Error
	if errors.As(err, &late) && errors.Is(err, collective.ErrTimeout) {
		f.Missing = late.Missing
	}
	var p *panicError
	if errors.As(err, &p) {
		f.Type, f.Stack = "panic", p.stack
	}
	if sendErr := queue.SendJSON(port, queue.KindFailure, f); sendErr != nil {
		return errors.Join(err, sendErr)
	}
	return err
}

type worker struct {
	port   queue.Port
	status *status.Rank
	opt    Options
	rank   *rank
	// methods are the calls it answers.
	methods map[string]method

	plan   step.Plan
	result step.Result
	out    []byte
	times  times
}

func (w *worker) close() {
	if w.rank != nil {
		w.rank.close()
	}
}

// panicError is a panic turned into an error at the border of the package.
type panicError struct {
	value any
	stack string
}

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

func (w *worker) guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v, stack: string(debug.Stack())}
		}
	}()
	return f()
}

// start receives the configuration, loads the shard and reports ready.
func (w *worker) start() error {
	record, err := w.port.Recv(time.Time{})
	if err != nil {
		return err
	}
	kind, body, err := queue.Split(record)
	if err != nil {
		return err
	}
	if kind == queue.KindShutdown {
		return errShutdown
	}
	if kind != queue.KindInit {
		return fmt.Errorf("first record has kind %d, not the configuration", kind)
	}
	var init queue.Init
	if err := json.Unmarshal(body, &init); err != nil {
		return fmt.Errorf("decode configuration: %w", err)
	}
	init.Rank = w.opt.Rank
	w.status.Set(status.Load, 0)
	w.rank, err = newRank(init, w.opt, w.status, func(p queue.Progress) error {
		if p.Total > 0 {
			w.status.Set(status.Load, uint32(100*p.Done/p.Total))
		}
		return queue.SendJSON(w.port, queue.KindProgress, p)
	})
	if err != nil {
		return err
	}
	w.status.Set(status.Idle, 0)
	return queue.SendJSON(w.port, queue.KindReady, queue.Ready{Rank: init.Rank, PID: os.Getpid(),
		ISA: w.rank.isa, Threads: w.rank.threads, WeightBytes: w.rank.weightBytes})
}

// serveOne receives and answers one record.
func (w *worker) serveOne() error {
	w.status.Set(status.Idle, 0)
	w.plan.ID = 0
	record, err := w.port.Recv(time.Time{})
	if err != nil {
		return err
	}
	w.status.Set(status.Recv, 0)
	kind, body, err := queue.Split(record)
	if err != nil {
		return err
	}
	switch kind {
	case queue.KindPlan:
		return w.execute(body)
	case queue.KindCall:
		return w.call(body)
	case queue.KindShutdown:
		return errShutdown
	}
	return fmt.Errorf("record of unknown kind %d", kind)
}

func (w *worker) execute(body []byte) error {
	t := w.times.next()
	if err := step.DecodePlan(body, &w.plan); err != nil {
		return err
	}
	id := w.plan.ID
	w.status.Received(id)
	w.status.Started(id)
	if t != nil {
		t.Plan, t.Started = id, time.Now().UnixNano()
	}
	if err := w.rank.runner.Execute(&w.plan, &w.result); err != nil {
		return err
	}
	if t != nil {
		t.Executed = time.Now().UnixNano()
	}
	if w.rank.output {
		w.status.Set(status.Send, 0)
		w.out = step.AppendResult(append(w.out[:0], byte(queue.KindResult)), &w.result)
		if err := w.port.Send(w.out, time.Time{}); err != nil {
			return err
		}
	}
	if t != nil {
		t.Answered = time.Now().UnixNano()
	}
	w.status.Finished(id)
	return nil
}
