package rlhf

import (
	"context"

	"github.com/eagleray/eagleray/internal/engine"
)

// reserve has the system find memory for an update. Without it the update itself would have to wait, and
// would say what is missing.
func (c *Control) reserve(ctx context.Context) {
	c.retiring.Wait()
	if c.streams {
		c.retiring.Go(c.reserveStream)
	}
	if err := c.each(func(e *engine.Engine) error { return e.Reserve(ctx) }); err != nil {
		c.log.Warn("ranks have no memory for an update yet", "cause", err)
	}
	c.retiring.Wait()
}

func (c *Control) reserveStream() {
	if err := c.spare.Reserve(c.specs, c.dtype); err != nil {
		c.log.Warn("no memory for an update yet", "cause", err)
	}
}
