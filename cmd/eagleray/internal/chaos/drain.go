package chaos

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// stopInDrain asks the server to end while a rank is stopped: for longer than the server takes to
// call it stalled, or for good, so that another one must take its place. Streams that have begun go
// on all the same. Then the server is started again.
func stopInDrain(v *victim) error {
	v.asked.rest.Lock()
	defer v.asked.rest.Unlock()
	pid, err := v.one()
	if err != nil {
		return err
	}
	continues := v.rng.IntN(2) == 0
	p := v.s.now()
	if err := send(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	p.ask()
	select {
	case <-p.draining:
		if continues {
			time.Sleep(stall + stall/2)
			err = send(pid, syscall.SIGCONT)
		}
	case <-p.ended:
	case <-time.After(patience):
		err = errors.Join(fmt.Errorf("the server does not say that it ends: %s", v.s.last()),
			send(pid, syscall.SIGCONT))
	}
	if err = errors.Join(err, v.s.wait(p)); err != nil {
		return err
	}
	return v.s.start(v.ctx)
}
