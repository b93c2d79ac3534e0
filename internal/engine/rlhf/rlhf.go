// Package rlhf steers the engines of a server for a trainer: it pauses them, lets them sleep, and
// brings them new weights, all engines and all ranks of each or none.
package rlhf

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/engine/steer"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// Options configure a Control.
type Options struct {
	// Engines are those that serve now, at least one.
	Engines func() []*engine.Engine
	// Host is the address at which trainers of other machines bring weights, "" for none.
	Host string
	// Folder is the model's own, "" for the built-in model, and Allowed are others, from which
	// weights may be loaded.
	Folder  string
	Allowed []string
	// Predicts says that the layer of the model's checkpoint that predicts a token more guesses:
	// updates may have its tensors, which otherwise pass.
	Predicts bool
	// Layout is how the ranks of an engine divide the model.
	Layout layout.Layout
	// Events is notified of what was done. Log is told what is wrong with files, which clients may
	// not be allowed to read; nil is silence.
	Events status.Listener
	Log    *slog.Logger
}

// Control is what a trainer asks of a server. Its methods are safe for concurrent use; what changes
// the server is done one after the other. An error that wraps *state.WrongOrder has changed
// nothing.
type Control struct {
	opt    Options
	wanted *steer.Wanted
	// retiring gives back the memory of the update before the last one, and finds that of the next,
	// which the system takes long to do: only the next update waits for it.
	retiring sync.WaitGroup
	// tied says that the head is the embedding, beside that the model is a part of a whole.
	tied, beside bool
	specs        []checkpoint.Spec
	// further are those of specs that an update may lack; passing are names of tensors that have no
	// use here.
	further []checkpoint.Spec
	passing map[string]bool
	// dtype is the type in which weights are expected, spare memory for the next update.
	dtype checkpoint.DType
	spare weights.Spare
	log   *slog.Logger

	// turn is held by what changes the server.
	turn chan struct{}
	// streams says that trainers send bytes: memory is found for them ahead.
	streams bool
	// ready are the engines whose ranks have memory for updates that they are sent.
	ready    map[*engine.Engine]bool
	receiver *receiver
	builder  *weights.Builder
	// begun is when the update under way was started.
	begun time.Time

	mu      sync.Mutex
	machine state.Machine
	version string
	updates int
	bytes   int64
}

// New makes the control of engines that were opened together.
func New(o Options) (*Control, error) {
	first := o.Engines()[0]
	specs, err := model.Expected(first.Model(), model.Stage{})
	if err != nil {
		return nil, err
	}
	dtype, ok := checkpoint.ParseDType(first.Model().DType)
	if !ok || !dtype.Weight() {
		dtype = checkpoint.BF16
	}
	own, copies, err := model.Further(first.Model())
	if err != nil {
		return nil, err
	}
	further, passing := append(own, copies...), map[string]bool{}
	if !o.Predicts {
		for i := range further {
			passing[further[i].Name] = true
		}
		further = nil
	}
	c := &Control{opt: o, dtype: dtype, wanted: first.Wanted(),
		tied: first.Model().TieEmbeddings, beside: first.Model().Around != "",
		specs: append(specs, further...), further: further, passing: passing,
		log: o.Log, turn: make(chan struct{}, 1), version: "0"}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Close ends a session of weight transfer. It is called once nothing else is.
func (c *Control) Close() {
	if c.receiver != nil {
		c.receiver.close()
	}
	if c.builder != nil {
		c.builder.Close()
	}
	c.retiring.Wait()
	c.wanted.Retire(c.wanted.Commit(nil))
	c.spare.Drop()
}

// enter waits for the right to change the server, and returns a copy of its state.
func (c *Control) enter(ctx context.Context) (state.Machine, error) {
	select {
	case c.turn <- struct{}{}:
		return c.state(), nil
	case <-ctx.Done():
		return state.Machine{}, ctx.Err()
	}
}

func (c *Control) leave() { <-c.turn }

func (c *Control) state() state.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine
}

// become keeps a state that was reached.
func (c *Control) become(m state.Machine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machine = m
}

// each asks every engine at the same time: see engine.Each.
func (c *Control) each(f func(e *engine.Engine) error) error {
	engines := c.opt.Engines()
	return engine.Each(engines, func(i int) error { return f(engines[i]) })
}

// Paused and Sleeping are what /is_paused and /is_sleeping answer.
func (c *Control) Paused() bool { m := c.state(); return m.Paused() }

// Sleeping says whether a part of the server sleeps.
func (c *Control) Sleeping() bool { m := c.state(); return m.Sleeping() }

// Version is that of the weights that answers are computed by.
func (c *Control) Version() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// SetVersion gives the weights another name.
func (c *Control) SetVersion(version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = version
}

// Info is what /weight_info answers.
type Info struct {
	// Version is the name of the weights, Updates how many there were before them, Tensors and
	// Bytes what the last one brought.
	Version string `json:"weight_version"`
	Updates int    `json:"num_updates"`
	Tensors int    `json:"num_tensors"`
	Bytes   int64  `json:"num_bytes"`
	State   string `json:"state"`
}

// Info describes the weights and the state.
func (c *Control) Info() Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Info{Version: c.version, Updates: c.updates, Tensors: len(c.specs), Bytes: c.bytes,
		State: c.machine.String()}
}

// WorldSize is the number of ranks of an engine, or of all.
func (c *Control) WorldSize(all bool) int {
	n := c.opt.Layout.World()
	if all {
		n *= len(c.opt.Engines())
	}
	return n
}

// Call runs a method on the ranks of all engines and returns the results, engine by engine, in rank
// order.
func (c *Control) Call(ctx context.Context, method string, args []byte,
	timeout time.Duration) ([][]byte, error) {
	engines := c.opt.Engines()
	results := make([][][]byte, len(engines))
	err := engine.Each(engines, func(i int) (err error) {
		return between(ctx, engines[i], func(l *engine.Loop) error {
			results[i], err = l.Group().CollectiveRPC(ctx, method, args,
				executor.RPCOptions{Timeout: timeout})
			return err
		})
	})
	var all [][]byte
	for _, r := range results {
		all = append(all, r...)
	}
	return all, err
}
