package fake

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/frame"
	"golang.org/x/sys/unix"
)

// StartFunc starts what stands for a worker process, on a node with this environment.
type StartFunc func(spec ray.StartSpec, node map[string]string) (*Worker, error)

// Worker is a started one.
type Worker struct {
	// PID is its process; 0 leaves the number to the cluster.
	PID int
	// Signal sends SIGTERM, with which its standard input ends, or SIGKILL.
	Signal func(unix.Signal)
	// Wait returns how it ended, when it has.
	Wait func() ray.Exit
	// Feed is given what is written to its standard input after its start; nil drops it.
	Feed func([]byte)

	// ended is closed when Wait has returned.
	ended chan struct{}
}

// wait is a worker that does nothing until it gets a signal.
func wait(ray.StartSpec, map[string]string) (*Worker, error) {
	end := make(chan unix.Signal, 2)
	return &Worker{
		Signal: func(s unix.Signal) {
			select {
			case end <- s:
			default:
			}
		},
		Wait: func() ray.Exit { return ray.Exit{Signal: unix.SignalName(<-end)} }}, nil
}

// end takes the worker from its actor and kills it: its own end is no news.
func (a *actor) end() *Worker {
	w := a.worker
	a.worker = nil
	w.Signal(unix.SIGKILL)
	return w
}

func (j *job) actorsStart(_ context.Context, a args) (any, *frame.Fault) {
	var list struct {
		Specs []ray.StartSpec `json:"specs"`
	}
	if err := json.Unmarshal(a.raw, &list); err != nil {
		return nil, valueError("%v", err)
	}
	out := newRanks()
	for _, spec := range list.Specs {
		part := j.on([]int{spec.Rank}, func(x *actor) (any,
			*frame.Fault) {
			return j.start(x, spec)
		})
		out.set(spec.Rank, part.Results[spec.Rank], part.Errors[spec.Rank])
	}
	return out, nil
}

// start starts the worker of an actor and watches it.
func (j *job) start(a *actor, spec ray.StartSpec) (any, *frame.Fault) {
	if a.worker != nil {
		return nil, &frame.Fault{Class: "RuntimeError",
			Message: "this actor's worker is running already"}
	}
	c := j.cluster
	begin := c.Worker
	if begin == nil {
		begin = wait
	}
	w, err := begin(spec, c.envs[a.facts.NodeID])
	if err != nil {
		return nil, &frame.Fault{Class: classOf(err), Message: err.Error()}
	}
	if w.PID == 0 {
		c.pids++
		w.PID = c.pids
	}
	w.ended = make(chan struct{})
	a.worker = w
	c.running.Go(func() {
		exit := w.Wait()
		close(w.ended)
		c.mu.Lock()
		defer c.mu.Unlock()
		if a.worker == w {
			a.worker = nil
			j.tell(a, w, exit)
		}
	})
	return ray.Started{Rank: spec.Rank, PID: w.PID}, nil
}

// classOf is the exception that Python raises where a process cannot be started.
func classOf(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "FileNotFoundError"
	case errors.Is(err, fs.ErrPermission):
		return "PermissionError"
	}
	return "OSError"
}

func (j *job) actorsFeed(_ context.Context, a args) (any, *frame.Fault) {
	var list struct {
		Inputs []ray.Input `json:"inputs"`
	}
	if err := json.Unmarshal(a.raw, &list); err != nil {
		return nil, valueError("%v", err)
	}
	out := newRanks()
	for _, in := range list.Inputs {
		part := j.on([]int{in.Rank}, func(x *actor) (any, *frame.Fault) {
			switch {
			case x.worker == nil:
				return nil, &frame.Fault{Class: "RuntimeError", Message: "no worker runs"}
			case x.worker.Feed != nil:
				x.worker.Feed(in.Stdin)
			}
			return empty{}, nil
		})
		out.set(in.Rank, part.Results[in.Rank], part.Errors[in.Rank])
	}
	return out, nil
}

func (j *job) actorsStop(_ context.Context, a args) (any, *frame.Fault) {
	var stopped []*Worker
	out := j.on(a.Ranks, func(x *actor) (any, *frame.Fault) {
		if x.worker != nil {
			stopped = append(stopped, x.worker)
			x.worker.Signal(unix.SIGTERM)
		}
		return empty{}, nil
	})
	// Their ends need the lock.
	j.cluster.mu.Unlock()
	defer j.cluster.mu.Lock()
	grace := time.After(time.Duration(a.Grace * float64(time.Second)))
	for _, w := range stopped {
		select {
		case <-w.ended:
		case <-grace:
			w.Signal(unix.SIGKILL)
			<-w.ended
		}
	}
	return out, nil
}
