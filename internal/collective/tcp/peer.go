package tcp

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/collective"
)

const (
	// smallBytes is the largest message that the calling goroutine sends and receives by itself.
	smallBytes = 64 << 10
	// sendShare is the part of a socket's send buffer that the calling goroutine fills with one
	// message: two messages and what the kernel needs beside the bytes surely fit.
	sendShare = 4
	// maxJobs is more than the jobs that a stream can have waiting.
	maxJobs = 8 + maxCopies
)

// peer is another rank and the stream to it.
type peer struct {
	g    *Group
	rank int
	conn net.Conn
	// tcp is the connection at the bottom, nil if it is not TCP.
	tcp *net.TCPConn
	// direct is the length of frames up to which the caller writes to the connection itself.
	direct int

	// owes is set while the peer's empty message of step owed is still to be read, wants while this
	// step's message is, which goes to in; later says that the step does not wait for it, and out is
	// what goes to the peer. They belong to the caller.
	owes    bool
	owed    step
	wants   bool
	later   bool
	in, out []byte

	// The numbers of the last messages by Send and Recv belong to the caller, and so does the number
	// of copies of messages that there are; copies holds those that are not in use.
	lastSent, lastRecv uint64
	made               int
	copies             chan []byte

	// The receiving side belongs to the caller while idle, else to the reader.
	buf     []byte
	r, w    int       // what is in buf: buf[r:w]
	until   time.Time // deadline of reads
	readErr error     // end of the stream

	jobs     chan receiveJob
	posted   uint32        // jobs given to the reader; belongs to the caller
	received atomic.Uint32 // jobs done
	held     atomic.Bool   // the reader has the stream beyond its jobs
	watching atomic.Bool   // the reader may be in a read without a deadline
	failure  atomic.Pointer[collective.WaitError]

	sends     chan sendJob
	notices   chan struct{} // the group has ended
	sent      uint32        // jobs given to the writer; belongs to the caller
	copied    atomic.Uint32 // jobs whose bytes the writer has copied
	written   atomic.Uint32 // jobs done
	stuck     atomic.Pointer[collective.WaitError]
	broken    atomic.Pointer[error]
	source    sync.Mutex // held by the writer while it reads the caller's memory
	frame     []byte     // belongs to the writer
	writing   sync.Mutex // held for each frame; guards the fields below
	writeErr  error
	notified  bool      // the abort notice is sent
	sendUntil time.Time // deadline of writes
}

func newPeer(g *Group, rank int, conn net.Conn) (*peer, error) {
	p := &peer{g: g, rank: rank, conn: conn, buf: make([]byte, 2*(headerSize+smallBytes)),
		jobs: make(chan receiveJob, maxJobs), sends: make(chan sendJob, maxJobs),
		notices: make(chan struct{}, 1), copies: make(chan []byte, maxCopies)}
	if p.tcp = bottom(conn); p.tcp == nil {
		return p, nil
	}
	if err := p.tcp.SetNoDelay(true); err != nil {
		return nil, err
	}
	size, err := p.ask(func(fd int) (int, error) {
		return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	})
	if err != nil {
		return nil, fmt.Errorf("size of send buffer: %w", err)
	}
	p.direct = size / sendShare
	return p, nil
}

// name is what errors call the rank.
func (p *peer) name() int { return p.g.names.Of(p.rank) }

// bottom finds the TCP connection below TLS and other wrappers, nil if there is none.
func bottom(c net.Conn) *net.TCPConn {
	for {
		if t, ok := c.(*net.TCPConn); ok {
			return t
		}
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = below.NetConn()
	}
}

// ask calls f with the socket.
func (p *peer) ask(f func(fd int) (int, error)) (n int, err error) {
	raw, err := p.tcp.SyscallConn()
	if err != nil {
		return 0, err
	}
	if controlErr := raw.Control(func(fd uintptr) { n, err = f(int(fd)) }); controlErr != nil {
		return 0, controlErr
	}
	return n, err
}

// tcpClosed is the state of a connection that has been reset (TCP_CLOSE in the kernel).
const tcpClosed = 7

// unsent returns how many bytes the peer's kernel has not acknowledged and still may: those of a
// connection that is no TCP connection are not known.
func (p *peer) unsent() (n int, known bool) {
	if p.tcp == nil {
		return 0, false
	}
	n, err := p.ask(func(fd int) (int, error) {
		// A reset does not set the count below to zero.
		info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO)
		if err != nil || info.State == tcpClosed {
			return 0, err
		}
		return unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	})
	return n, err == nil
}
