package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// outgoing bounds the messages that wait to be written, so that no operation waits for the engine.
const outgoing = 1024

// job is one bridge.
type job struct {
	cluster *Cluster
	conn    net.Conn
	id      string
	token   string
	out     chan frame.Reply

	// The rest is under the cluster's lock.
	connected bool
	ended     bool
	namespace string
	silent    bool
	actors    map[int]*actor
	// known are the groups that it has made and not removed, and those that it has adopted.
	known map[string]bool
	calls map[int64]context.CancelFunc

	running sync.WaitGroup
}

// serve speaks until the engine closes the connection, then ends the job.
func (j *job) serve() {
	ctx, cancel := context.WithCancel(context.Background())
	j.running.Go(func() { j.write(ctx) })
	hello := &frame.Hello{Ray: j.cluster.Ray, Python: j.cluster.Python, PID: 1,
		Error: j.cluster.HelloError}
	j.send(frame.Reply{Hello: hello})
	for {
		raw, err := frame.Read(j.conn)
		if err != nil {
			break
		}
		var r frame.Request
		if json.Unmarshal(raw, &r) != nil {
			break
		}
		j.receive(ctx, r)
	}
	cancel()
	j.conn.Close()
	j.end()
	j.running.Wait()
}

func (j *job) receive(ctx context.Context, r frame.Request) {
	c := j.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Cancel != 0 {
		if cancel := j.calls[r.Cancel]; cancel != nil {
			cancel()
		}
		return
	}
	if r.Op == "" {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	if r.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.Timeout*float64(time.Second)))
	}
	j.calls[r.ID] = cancel
	j.running.Go(func() {
		defer cancel()
		j.answer(ctx, r)
	})
}

func (j *job) answer(ctx context.Context, r frame.Request) {
	c := j.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	reply := frame.Reply{ID: r.ID}
	c.hook(c.before, r.Op)
	if j.ended {
		return
	}
	result, fault := j.perform(ctx, r)
	c.hook(c.after, r.Op)
	delete(j.calls, r.ID)
	if fault != nil {
		reply.Error = fault
	} else {
		raw, err := json.Marshal(result)
		if err != nil {
			reply.Error = &frame.Fault{Class: "TypeError", Message: err.Error()}
		}
		reply.Result = raw
	}
	j.send(reply)
}

func (j *job) perform(ctx context.Context, r frame.Request) (any, *frame.Fault) {
	c := j.cluster
	if list := c.fails[r.Op]; len(list) > 0 {
		c.fails[r.Op] = list[1:]
		return nil, list[0]
	}
	operation, known := operations[r.Op]
	if !known {
		return nil, &frame.Fault{Class: "ValueError",
			Message: fmt.Sprintf("unknown operation %q", r.Op)}
	}
	if r.Op != "connect" && r.Op != "shutdown" && !j.connected {
		return nil, &frame.Fault{Class: "RuntimeError", Message: "not connected to a Ray cluster"}
	}
	var a args
	if len(r.Args) > 0 {
		if err := json.Unmarshal(r.Args, &a); err != nil {
			return nil, &frame.Fault{Class: "TypeError", Message: err.Error()}
		}
	}
	a.raw = r.Args
	return operation(j, ctx, a)
}

// write sends what is queued, and a beat each second.
func (j *job) write(ctx context.Context) {
	beats := time.NewTicker(time.Second)
	defer beats.Stop()
	for {
		var m frame.Reply
		select {
		case m = <-j.out:
		case <-beats.C:
			m = frame.Reply{Beat: true}
		case <-ctx.Done():
			return
		}
		j.cluster.mu.Lock()
		silent := j.silent
		j.cluster.mu.Unlock()
		if silent {
			continue
		}
		if err := frame.Write(j.conn, m); err != nil {
			return
		}
	}
}

// send queues a message; more than outgoing of them are a test that does not read.
func (j *job) send(m frame.Reply) {
	select {
	case j.out <- m:
	default:
		j.conn.Close()
	}
}

// tell sends the news that a worker has ended.
func (j *job) tell(a *actor, w *Worker, e ray.Exit) {
	j.send(frame.Reply{Exit: &frame.Exit{Rank: a.spec.Rank, PID: w.PID, Code: e.Code,
		Signal: e.Signal,
		Class:  e.Class, Reason: e.Reason, Stderr: e.Stderr}})
}

// end is the end of the job: its actors and its groups go.
func (j *job) end() {
	c := j.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	j.ended = true
	for _, cancel := range j.calls {
		cancel()
	}
	j.clear()
}

func (j *job) clear() {
	c := j.cluster
	for rank := range j.actors {
		j.kill(rank)
	}
	for _, id := range c.order {
		if c.groups[id].owner == j {
			c.remove(id)
		}
	}
}

// kill ends an actor on purpose: no exit is told.
func (j *job) kill(rank int) {
	a := j.actors[rank]
	if a == nil {
		return
	}
	delete(j.actors, rank)
	if a.worker != nil {
		a.end()
	}
	if a.dead == nil {
		a.dead = &frame.Fault{Class: "ActorDiedError", Message: killedByRay}
		j.cluster.release(a)
	}
	j.cluster.notify()
}
