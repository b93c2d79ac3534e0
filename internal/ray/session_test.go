package ray

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A call in the moment between the end of the connection and the reason for it waits for the
// reason.
func TestCallAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &session{gone: make(chan struct{}), err: ErrGone}
		go func() {
			time.Sleep(time.Second)
			close(s.gone)
		}()
		if err := s.call(t.Context(), "nodes", nil, nil); !errors.Is(err, ErrGone) {
			t.Errorf("got %v", err)
		}
	})
}
