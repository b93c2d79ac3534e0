package rlhf

import (
	"context"
	"sync"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/steer"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// reserve has the system find memory for an update. Without it the update itself would have to
// wait, and would say what is missing.
func (c *Control) reserve(ctx context.Context) {
	c.retiring.Wait()
	if c.streams {
		c.retiring.Go(c.reserveStream)
	}
	engines := c.opt.Engines()
	hosts := make([][]string, len(engines))
	err := engine.Each(engines, func(i int) (err error) {
		return between(ctx, engines[i], func(l *engine.Loop) error {
			hosts[i], err = steer.Reserve(l.Group())
			return err
		})
	})
	c.ready = map[*engine.Engine]bool{}
	if err == nil {
		rooms := c.rooms(hosts)
		for i, e := range engines {
			c.ready[e] = len(rooms[i].Ranks) > 0
		}
		err = engine.Each(engines, func(i int) error {
			if !c.ready[engines[i]] {
				return nil
			}
			return reserveSent(ctx, engines[i], &rooms[i])
		})
	}
	if err != nil {
		c.trouble("ranks have no memory for an update yet", err)
	}
	c.retiring.Wait()
}

// rooms says which ranks of each engine need memory for what they are sent, by the hosts of the
// ranks: one on every host but the driver's.
func (c *Control) rooms(hosts [][]string) []weights.Room {
	rooms := make([]weights.Room, len(hosts))
	seen := map[string]bool{"": true, weights.HostID(): true}
	for i, list := range hosts {
		rooms[i] = weights.Room{Specs: c.specs, DType: c.dtype.String()}
		for rank, host := range list {
			if !seen[host] {
				seen[host] = true
				rooms[i].Ranks = append(rooms[i].Ranks, rank)
			}
		}
	}
	return rooms
}

// stage has all engines load an update beside what they compute with. Those whose ranks have memory
// ready for it are the first to claim their hosts.
func (c *Control) stage(ctx context.Context, u *weights.Update) error {
	engines := c.opt.Engines()
	var claims sync.WaitGroup
	claimed := make([]func(), len(engines))
	for i, e := range engines {
		claimed[i] = func() {}
		if c.ready[e] {
			claims.Add(1)
			claimed[i] = sync.OnceFunc(claims.Done)
		}
	}
	return engine.Each(engines, func(i int) error {
		defer claimed[i]()
		if !c.ready[engines[i]] {
			claims.Wait()
		}
		return stage(ctx, engines[i], u, claimed[i])
	})
}

func (c *Control) reserveStream() {
	if err := c.spare.Reserve(c.specs, c.dtype); err != nil {
		c.trouble("no memory for an update yet", err)
	}
}

// trouble tells of a part of an update that went wrong.
func (c *Control) trouble(what string, cause error) {
	c.opt.Events.Emit(status.WeightsTrouble{What: what, Cause: cause})
}
