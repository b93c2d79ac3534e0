package rlhf

import (
	"context"
	"sync"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// Pause lets new requests wait until Resume. Those in flight are ended, finish, or stay as they
// are, by the mode; it returns when that is done. Except for requests that stay, the prefix cache
// is emptied if that is wanted. While requests finish, another pause or a Resume may come.
func (c *Control) Pause(ctx context.Context, mode state.Mode, clearCache bool) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	if err := m.Pause(mode); err != nil {
		c.leave()
		return err
	}
	c.become(m)
	c.wanted.Pause(mode == state.Keep)
	c.leave()
	c.opt.Events.Emit(status.Paused{Mode: string(mode)})
	if err := c.halt(ctx, mode); err != nil || mode == state.Keep || !clearCache {
		return err
	}
	if m := c.state(); !m.Paused() {
		return nil // Resume came first
	}
	_, err = c.ResetPrefixCache(ctx, true, false)
	return err
}

// halt brings requests in flight to what a pause wants.
func (c *Control) halt(ctx context.Context, mode state.Mode) error {
	return c.each(func(e *engine.Engine) error {
		switch mode {
		case state.Abort:
			return abortAll(ctx, e)
		case state.Wait:
			return drain(ctx, e)
		}
		return idle(ctx, e)
	})
}

// Resume goes on with generation.
func (c *Control) Resume(ctx context.Context) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer c.leave()
	if err := m.Resume(); err != nil {
		return err
	}
	c.become(m)
	return c.release(ctx)
}

func (c *Control) release(ctx context.Context) error {
	err := c.follow(ctx)
	if err == nil {
		c.opt.Events.Emit(status.Resumed{})
	}
	return err
}

// follow has engines compute what the state lets them. Those that have nothing to do look for it
// even where ctx has ended.
func (c *Control) follow(ctx context.Context) error {
	if m := c.state(); m.Paused() {
		c.wanted.Pause(m.Frozen())
	} else {
		c.wanted.Resume()
	}
	return c.each(func(e *engine.Engine) error { return idle(ctx, e) })
}

// AbortAll ends all requests with what they have.
func (c *Control) AbortAll(ctx context.Context) error {
	return c.each(func(e *engine.Engine) error { return abortAll(ctx, e) })
}

// ResetPrefixCache empties the prefix caches, and with external removes the files of KV blocks. It
// returns false where requests run, unless these are to be computed again, and where there are no
// such files.
func (c *Control) ResetPrefixCache(ctx context.Context, running, external bool) (bool, error) {
	var mu sync.Mutex
	all := true
	err := c.each(func(e *engine.Engine) error {
		// Requests that run would go on to use what they have.
		done := true
		err := between(ctx, e, func(l *engine.Loop) error {
			if done = running || l.Running() == 0; done {
				l.Invalidate()
			}
			if done && external {
				var err error
				done, err = l.RemoveStored()
				return err
			}
			return nil
		})
		mu.Lock()
		defer mu.Unlock()
		all = all && done && err == nil
		return err
	})
	return all, err
}

// Sleep pauses as Pause does and gives memory back: at level 1 that of the KV cache, at level 2
// that of the weights too.
func (c *Control) Sleep(ctx context.Context, level int, mode state.Mode) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer c.leave()
	paused := m.Paused()
	if err := m.Sleep(level, mode); err != nil {
		return err
	}
	if paused {
		mode = state.Keep // what was let finish, and has not, goes on after the sleep
	}
	c.wanted.Pause(mode == state.Keep)
	if err := c.halt(ctx, mode); err != nil {
		_ = c.follow(ctx) // the state is what it was
		return err
	}
	c.become(m)
	if level > 0 {
		c.retiring.Wait()
		c.spare.Drop()
	}
	return c.rest(&m)
}

// Wake takes the memory of parts again, of all without tags. What the weights were before they
// slept they are again.
func (c *Control) Wake(ctx context.Context, tags []string) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer c.leave()
	slept := m.Sleeping()
	resumed, err := m.Wake(tags)
	if err != nil {
		return err
	}
	if slept {
		if err := c.rest(&m); err != nil {
			return err
		}
	}
	c.become(m)
	if resumed {
		return c.release(ctx)
	}
	return c.follow(ctx)
}

// rest has all ranks be as asleep as a state says. It is not given up half-way.
func (c *Control) rest(m *state.Machine) error {
	asleep := calls.Asleep{Weights: m.Asleep(state.Weights), KVCache: m.Asleep(state.KVCache)}
	c.wanted.Sleep(asleep)
	err := c.each(func(e *engine.Engine) error { return e.Equip(context.Background()) })
	if err == nil {
		c.opt.Events.Emit(status.Slept{Weights: asleep.Weights, KVCache: asleep.KVCache})
	}
	return err
}
