package fleetbench

import (
	"io"
	"net"
	"slices"
	"time"
)

// loopbackTrips is how many round trips a measurement makes.
const loopbackTrips = 2000

// loopback measures how long a byte takes from one goroutine of this process to another over TCP:
// half of the median round trip.
func loopback() (time.Duration, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return 0, err
	}
	near, err := l.Accept()
	if err != nil {
		far.Close()
		return 0, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(far, far)
	}()
	defer func() {
		near.Close()
		<-ended
		far.Close()
	}()
	took := make([]time.Duration, 0, loopbackTrips)
	b := []byte{1}
	for range loopbackTrips {
		began := now()
		if _, err := near.Write(b); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(near, b); err != nil {
			return 0, err
		}
		took = append(took, now()-began)
	}
	slices.Sort(took)
	return took[len(took)/2] / 2, nil
}
