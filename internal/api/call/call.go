package openai

// call is what a server knows of a request for generation beside its body.
type call struct {
	// id is what the client names the request, "" for nothing.
	id string
	// client names whose request it is: an API key, else an address. Clients take turns.
	client string
	// row says that the request is a row of a batch: it gives way to others.
	row bool
	// origin is what the answer is made of, observed what observes it; nil for nothing.
	origin   *origin
	observed *observed
}

// name is the id of the answer: the client's, else the one of the field request_id, else a random one.
func (c *call) name(field string) string {
	switch {
	case c.id != "":
		return c.id
	case field != "":
		return field
	}
	return c.origin.id()
}
