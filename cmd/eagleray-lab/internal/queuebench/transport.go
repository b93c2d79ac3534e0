package queuebench

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/ring"
)

// transport makes the two ends of a queue.
type transport interface {
	// listen makes the driver's end. The files are passed to every reader.
	listen(readers int) (driverEnd, []*os.File, error)
	// join makes a reader's end in its process, where the first of the files has the given
	// descriptor.
	join(descriptor, rank int) (queue.Port, error)
	// newFloor makes the driver's side of the floor, openFloor a reader's with what the driver's
	// gave.
	newFloor(o Options) (floor, error)
	openFloor(given *os.File, replySize, size int) (floor, error)
}

// driverEnd sends to all readers and receives from any. Records received are valid until the next
// Recv. Close ends waits and may be called at any time.
type driverEnd interface {
	Send(record []byte, until time.Time) error
	Recv(until time.Time) (rank int, record []byte, err error)
	Close() error
}

func newTransport(name string) (transport, error) {
	switch name {
	case "ring":
		return ringTransport{}, nil
	case "link":
		return linkTransport{}, nil
	}
	return nil, fmt.Errorf("transport %q is not known", name)
}

type ringTransport struct{}

func (ringTransport) listen(readers int) (driverEnd, []*os.File, error) {
	s, err := ring.Create(ring.Options{Ranks: readers})
	if err != nil {
		return nil, nil, err
	}
	return s.Driver(), []*os.File{s.File()}, nil
}

func (ringTransport) join(descriptor, rank int) (queue.Port, error) {
	f := os.NewFile(uintptr(descriptor), "ring")
	r, err := ring.Map(f, rank)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, f.Close()
}

func (ringTransport) newFloor(Options) (floor, error) { return newFutexFloor() }

func (ringTransport) openFloor(given *os.File, _, _ int) (floor, error) {
	return openFutexFloor(given)
}
