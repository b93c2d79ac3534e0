package wire

import (
	"net/url"
	"time"
)

// Time is seconds of Unix time as Anthropic's API writes them, in the form of RFC 3339.
func Time(unix int64) string { return time.Unix(unix, 0).UTC().Format(time.RFC3339) }

// Page is a part of a list in Anthropic's API.
type Page[T any] struct {
	Data    []T     `json:"data"`
	HasMore bool    `json:"has_more"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
}

// NewPage is a page of what has ids.
func NewPage[T any](data []T, more bool, id func(*T) string) Page[T] {
	p := Page[T]{Data: data, HasMore: more}
	if n := len(data); n > 0 {
		first, last := id(&data[0]), id(&data[n-1])
		p.FirstID, p.LastID = &first, &last
	}
	return p
}

// Asked is which part of a list a client wants: what follows one id, or precedes another.
type Asked struct {
	After, Before string
	Limit         int
}

// AskedPage reads the parameters of a list, of 20 unless the client says how many.
func AskedPage(q url.Values) (Asked, *Error) {
	limit, bad := QueryInt(q, "limit", 20, 1, 1000)
	a := Asked{After: q.Get("after_id"), Before: q.Get("before_id"), Limit: limit}
	if bad == nil && a.After != "" && a.Before != "" {
		bad = BadRequest("before_id", "`before_id` and `after_id` cannot be used together")
	}
	return a, bad
}
