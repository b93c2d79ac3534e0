package replicas

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/status"
)

// site opens more engines.
type site struct{ *engine.Opener }

// scaling is the change of the engines that is under way, one at a time.
type scaling struct {
	mu sync.Mutex
	// what it is, "" for none.
	what string
	// closed says that no other may begin.
	closed  bool
	running sync.WaitGroup
}

// begin starts a change; the error says why it may not start.
func (s *scaling) begin(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return engine.ErrStopped
	case s.what != "":
		return fmt.Errorf("%w: %s", engine.ErrScaling, s.what)
	}
	s.what = what
	s.running.Add(1)
	return nil
}

func (s *scaling) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.what = ""
	s.running.Done()
}

// close refuses further changes, and waits for the one under way.
func (s *scaling) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
}

// Scaling is the change of the engines that is under way, in words; "" for none.
func (r *Router) Scaling() string {
	r.scaling.mu.Lock()
	defer r.scaling.mu.Unlock()
	return r.scaling.what
}

// ScaleEngines changes how many engines there are while they serve; where they share one set of
// experts, their ranks start again (see Relayout), and drain means nothing. Those that are added
// get requests once they are ready, in the place of failed ones too; of those that are to be
// removed, which are the last ones, requests that run finish, for as long as drain, else all stay
// (engine.ErrBusy). An error leaves the engines that there were: *open.Refused, engine.ErrScaling,
// or why one did not start. It goes on when ctx ends: ctx bounds only the wait for it.
func (r *Router) ScaleEngines(ctx context.Context, to int, drain time.Duration) error {
	if r.site.Opener == nil {
		return &open.Refused{Reason: "the number of engines is fixed here"}
	}
	if err := r.site.Fixed(); err != nil {
		return err
	}
	if to < 1 || to > engine.MaxEngines {
		return &open.Refused{Reason: fmt.Sprintf("%d engines: there can be 1 to %d", to,
			engine.MaxEngines)}
	}
	if r.site.Sizes().Places > 0 {
		return r.Relayout(ctx, open.Sizes{Places: to})
	}
	what := fmt.Sprintf("scaling from %d to %d engines", len(r.list()), to)
	if err := r.scaling.begin(what); err != nil {
		return err
	}
	return r.await(ctx, func() error { return r.scale(to, drain) })
}

// Relayout gives every engine, one after the other, a layout of other sizes: each holds its
// requests for as long as its new ranks take to start, and the others serve. An error leaves the
// layout that there was, as ScaleEngines says; it goes on when ctx ends.
func (r *Router) Relayout(ctx context.Context, z open.Sizes) error {
	if r.site.Opener == nil {
		return &open.Refused{Reason: "the layout is fixed here"}
	}
	if err := r.scaling.begin(fmt.Sprintf("changing to %v", z)); err != nil {
		return err
	}
	return r.await(ctx, func() error { return r.relayout(z) })
}

// relayout changes the engines that live, and back those that were changed before one that fails.
func (r *Router) relayout(z open.Sizes) error {
	started, from := time.Now(), r.site.Sizes()
	if to := (open.Sizes{TP: cmp.Or(z.TP, from.TP), Places: cmp.Or(z.Places, from.Places)}); to ==
		from {
		return nil
	}
	members := r.list()
	if err := r.site.CheckLayout(z, len(members)); err != nil {
		return err
	}
	for i, m := range members {
		if m.failed() {
			continue
		}
		err := m.Relayout(r.life, z)
		if err == nil {
			continue
		}
		for _, changed := range members[:i] {
			if back := changed.Relayout(r.life, from); back != nil && !changed.failed() {
				r.events.Emit(status.EngineTrouble{Engine: r.Info().First + changed.number,
					What:  fmt.Sprintf("an engine has another layout than the others: %v", z),
					Cause: back})
			}
		}
		r.replace(members)
		if r.life.Err() != nil {
			return engine.ErrStopped
		}
		return err
	}
	if err := r.site.Relaid(z); err != nil {
		return err
	}
	r.replace(members)
	r.events.Emit(status.LayoutChanged{Layout: r.site.Sizes().String(), Before: from.String(),
		Took: time.Since(started)})
	return nil
}

