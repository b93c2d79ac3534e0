// Package worker is the loop of one rank: it receives its configuration, loads its shard, then runs
// plans and calls in the order they come and answers them.
package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Options configure a rank.
type Options struct {
	// Rank is its number.
	Rank int
	// Groups joins the rank's communicators, which the rank then closes. It is called when there
	// are several ranks, with what counts that they move (see join.Rank.Groups).
	Groups func(moved *atomic.Uint64) (join.Groups, error)
	// Ended is closed when the driver has ended: nothing waits for other ranks any more.
	Ended <-chan struct{}
	// Threads is how many cores the rank computes on when its configuration does not say; 0 is all.
	Threads int
	// Place is the rank's among those of its machine, of which its threads and their processors
	// follow (machine.Topology.Plan); without one Threads holds, and nothing is bound.
	Place machine.Place
	// Ordinal is the number of the rank's GPU, if it has one.
	Ordinal int
	// DriversClock says that rank and driver share a clock: they are on one host.
	DriversClock bool
	// Beside opens a connection to the driver beside the port and sends received along; nil where
	// the driver's memory can always be mapped.
	Beside func(received uint64) (net.Conn, error)
	// Alone says that the rank has a process of its own.
	Alone bool
	// Host is the rank's address for those of other engines; "" is this host's loopback one.
	Host string
}

// errShutdown ends the loop without being a failure.
var errShutdown = errors.New("shutdown")

// Run serves the driver at the other end of port until it asks for shutdown or goes away; both
// return nil. Any other end is reported to the driver as a queue.Failure and returned.
func Run(port queue.Port, opt Options) error {
	h := new(Host)
	defer h.Close()
	if err := h.Run(port, opt); !errors.Is(err, queue.ErrClosed) {
		return err
	}
	return nil
}

// Host carries a rank from one group to the next: its loaded model stays for a group that gives it
// the same part of the same model. Its user closes it.
type Host struct {
	rank *rank
	// topology is what there was before threads were bound.
	topology machine.Topology
	// bound says that the process is bound to some of its processors.
	bound bool
	// gpus makes devices on GPUs, nil in a program that has none. bounds are those of the rank's.
	gpus   GPUs
	bounds memory.Bounds
}

// Run serves a driver as the function of that name does, but returns an error that wraps
// queue.ErrClosed when the driver ends.
func (h *Host) Run(port queue.Port, opt Options) error {
	w := &worker{host: h, port: port, status: port.Status(), opt: opt, methods: methods()}
	w.status.Set(status.Init, 0)
	defer watchUse(w.status, func() Meter {
		if h.gpus == nil {
			return nil
		}
		return h.gpus.Meter(opt.Ordinal)
	})()
	defer h.leaveGroup()
	// A table is looked up in a mapped file, which another program may cut: that fails this rank,
	// not the process, which is the driver's where there is one rank.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	err := w.guard(w.start)
	for err == nil {
		err = w.guard(w.serveOne)
	}
	if errors.Is(err, errShutdown) {
		return nil
	}
	if errors.Is(err, queue.ErrClosed) {
		return err
	}
	f := queue.Failure{Rank: opt.Rank, PID: os.Getpid(), Phase: w.status.Snapshot().Phase.String(),
		Step: w.plan.ID,
		Type: fmt.Sprintf("%T", err), Message: err.Error(), Follows: follows(err),
		Disagrees: errors.Is(err, collective.ErrMismatch), Unrelated: errors.Is(err,
			layers.ErrOverwritten)}
	var late *collective.Error
	if errors.As(err, &late) && errors.Is(err, collective.ErrTimeout) {
		f.Missing = late.Missing
	}
	var p *panicError
	if errors.As(err, &p) {
		f.Type, f.Stack = "panic", p.stack
	}
	w.sending.Lock()
	defer w.sending.Unlock()
	if sendErr := queue.SendJSON(port, queue.KindFailure, f); sendErr != nil {
		// A driver that has ended too does not make this rank reusable.
		return fmt.Errorf("%w (which was not reported: %v)", err, sendErr)
	}
	return err
}

