package call

import (
	"cmp"
	"context"
)

// Call is what a server knows of a request for generation beside its body.
type Call struct {
	// ID is what the client names the request, "" for nothing.
	ID string
	// Client names whose request it is: an API key, else an address. Clients take turns.
	Client string
	// Row says that the request is a row of a batch: it gives way to others.
	Row bool
	// LeaveToOthers breaks the connection of a request that another server can answer and this one
	// cannot, for a reason: what was to follow is not sent. Nil where no other one can.
	LeaveToOthers func(ctx context.Context, reason error)
	// Origin is what the answer is made of, observed what observes it; nil for nothing.
	Origin   *Origin
	Observed *Observed
	// Named is where Name leaves what it has chosen, for the log; nil is nowhere.
	Named *string
}

// Name is the id of the answer: the client's, else the one of the field request_id, else a random
// one.
func (c *Call) Name(field string) string {
	name := cmp.Or(c.ID, field)
	if name == "" {
		name = c.Origin.ID()
	}
	if c.Named != nil {
		*c.Named = name
	}
	return name
}
