package wire

import (
	"net/url"
	"strconv"
)

// QueryInt returns an integer parameter of a URL within bounds.
func QueryInt(q url.Values, name string, otherwise, low, high int) (int, *Error) {
	if !q.Has(name) {
		return otherwise, nil
	}
	v, err := strconv.Atoi(q.Get(name))
	if err != nil || v < low || v > high {
		return 0, BadRequest(name, "`%s` must be an integer between %d and %d, got %q", name, low,
			high, Clip(q.Get(name)))
	}
	return v, nil
}

// QueryBool returns a boolean parameter of a URL, false if it is not there.
func QueryBool(q url.Values, name string) (bool, *Error) {
	switch text := q.Get(name); text {
	case "true", "1":
		return true, nil
	case "false", "0", "":
		return false, nil
	default:
		return false, BadRequest(name, "`%s` must be true or false, got %q", name, Clip(text))
	}
}
