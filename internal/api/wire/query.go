package openai

import (
	"net/url"
	"strconv"
)

// queryInt returns an integer parameter of a URL within bounds.
func queryInt(q url.Values, name string, otherwise, low, high int) (int, *apiError) {
	if !q.Has(name) {
		return otherwise, nil
	}
	v, err := strconv.Atoi(q.Get(name))
	if err != nil || v < low || v > high {
		return 0, badRequest(name, "`%s` must be an integer between %d and %d, got %q", name, low,
			high, clip(q.Get(name)))
	}
	return v, nil
}

// queryBool returns a boolean parameter of a URL, false if it is not there.
func queryBool(q url.Values, name string) (bool, *apiError) {
	switch text := q.Get(name); text {
	case "true", "1":
		return true, nil
	case "false", "0", "":
		return false, nil
	default:
		return false, badRequest(name, "`%s` must be true or false, got %q", name, clip(text))
	}
}