// follows reports whether a rank's error only follows from the end of another rank or of the
// driver.
func follows(err error) bool {
	return errors.Is(err, collective.ErrLeft) || errors.Is(err, collective.ErrAborted) ||
		errors.Is(err, compute.ErrEnded)
}

// blameless reports whether a rank that ends with the error is reusable: it only waited for others.
func blameless(err error) bool {
	return follows(err) || errors.Is(err, queue.ErrClosed) || errors.Is(err, collective.ErrTimeout)
}

// leaveGroup leaves the group. The loaded model stays.
func (h *Host) leaveGroup() {
	if h.rank != nil {
		h.rank.leave()
	}
}

// Close frees the loaded model.
func (h *Host) Close() {
	if h.rank != nil {
		h.rank.close()
		h.rank = nil
	}
}

type worker struct {
	host   *Host
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
	// called is the call being served. sending is held while a record is sent: answers to long
	// calls come from other goroutines.
	called  uint64
	sending sync.Mutex
}

// send sends a record to the driver.
func (w *worker) send(record []byte) error {
	w.sending.Lock()
	defer w.sending.Unlock()
	return w.port.Send(record, time.Time{})
}

// panicError is a panic turned into an error at the border of the package.
type panicError struct {
	value any
	stack string
}

func (p *panicError) Error() string {
	if _, ok := p.value.(interface{ Addr() uintptr }); ok {
		return "memory that maps a file cannot be read: the file was cut by another program, or " +
			"its disk fails"
	}
	return fmt.Sprintf("panic: %v", p.value)
}

func (w *worker) guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v, stack: string(debug.Stack())}
		}
	}()
	return f()
}

// start receives the configuration, loads the shard, unless the previous group has loaded it, and
// reports ready.
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
	var past *queue.Past
	share, err := w.host.bind(&init, &w.opt)
	if err != nil {
		return err
	}
	if r := w.host.rank; r.fits(init, share) {
		r.teller.set(w.send)
		r.status, past = w.status, &queue.Past{Done: r.done, Trail: r.trail.Plans()}
	} else {
		w.host.Close()
		// A machine for kernels has all it keeps on the heap, which is not in the plan.
		_, onMachine := queue.CUDAMachine()
		if w.opt.Alone && init.Heap > 0 && !(onMachine && init.Device == queue.CUDA) &&
			debug.SetMemoryLimit(-1) == math.MaxInt64 {
			debug.SetMemoryLimit(init.Heap + init.HeapPerThread*int64(share.Threads))
		}
		report := func(p queue.Progress) error {
			if p.Total > 0 {
				w.status.Set(status.Load, uint32(100*p.Done/p.Total))
			}
			record, err := queue.AppendJSON(nil, queue.KindProgress, p)
			if err != nil {
				return err
			}
			return w.send(record)
		}
		w.host.rank, err = newRank(init, place{share, !w.opt.Alone, w.opt.Ordinal, w.host.gpus},
			w.status, w.send, report)
		if err != nil {
			return err
		}
	}
	w.rank = w.host.rank
	if err := w.rank.join(w.opt); err != nil {
		return err
	}
	w.status.Set(status.Idle, 0)
	w.rank.binding = share.String()
	ready := w.info()
	ready.Past = past
	record, err = queue.AppendJSON(nil, queue.KindReady, ready)
	if err != nil {
		return err
	}
	return w.send(record)
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
	w.rank.done = id
	if a := w.rank.agent; a != nil {
		// Transfers do not wait for what the device has been asked for.
		if err := w.rank.device.Finish(); err != nil {
			return err
		}
		a.Executed(id)
	}
	if t != nil {
		t.Executed = time.Now().UnixNano()
	}
	if w.rank.output {
		w.status.Set(status.Send, 0)
		w.out = step.AppendResult(append(w.out[:0], byte(queue.KindResult)), &w.result)
		if err := w.send(w.out); err != nil {
			return err
		}
	}
	if t != nil {
		t.Answered = time.Now().UnixNano()
	}
	w.status.Finished(id)
	return nil
}
