// Package rpc gives the calls of a driver to its ranks types: a Method is a name with the type of
// its arguments and of its result, which both sides use. The records that carry a call are
// queue.Call and queue.Reply; arguments and results travel in them as JSON.
package rpc

import (
	"encoding/json"
	"fmt"
)

// Method is a call that ranks know.
type Method[Args, Result any] struct {
	// Name is what records and errors call it.
	Name string
}

// None are the arguments of a method that has none, or the result of one that returns nothing: no
// bytes.
type None struct{}

// Raw are bytes that travel as they are.
type Raw []byte

// Encode encodes the arguments or the result of a method.
func Encode[T any](v T) ([]byte, error) {
	switch v := any(v).(type) {
	case None:
		return nil, nil
	case Raw:
		return v, nil
	}
	return json.Marshal(v)
}

// Decode is the inverse of Encode. No bytes are the zero value; a Raw is a view of b.
func Decode[T any](b []byte) (v T, err error) {
	switch p := any(&v).(type) {
	case *None:
		return v, nil
	case *Raw:
		*p = b
		return v, nil
	}
	if len(b) == 0 {
		return v, nil
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("decode %T: %w", v, err)
	}
	return v, nil
}

// DecodeAll decodes the results of all ranks.
func DecodeAll[T any](results [][]byte) ([]T, error) {
	list := make([]T, len(results))
	for rank, b := range results {
		var err error
		if list[rank], err = Decode[T](b); err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	return list, nil
}
