package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/executor/verdict"
	"github.com/eagleray/eagleray/internal/join"
	"github.com/eagleray/eagleray/internal/machine"
)

// connect starts the ranks and joins them to a hub.
func (e *Executor) connect(ctx context.Context) error {
	world := e.opt.Init.WorldSize
	specs := make([]launch.Spec, world)
	for i := range specs {
		specs[i] = launch.Spec{Rank: i, LocalRank: i}
	}
	if e.opt.InProcess {
		if err := e.launch(ctx, specs); err != nil {
			return err
		}
		e.hub = e.workers[0].Hub
		return nil
	}
	d, err := join.Listen(join.Options{
		World:             world,
		Address:           e.opt.Address,
		PortRange:         e.opt.PortRange,
		LinksOnly:         e.opt.LinksOnly,
		QueueMemory:       e.opt.QueueMemory,
		Timeout:           e.opt.MeetTimeout,
		CollectiveTimeout: cmp.Or(e.opt.CollectiveTimeout, e.opt.StepTimeout+collectiveGrace),
		Log:               e.opt.Log,
	})
	if err != nil {
		return err
	}
	e.closers = append(e.closers, d.Close)
	for i := range specs {
		specs[i].Binary = d.Binary()
		specs[i].Invitation = d.Invitation(i)
		specs[i].Invitation.Threads = max(1, machine.Cores()/world)
	}
	if err := e.launch(ctx, specs); err != nil {
		return err
	}
	if err := e.admit(ctx, d); err != nil {
		return fmt.Errorf("waiting for ranks: %w", err)
	}
	e.open(d)
	return nil
}

// collectiveGrace is how much longer ranks wait for each other than the driver waits for the step:
// it has seen all of them by then, and knows best which one held the others up.
const collectiveGrace = 5 * time.Second

// admit admits all ranks. It ends early when the process of one does.
func (e *Executor) admit(ctx context.Context, d *join.Driver) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	exited := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case exit := <-e.opt.Launcher.Exited():
			f := e.judge.ranks.Ended(exit)
			f.Phase = "meet"
			cancel(f)
		case <-exited:
		}
	}()
	err := d.Admit(ctx)
	if err != nil {
		// The exit of a rank says more than the connection that broke with it, and comes a moment
		// later.
		select {
		case <-ctx.Done():
		case <-time.After(verdict.ExitGrace):
		}
	}
	close(exited)
	<-ended
	// An exit counts even if it came when all had been admitted.
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var broke *join.Error
	if errors.As(err, &broke) {
		f := e.judge.ranks.Failure(broke.Rank, broke.Error())
		f.Phase = "meet"
		return f
	}
	return err
}

// open makes the hub and watches every connection for the end of its rank.
func (e *Executor) open(d *join.Driver) {
	e.pids = make([]int, len(e.workers))
	e.hub = d.Open()
	for rank := range e.workers {
		e.pids[rank] = d.PID(rank)
		e.background.Go(func() {
			if end := d.WatchRank(rank); end.Final {
				e.closed(rank, end.Err.Error())
			} else {
				e.lost(rank, end.Err)
			}
		})
	}
	e.background.Go(func() { d.Resume(e.life) })
}
