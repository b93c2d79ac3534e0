package call

import "context"

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
}

// Name is the id of the answer: the client's, else the one of the field request_id, else a random
// one.
func (c *Call) Name(field string) string {
	switch {
	case c.ID != "":
		return c.ID
	case field != "":
		return field
	}
	return c.Origin.ID()
}
