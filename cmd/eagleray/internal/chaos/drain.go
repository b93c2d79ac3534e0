package chaos

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// stopInDrain asks the server to end while a rank is stopped, for longer than the server takes to call it
// stalled: streams that have begun go on once it does. Then the server is started again.
func stopInDrain(v *victim) error {
	v.asked.rest.Lock()
	defer v.asked.rest.Unlock()
	pid, err := v.one()
	if err != nil {
		return err
	}
	p := v.s.now()
	if err := send(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	p.ask()
	select {
	case <-p.draining:
		time.Sleep(stall + stall/2)
	case <-p.ended:
	case <-time.After(patience):
		err = fmt.Errorf("the server does not say that it ends: %s", v.s.last())
	}
	if err = errors.Join(err, send(pid, syscall.SIGCONT), v.s.wait(p)); err != nil {
		return err
	}
	return v.s.start(v.ctx)
}
