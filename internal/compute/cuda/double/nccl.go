package double

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// NCCL is the library without GPUs: ranks of one machine exchange over sockets, to which the first
// one makes the way. Like NCCL it has a rank wait for one that has died until it is aborted.
type NCCL struct {
	// Release is its version; 0 is NCCLRelease.
	Release int
	// Fail, if not nil, is asked before each call, by its name in NCCL.
	Fail func(call string) error

	mu   sync.Mutex
	made map[driver.CommID]net.Listener
}

// NCCLRelease is the version of the library, unless a test wants another.
const NCCLRelease = 22703

// Version implements driver.NCCL.
func (n *NCCL) Version() int {
	if n.Release != 0 {
		return n.Release
	}
	return NCCLRelease
}

func (n *NCCL) fails(call string) error {
	if n.Fail == nil {
		return nil
	}
	return n.Fail(call)
}

// ID implements driver.NCCL.
func (n *NCCL) ID(bool) (id driver.CommID, err error) {
	if err := n.fails("ncclGetUniqueId"); err != nil {
		return id, err
	}
	copy(id[:], "@eagleray-double-"+rand.Text()) // a socket without a file
	l, err := net.Listen("unix", address(id))
	if err != nil {
		return id, fmt.Errorf("ncclGetUniqueId: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.made == nil {
		n.made = map[driver.CommID]net.Listener{}
	}
	n.made[id] = l
	return id, nil
}

// address is where the ranks of an ID meet.
func address(id driver.CommID) string {
	at := 0
	for id[at] != 0 {
		at++
	}
	return string(id[:at])
}

// Join implements driver.NCCL.
func (n *NCCL) Join(ctx context.Context, c driver.Context, id driver.CommID, rank, size int,
	_ bool) (driver.Communicator, error) {
	const call = "ncclCommInitRankConfig"
	if err := n.fails(call); err != nil {
		return nil, err
	}
	x := &communicator{c: c.(*Context), n: n, rank: rank, size: size, aborted: make(chan struct{}),
		free: make(chan struct{}), others: make([]net.Conn, size)}
	defer context.AfterFunc(ctx, x.Abort)()
	if err := x.meet(ctx, id); err != nil {
		x.Abort()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	return x, nil
}

// communicator is a rank's. Others are its connections: the first one has some to all, the others
// to that one.
type communicator struct {
	c          *Context
	n          *NCCL
	rank, size int

	mu      sync.Mutex
	over    bool
	others  []net.Conn
	aborted chan struct{}
	graphs  int           // how many calls graphs have
	free    chan struct{} // closed when it is over, and they have none
}

func (x *communicator) meet(ctx context.Context, id driver.CommID) error {
	if x.rank > 0 {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", address(id))
		if err != nil {
			return err
		}
		if err := x.add(0, conn); err != nil {
			return err
		}
		_, err = conn.Write([]byte{byte(x.rank)})
		return errors.Join(err, x.agree())
	}
	x.n.mu.Lock()
	l := x.n.made[id]
	delete(x.n.made, id)
	x.n.mu.Unlock()
	if l == nil {
		return errors.New("another process made the ID")
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for range x.size - 1 {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		var rank [1]byte
		if _, err := io.ReadFull(conn, rank[:]); err != nil {
			return errors.Join(err, conn.Close())
		}
		if err := x.add(int(rank[0]), conn); err != nil {
			return err
		}
	}
	return x.agree()
}

// add has Abort close a connection.
func (x *communicator) add(rank int, conn net.Conn) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over || rank >= x.size || x.others[rank] != nil {
		return errors.Join(fmt.Errorf("rank %d is not waited for", rank), conn.Close())
	}
	x.others[rank] = conn
	return nil
}

// agree waits until all ranks are there.
func (x *communicator) agree() error {
	return x.exchange(make([]byte, x.size), []byte{1})
}

// AllGather implements driver.Communicator.
func (x *communicator) AllGather(dst, src driver.Ptr, floats int, s driver.Stream) error {
	return x.ask(work{call: "ncclAllGather", dst: dst, src: src, bytes: uint64(4 * floats)}, s)
}

// AllToAll implements driver.Communicator.
func (x *communicator) AllToAll(dst, src driver.Ptr, floats int, s driver.Stream) error {
	return x.ask(work{call: "ncclSend", dst: dst, src: src, bytes: uint64(4 * floats * x.size),
		divided: true}, s)
}

func (x *communicator) ask(w work, s driver.Stream) error {
	select {
	case <-x.aborted:
		return nil
	default:
	}
	if err := x.n.fails(w.call); err != nil {
		return err
	}
	w.gather = x
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	return x.c.enqueue(w, s)
}

// recorded counts calls that graphs have, or have no more.
func (x *communicator) recorded(calls int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.graphs += calls
	x.endFree()
}

func (x *communicator) endFree() {
	if x.over && x.graphs == 0 {
		select {
		case <-x.free:
		default:
			close(x.free)
		}
	}
}

// do is a call whose turn has come.
func (x *communicator) do(w *work) error {
	own := make([]byte, w.bytes)
	if err := x.c.memory.Read(own, uint64(w.src)); err != nil {
		return err
	}
	all := make([]byte, x.size*len(own))
	if err := x.exchange(all, own); err != nil {
		<-x.aborted
		for i := range all {
			all[i] = 0xff // no numbers
		}
	}
	if w.divided { // all have their parts for all; those for this one stay
		part := len(own) / x.size
		for r := range x.size {
			copy(own[r*part:(r+1)*part], all[r*len(own)+x.rank*part:])
		}
		all = own
	}
	return x.c.memory.Write(uint64(w.dst), all)
}

// exchange makes all what all ranks have, in their order.
func (x *communicator) exchange(all, own []byte) error {
	n := len(own)
	copy(all[x.rank*n:], own)
	if x.rank > 0 {
		if _, err := x.others[0].Write(own); err != nil {
			return err
		}
		_, err := io.ReadFull(x.others[0], all)
		return err
	}
	for r := 1; r < x.size; r++ {
		if _, err := io.ReadFull(x.others[r], all[r*n:(r+1)*n]); err != nil {
			return err
		}
	}
	for r := 1; r < x.size; r++ {
		if _, err := x.others[r].Write(all); err != nil {
			return err
		}
	}
	return nil
}

// Failed implements driver.Communicator.
func (x *communicator) Failed() error { return x.n.fails("ncclCommGetAsyncError") }

// Abort implements driver.Communicator.
func (x *communicator) Abort() {
	x.mu.Lock()
	if !x.over {
		x.over = true
		close(x.aborted)
		for _, conn := range x.others {
			if conn != nil {
				conn.Close()
			}
		}
		x.endFree()
	}
	x.mu.Unlock()
	<-x.free
}
