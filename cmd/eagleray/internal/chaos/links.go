package chaos

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// socket is one of another process, opened here too (pidfd_getfd): what is done to it is done to
// the other's.
type socket int

func (s socket) close() { _ = unix.Close(int(s)) }

// connections are the server's TCP sockets that its ranks come to: the one that listens, and those
// of the ranks, once there is one: the fault before may have cut them. The caller closes them.
func (s *server) connections() (listener socket, ranks []socket, err error) {
	for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		listener, ranks, err = s.connected()
		if !errors.Is(err, errUnconnected) || time.Now().After(until) {
			return listener, ranks, err
		}
	}
}

var errUnconnected = errors.New("the server has no connections to ranks")

// connected is connections at this moment.
func (s *server) connected() (listener socket, ranks []socket, err error) {
	base, err := url.Parse(s.now().url)
	if err != nil {
		return -1, nil, err
	}
	http, err := strconv.Atoi(base.Port())
	if err != nil {
		return -1, nil, err
	}
	all, err := sockets(s.pid())
	if err != nil {
		return -1, nil, err
	}
	listener = -1
	port := 0
	for _, c := range all {
		listens, _ := unix.GetsockoptInt(int(c), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if listens == 1 && localPort(c) != http {
			listener, port = c, localPort(c)
		}
	}
	for _, c := range all {
		switch {
		case c == listener:
		case localPort(c) == port && port != 0:
			ranks = append(ranks, c)
		default:
			c.close()
		}
	}
	if len(ranks) > 0 {
		return listener, ranks, nil
	}
	if listener >= 0 {
		listener.close()
	}
	return -1, nil, errUnconnected
}

// sockets are the TCP sockets of a process. The caller closes them.
func sockets(pid int) (all []socket, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd of process %d: %w", pid, err)
	}
	defer unix.Close(process)
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		own, err := unix.PidfdGetfd(process, fd, 0)
		if errors.Is(err, unix.EBADF) {
			continue // closed meanwhile
		}
		if err != nil {
			return all, fmt.Errorf("open a socket of process %d: %w", pid, err)
		}
		if localPort(socket(own)) == 0 {
			_ = unix.Close(own)
			continue
		}
		all = append(all, socket(own))
	}
	return all, nil
}

// localPort is the port of a TCP socket of IPv4 or IPv6, 0 for anything else.
func localPort(s socket) int {
	address, err := unix.Getsockname(int(s))
	if err != nil {
		return 0
	}
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return a.Port
	case *unix.SockaddrInet6:
		return a.Port
	}
	return 0
}

// deafen lets nothing through to a socket any more: what the other end sends is dropped, and not
// acknowledged.
func (s socket) deafen() error {
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	return unix.SetsockoptSockFprog(int(s), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &drop})
}

func (s socket) hear() error {
	return unix.SetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
}

// cut cuts the connections of all ranks, and lets none be made again for a while.
func (v *victim) cut(d time.Duration) error {
	listener, ranks, err := v.s.connections()
	if err != nil {
		return err
	}
	defer listener.close()
	if d > 0 {
		if err := listener.deafen(); err != nil {
			return fmt.Errorf("deafen the listener: %w", err)
		}
		defer func() { _ = listener.hear() }()
	}
	for _, c := range ranks {
		err = errors.Join(err, unix.Shutdown(int(c), unix.SHUT_RDWR))
		c.close()
	}
	time.Sleep(d)
	return err
}

// halfOpen takes what one rank sends from the network, and waits until the server does without that
// connection, which stays up: tokens may come all the while, when they are another rank's.
func halfOpen(v *victim) error {
	listener, ranks, err := v.s.connections()
	if err != nil {
		return err
	}
	listener.close()
	before := len(v.s.recoveries())
	err = ranks[v.rng.IntN(len(ranks))].deafen()
	for _, c := range ranks {
		c.close()
	}
	for until := time.Now().Add(patience); err == nil && len(v.s.recoveries()) == before; {
		if time.Now().After(until) {
			err = fmt.Errorf("the server does not notice: %s", v.s.last())
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}
