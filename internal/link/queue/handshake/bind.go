package handshake

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"syscall"
)

// bind opens the listeners that the options ask for.
func (l *Listener) bind() error {
	if l.o.Unix {
		var b [16]byte
		rand.Read(b[:])
		l.endpoint.Unix = "eagleray-" + hex.EncodeToString(b[:])
		u, err := net.Listen("unix", "@"+l.endpoint.Unix)
		if err != nil {
			return fmt.Errorf("handshake: %w", err)
		}
		l.listeners = append(l.listeners, u)
	}
	if l.o.TCP == "" {
		return nil
	}
	t, err := bindTCP(l.o.TCP, l.o.PortRange)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	l.listeners = append(l.listeners, t)
	l.endpoint.TCP = t.Addr().String()
	cert, fingerprint, err := Certificate(l.o.Instance)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	l.endpoint.Fingerprint, l.config = fingerprint, ServerTLS(cert)
	return nil
}

// bindTCP binds one named address and keeps it: no port is probed first and bound later.
func bindTCP(address string, ports [2]int) (net.Listener, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		name, port = address, "0"
		if n := len(name); n > 2 && name[0] == '[' && name[n-1] == ']' {
			name = name[1 : n-1]
		}
	}
	a, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(name, port))
	if err != nil {
		return nil, fmt.Errorf("listen at %q: %w", address, err)
	}
	if name == "" || a.IP == nil || a.IP.IsUnspecified() {
		return nil, fmt.Errorf("listen at %q: that is every interface: name one address of this "+
			"node", address)
	}
	if a.Port != 0 || ports == [2]int{} {
		b, err := net.ListenTCP("tcp", a)
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	first, last := ports[0], ports[1]
	if first < 1 || last > 65535 || first > last {
		return nil, fmt.Errorf("listen at %q: port range %d-%d", address, first, last)
	}
	// Engines that start at once begin at different ports, so that they do not walk the range in
	// step.
	n := last - first + 1
	start := mathrand.IntN(n)
	for i := range n {
		a.Port = first + (start+i)%n
		var b net.Listener
		if b, err = net.ListenTCP("tcp", a); err == nil {
			return b, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("listen at %s: no free port in %d-%d: %w", name, first, last, err)
}
