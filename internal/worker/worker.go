// Package worker is the loop of one rank: it receives its configuration, loads its shard, then runs plans and
// calls in the order they come and answers them.
package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/step"
)

// Init is a rank's whole configuration, the first record it receives.
type Init struct {
	Rank      int `json:"rank"`
	WorldSize int `json:"world_size"`
	// ModelDir is the checkpoint's folder on this node, "" for the built-in model.
	ModelDir   string `json:"model_dir"`
	LoadFormat string `json:"load_format"`
	// DType is resolved: bfloat16, float16 or float32.
	DType string `json:"dtype"`
	// ISA is an instruction set, "" for the best of this machine.
	ISA     string `json:"isa"`
	Threads int    `json:"threads"`
	Seed    uint64 `json:"seed"`
	// Blocks and BlockSize size the KV cache; the scheduler counts on them.
	Blocks      int `json:"blocks"`
	BlockSize   int `json:"block_size"`
	MaxSeqs     int `json:"max_seqs"`
	MaxModelLen int `json:"max_model_len"`
}

// Options are what the launcher gives a rank beside its connection.
type Options struct {
	// Collective is the shared memory of the rank's tensor parallel group; nil with one rank.
	Collective *os.File
	// CollectiveBytes is the largest message it was made for.
	CollectiveBytes int
}

// errShutdown ends the loop without being a failure.
var errShutdown = errors.New("shutdown")

// Run serves the driver at the other end of conn until it asks for shutdown or goes away; both return nil.
// Any other end is reported to the driver as a queue.Failure and returned.
func Run(conn queue.Conn, opt Options) error {
	w := &worker{conn: conn, opt: opt, phase: "init"}
	defer w.close()
	err := w.guard(w.start)
	for err == nil {
		err = w.guard(w.serveOne)
	}
	if errors.Is(err, errShutdown) || errors.Is(err, queue.ErrClosed) {
		return nil
	}
	f := queue.Failure{Rank: w.init.Rank, PID: os.Getpid(), Phase: w.phase, Step: w.plan.ID, Type: fmt.Sprintf("%T", err), Message: err.Error()}
	var p *panicError
	if errors.As(err, &p) {
		f.Type, f.Stack = "panic", p.stack
	}
	if sendErr := queue.SendJSON(conn, queue.KindFailure, f); sendErr != nil {
		return errors.Join(err, sendErr)
	}
	return err
}

type worker struct {
	conn  queue.Conn
	opt   Options
	init  Init
	phase string
	rank  *rank

	plan   step.Plan
	result step.Result
	out    []byte
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
	record, err := w.conn.Recv()
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
	if err := json.Unmarshal(body, &w.init); err != nil {
		return fmt.Errorf("decode configuration: %w", err)
	}
	w.phase = "load"
	w.rank, err = newRank(w.init, w.opt, func(p queue.Progress) error {
		return queue.SendJSON(w.conn, queue.KindProgress, p)
	})
	if err != nil {
		return err
	}
	w.phase = "idle"
	return queue.SendJSON(w.conn, queue.KindReady, queue.Ready{Rank: w.init.Rank, PID: os.Getpid(),
		ISA: w.rank.device.ISA().String(), Threads: w.rank.device.Pool().Threads(), WeightBytes: w.rank.weightBytes})
}

// serveOne receives and answers one record.
func (w *worker) serveOne() error {
	w.phase, w.plan.ID = "idle", 0
	record, err := w.conn.Recv()
	if err != nil {
		return err
	}
	kind, body, err := queue.Split(record)
	if err != nil {
		return err
	}
	switch kind {
	case queue.KindPlan:
		w.phase = "step"
		return w.execute(body)
	case queue.KindCall:
		w.phase = "call"
		return w.call(body)
	case queue.KindShutdown:
		return errShutdown
	}
	return fmt.Errorf("record of unknown kind %d", kind)
}

func (w *worker) execute(body []byte) error {
	if err := step.DecodePlan(body, &w.plan); err != nil {
		return err
	}
	if err := w.rank.runner.Execute(&w.plan, &w.result); err != nil {
		return err
	}
	if !w.rank.output {
		return nil
	}
	w.out = step.AppendResult(append(w.out[:0], byte(queue.KindResult)), &w.result)
	return w.conn.Send(w.out)
}

// call answers one RPC. A method's own error goes to the caller; the rank goes on.
func (w *worker) call(body []byte) error {
	id, method, _, err := queue.ParseCall(body)
	if err != nil {
		return err
	}
	var failure string
	switch method {
	case "check_health":
	default:
		failure = fmt.Sprintf("unknown method %q", method)
	}
	w.out = queue.AppendReply(w.out[:0], id, failure, nil)
	return w.conn.Send(w.out)
}
