package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/verdict"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// connect starts the ranks and joins them to a hub.
func (e *Executor) connect(ctx context.Context) error {
	world := e.opt.Init.Layout.World()
	patience := cmp.Or(e.opt.CollectiveTimeout, collectivePatience*e.opt.StepTimeout)
	specs := make([]launch.Spec, world)
	for i := range specs {
		specs[i] = launch.Spec{Rank: i, LocalRank: i, Layout: e.opt.Init.Layout,
			CollectiveTimeout: patience, Fresh: slices.Contains(e.opt.Fresh, i)}
	}
	if e.opt.InProcess {
		if err := e.launch(ctx, specs); err != nil {
			return err
		}
		return e.join(e.workers[0].Hub)
	}
	d, err := join.Listen(join.Options{
		Layout:            e.opt.Init.Layout,
		Address:           e.opt.Address,
		PortRange:         e.opt.PortRange,
		LinksOnly:         e.opt.LinksOnly,
		QueueMemory:       e.opt.QueueMemory,
		Timeout:           e.opt.MeetTimeout,
		CollectiveTimeout: patience,
		Log:               e.opt.Log,
	})
	if err != nil {
		return err
	}
	e.closers = append(e.closers, d.Close)
	e.driver = d
	for i := range specs {
		specs[i].Binary = d.Binary()
		specs[i].Invitation = d.Invitation(i)
		specs[i].Invitation.Place = machine.Place{Index: e.opt.Group*world + i,
			Of: world * max(1, e.opt.Groups)}
		specs[i].Invitation.Ordinal = specs[i].Invitation.Place.Index
	}
	if err := e.launch(ctx, specs); err != nil {
		return err
	}
	if err := e.admit(ctx, d); err != nil {
		return fmt.Errorf("waiting for ranks: %w", err)
	}
	if e.opt.Fits != nil {
		if err := e.opt.Fits(&e.opt.Init, e.workers, d.Locations()); err != nil {
			return err
		}
	}
	return e.open(d)
}

// collectivePatience is how many times as long as StepTimeout ranks wait for each other. The driver
// sees which rank holds the others up long before; this is for ranks that no driver reaches.
const collectivePatience = 10

// admit admits all ranks. It ends early when the group fails: by the exit of a rank.
func (e *Executor) admit(ctx context.Context, d *join.Driver) error {
	living, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.life.ctx, cancel)()
	var kept []int
	for _, w := range e.workers {
		if w.Reused {
			kept = append(kept, w.Rank)
		}
	}
	err := d.Admit(living, kept...)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	lost := verdict.ConnectionLost{Rank: -1, Cause: err.Error()}
	var broke *join.Error
	if errors.As(err, &broke) {
		lost.Rank, lost.Cause = broke.Rank, broke.Error()
	}
	if errors.Is(err, join.ErrApart) {
		e.observe(verdict.ConnectionClosed{Rank: lost.Rank, Reason: broke.Err.Error(),
			Cut: true})
	} else {
		e.observe(lost)
	}
	<-e.life.dead
	return e.Err()
}

// join sets the hub and closes joined. It fails if the group has failed meanwhile.
func (e *Executor) join(hub queue.Hub) error {
	e.hub = hub
	close(e.joined)
	e.observe(verdict.Joined{})
	return e.Err()
}

// open opens the hub and watches every connection for the end of its rank.
func (e *Executor) open(d *join.Driver) error {
	e.pids = make([]int, len(e.workers))
	if err := e.join(d.Open()); err != nil {
		return fmt.Errorf("waiting for ranks: %w", err)
	}
	for rank := range e.workers {
		e.pids[rank] = d.PID(rank)
		e.watchers.Go(func() {
			if end := d.WatchRank(rank); end.Final {
				e.connectionClosed(rank, end)
			} else {
				e.connectionLost(rank, end)
			}
		})
	}
	e.background.Go(func() { d.Resume(e.life.ctx) })
	return nil
}