// await runs the change that has begun, and waits for it until ctx ends.
func (r *Router) await(ctx context.Context, change func() error) error {
	done := make(chan error, 1)
	go func() {
		err := change()
		r.scaling.done()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// scale makes the engines as many as are wanted.
func (r *Router) scale(to int, drain time.Duration) error {
	started, from := time.Now(), len(r.list())
	if missing := r.missing(to); len(missing) > 0 {
		if err := r.add(missing, to); err != nil {
			return err
		}
	}
	if err := r.remove(to, drain); err != nil {
		return err
	}
	if from != to {
		r.events.Emit(status.Scaled{From: from, Engines: to, Took: time.Since(started)})
	}
	return nil
}

// missing are the numbers below a limit that no living engine has.
func (r *Router) missing(limit int) (numbers []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range limit {
		if i >= len(r.members) || r.members[i].candidate.down || r.members[i].failed() {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// failed says that an engine has failed, which its watcher may not have heard.
func (m *member) failed() bool {
	select {
	case <-m.Failed():
		return true
	default:
		return false
	}
}

// add opens engines of the numbers, all or none, and gives them requests.
func (r *Router) add(numbers []int, total int) error {
	if err := r.site.Check(numbers, total); err != nil {
		return err
	}
	before := r.list()
	for _, i := range numbers {
		if i < len(before) {
			// A failed engine frees its resources before its successor opens.
			r.close(before[i])
		}
	}
	opened, err := r.site.Open(r.life, numbers, max(total, len(before)))
	if err != nil {
		for _, i := range numbers {
			if i < len(before) {
				r.site.Metrics().Engine(i).SetDown()
			}
		}
		if r.life.Err() != nil {
			return engine.ErrStopped
		}
		return err
	}
	members, added := slices.Clone(before), make([]*member, len(opened))
	for i, e := range opened {
		m := r.newMember(numbers[i], e)
		m.leaving = true // no requests before it has caught up
		added[i] = m
		if m.number < len(members) {
			members[m.number] = m
		} else {
			members = append(members, m)
		}
	}
	r.replace(members)
	r.watchAll(added)
	for _, m := range added {
		if err := m.CatchUp(r.life); err != nil {
			r.replace(before)
			for _, m := range added {
				r.close(m)
			}
			return fmt.Errorf("engine %d: %w", m.number, err)
		}
	}
	r.resume(added)
	return nil
}

// remove drains the engines from a number on, and ends them.
func (r *Router) remove(from int, drain time.Duration) error {
	members := r.list()
	if len(members) <= from {
		return nil
	}
	late := time.NewTimer(drain)
	defer late.Stop()
	busy := r.drain(members[from:])
	for _, idle := range busy {
		var err error
		select {
		case <-idle:
			continue
		case <-late.C:
			err = fmt.Errorf("%w after %v", engine.ErrBusy, drain)
		case <-r.life.Done():
			err = engine.ErrStopped
		}
		r.resume(members[from:])
		return err
	}
	r.replace(slices.Clone(members[:from]))
	for _, m := range members[from:] {
		r.close(m)
	}
	return nil
}

// drain excludes engines from new requests. The channels that it returns are closed when they have
// none.
func (r *Router) drain(list []*member) (idle []chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range list {
		m.leaving, m.idle = true, make(chan struct{})
		idle = append(idle, m.idle)
		m.notifyIdle()
	}
	return idle
}

// resume lets engines receive requests again.
func (r *Router) resume(list []*member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range list {
		m.leaving, m.idle = false, nil
	}
}

// close stops an engine that receives no requests.
func (r *Router) close(m *member) {
	m.closing.Do(func() { close(m.gone) })
	if err := m.Stop(context.WithoutCancel(r.life)); err != nil {
		r.events.Emit(status.EngineTrouble{Engine: r.Info().First + m.number,
			What: "an engine that was removed was not ended", Cause: err})
	}
	r.site.Close(m.number)
}
