package queuebench

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/fanin"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/queue/link"
	"github.com/eagleray/eagleray/internal/sys/memfile"
)

// linkTransport is the queue between hosts, over loopback: TCP with TLS 1.3.
type linkTransport struct{}

// invitation is what a reader needs to join; it is passed in a memory file.
type invitation struct {
	Endpoint handshake.Endpoint
	Token    string
}

func (linkTransport) listen(readers int) (driverEnd, []*os.File, error) {
	token := handshake.NewToken()
	l, err := handshake.Listen(handshake.Options{Instance: handshake.NewInstance(), Token: token,
		World: readers, TCP: "127.0.0.1"})
	if err != nil {
		return nil, nil, err
	}
	f, err := memoryFile("eagleray-invitation", invitation{l.Endpoint(), token.Reveal()})
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return &linkDriver{listener: l, readers: readers, file: f}, []*os.File{f}, nil
}

func (linkTransport) join(descriptor, rank int) (queue.Port, error) {
	var inv invitation
	if err := readMemoryFile(os.NewFile(uintptr(descriptor), "invitation"), &inv); err != nil {
		return nil, err
	}
	token, err := handshake.ParseToken(inv.Token)
	if err != nil {
		return nil, err
	}
	id := handshake.Identity{Instance: inv.Endpoint.Instance, Rank: rank, PID: os.Getpid()}
	ctx, cancel := context.WithTimeout(context.Background(), joinTimeout)
	defer cancel()
	conn, err := handshake.Dial(ctx, inv.Endpoint, token, id)
	if err != nil {
		return nil, err
	}
	return linkReader{link.Connect(conn, conn.Session,
		func(context.Context, handshake.Resume) (net.Conn, error) {
			return nil, errors.New("a benchmark does not go on after a cut")
		}, link.Options{})}, nil
}

const joinTimeout = 20 * time.Second

// memoryFile makes a memory file that holds v as JSON.
func memoryFile(name string, v any) (*os.File, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	f, err := memfile.Create(name, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(raw); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// readMemoryFile reads what memoryFile wrote. The offset of the file is shared by all who were
// given it.
func readMemoryFile(f *os.File, v any) error {
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	raw, err := io.ReadAll(io.NewSectionReader(f, 0, info.Size()))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, v)
}

// linkDriver admits the readers at the first call.
type linkDriver struct {
	listener *handshake.Listener
	readers  int
	file     *os.File

	once sync.Once
	mu   sync.Mutex
	hub  *fanin.Hub
	err  error
}

func (d *linkDriver) admit() error {
	d.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), joinTimeout)
		defer cancel()
		links := make([]*link.Link, d.readers)
		for range links {
			conn, err := d.listener.Accept(ctx)
			if err != nil {
				d.err = err
				return
			}
			links[conn.Peer.Rank] = link.Accept(conn, conn.Session, link.Options{})
		}
		d.mu.Lock()
		d.hub = fanin.New(nil, links)
		d.mu.Unlock()
	})
	return d.err
}

func (d *linkDriver) Send(record []byte, until time.Time) error {
	if err := d.admit(); err != nil {
		return err
	}
	return d.hub.Send(record, until)
}

func (d *linkDriver) Recv(until time.Time) (int, []byte, error) {
	if err := d.admit(); err != nil {
		return 0, nil, err
	}
	return d.hub.Recv(until)
}

func (d *linkDriver) Close() error {
	d.mu.Lock()
	h := d.hub
	d.mu.Unlock()
	err := d.listener.Close()
	if h != nil {
		err = errors.Join(err, h.Close())
	}
	if closed := d.file.Close(); !errors.Is(closed, os.ErrClosed) {
		err = errors.Join(err, closed)
	}
	return err
}

type linkReader struct{ *link.Link }

func (r linkReader) Close() error { return r.Link.Close("the benchmark is over") }
