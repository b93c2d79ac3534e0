package batch

import (
	"errors"
	"fmt"
	"net/http"
	"syscall"

	"github.com/eagleray/eagleray/internal/ops/store"
)

// Error is what a client is told.
type Error struct {
	// Status is the one of HTTP.
	Status int
	// Param is the field at fault, "" for none.
	Param, Message string
}

func (e *Error) Error() string { return e.Message }

func refuse(status int, param, format string, args ...any) *Error {
	return &Error{status, param, fmt.Sprintf(format, args...)}
}

// noRoom is whether a disk is full, or a share of it.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// told gives errors of the disk and the store their status; others are the server's own.
func told(err error) error {
	switch {
	case noRoom(err), errors.Is(err, store.ErrFull):
		return &Error{http.StatusInsufficientStorage, "", "the server's store has no room: " +
			"delete files, or try again later"}
	case errors.Is(err, store.ErrInUse), errors.Is(err, store.ErrClosed):
		return &Error{http.StatusServiceUnavailable, "", "the server's store is not open: " +
			"try again later"}
	}
	return err
}
