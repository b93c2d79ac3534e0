package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// Task is something that the loop does between two steps, with no plan in flight.
type Task struct {
	Do func(*Loop) error
	// Drained waits until the scheduler has no request, and holds up no step.
	Drained bool
	// Must says that the group of ranks cannot go on when Do fails.
	Must bool
}

// task is a Task on its way through the loop.
type task struct {
	Task
	ctx  context.Context
	done chan error
}

// Between has the loop do a task, and waits for it. What has begun is not given up with ctx.
func (e *Engine) Between(ctx context.Context, t Task) error {
	one := &task{Task: t, ctx: ctx, done: make(chan error, 1)}
	e.mu.Lock()
	if e.failure != nil {
		defer e.mu.Unlock()
		return e.failure
	}
	e.inbox.post(one)
	e.mu.Unlock()
	select {
	case err := <-one.done:
		return err
	case <-e.done:
		e.mu.Lock()
		defer e.mu.Unlock()
		return cmp.Or(e.failure, ErrStopped)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Equip brings the ranks to what is wanted of all engines (Wanted), which makes void what they have
// computed: requests in flight are computed again from their tokens so far. When the ranks fail,
// those in their place are brought to it.
func (e *Engine) Equip(ctx context.Context) error {
	return e.between(ctx, Task{Do: (*Loop).reequip, Must: true})
}

// LoadAdapter has the ranks load an adapter, which is among those that are wanted of all engines,
// beside the requests that run. When the ranks fail, those in their place load it.
func (e *Engine) LoadAdapter(ctx context.Context, u *weights.Update) error {
	for done, opened := false, (*executor.Executor)(nil); !done; {
		err := e.between(ctx, Task{Do: func(l *Loop) (err error) {
			// What is opened and not begun another update would take the place of.
			if opened != l.group {
				if err = e.wanted.OpenAdapter(l.group, u); err != nil {
					return err
				}
				opened = l.group
			}
			done, err = e.wanted.StepAdapter(l.group, u)
			return err
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// TrimAdapters has the ranks drop the adapters that are not wanted any more.
func (e *Engine) TrimAdapters(ctx context.Context) error {
	return e.between(ctx, Task{Do: func(l *Loop) error {
		return e.wanted.TrimAdapters(l.group)
	}})
}

// between has the loop do something to its ranks that new ones do at their start: it is done again
// when the ranks fail.
func (e *Engine) between(ctx context.Context, t Task) error {
	for {
		err := e.Between(ctx, t)
		if lost := (*executor.Failure)(nil); !errors.As(err, &lost) || errors.Is(err, ErrFailed) {
			return err
		}
	}
}

// CatchUp brings an engine that was opened beside others to what was asked of those meanwhile.
func (e *Engine) CatchUp(ctx context.Context) error {
	if e.wanted.Plain() {
		return nil
	}
	return e.Equip(ctx)
}

// Group is the ranks that the engine computes on.
func (l *Loop) Group() *executor.Executor { return l.group }

// Running is how many requests run.
func (l *Loop) Running() int { return l.sched.Running() }

// AbortAll ends all requests with what they have.
func (l *Loop) AbortAll() { l.cancel(slices.Collect(maps.Keys(l.requests)), false) }

// Invalidate makes what the ranks have computed of requests void, and empties the prefix cache.
func (l *Loop) Invalidate() {
	l.sched.Invalidate()
	l.e.events.Emit(status.CacheReset{})
}

// RemoveStored removes the files of KV blocks, of all engines that share them. It returns false
// where there are none.
func (l *Loop) RemoveStored() (bool, error) { return l.e.offload.Remove() }

// reequip has ranks that compute become what is wanted now.
func (l *Loop) reequip() error {
	l.Invalidate()
	return l.equip()
}

// doTasks does what was asked of the loop, as far as it can be done now. It returns the failure of
// the group that comes of it.
func (l *Loop) doTasks() (failed error) {
	if l.launching.Files.Number() != l.revision {
		return errAdopted
	}
	if len(l.tasks) == 0 {
		return nil
	}
	left := l.tasks[:0]
	for i, t := range l.tasks {
		busy := len(l.flights) > 0 || t.Drained && l.sched.Running()+l.sched.Waiting() > 0
		if busy && t.ctx.Err() == nil {
			left = append(left, t)
			continue
		}
		err := t.ctx.Err()
		if err == nil {
			if err = t.Do(l); t.Must {
				failed = err
			}
		}
		t.done <- err
		if failed == nil {
			failed = l.group.Err()
		}
		if failed != nil {
			l.tasks = append(left, l.tasks[i+1:]...)
			return failed
		}
	}
	clear(l.tasks[len(left):])
	l.tasks = left
	return nil
}

// waits says that no plan is to be made now.
func (l *Loop) waits() bool {
	return l.e.wanted.PausedAll() ||
		slices.ContainsFunc(l.tasks, func(t *task) bool { return !t.Drained })
}
