package tcp

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/collective"
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
	tcp    *net.TCPConn
	socket *socket
	only   [1]*peer // this one
	// quiet says that operations leave the rank out.
	quiet bool
	// direct is the length of frames up to which the caller writes to the connection itself.
	direct int

	// owes is set while the peer's empty message of step owed is still to be read, wants while its
	// message of step now is, which goes to in; later says that the step does not wait for it, and
	// out is what goes to the peer. They belong to the caller.
	owes    bool
	owed    step
	wants   bool
	now     step
	later   bool
	in, out []byte
	long    bool // the last run from the peer was

	// The numbers of the last messages by Send and Recv belong to the caller, and so does the
	// number of copies of messages that there are; copies holds those that are not in use.
	lastSent, lastRecv uint64
	made               int
	copies             chan []byte

	// The receiving side belongs to the caller while idle, else to the reader.
	buf     []byte
	run     []byte    // of an all-to-all, if the reader has received it
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
	bulky     bool          // a long message may still be in the socket; belongs to the caller
	stuck     atomic.Pointer[collective.WaitError]
	broken    atomic.Pointer[error]
	source    sync.Mutex // held by the writer while it reads the caller's memory
	frame     []byte     // belongs to the writer
	writing   sync.Mutex // held for each frame; guards the fields below
	writeErr  error
	notified  bool      // the abort notice is sent
	sendUntil time.Time // deadline of writes
	parts     [2][]byte // of a frame
	buffers   net.Buffers
}

func newPeer(g *Group, rank int, conn net.Conn) (*peer, error) {
	p := &peer{g: g, rank: rank, conn: conn, buf: make([]byte, 2*(headerSize+smallBytes)),
		jobs: make(chan receiveJob, maxJobs), sends: make(chan sendJob, maxJobs),
		notices: make(chan struct{}, 1), copies: make(chan []byte, maxCopies)}
	p.only[0] = p
	if p.tcp = bottom(conn); p.tcp == nil {
		return p, nil
	}
	if err := p.tcp.SetNoDelay(true); err != nil {
		return nil, err
	}
	var err error
	if p.socket, err = newSocket(p.tcp); err != nil {
		return nil, err
	}
	size, err := p.socket.sendBuffer()
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

// tcpClosed is the state of a connection that has been reset (TCP_CLOSE in the kernel).
const tcpClosed = 7

// socket asks the kernel about a connection. It is made once, since a function that is passed to a
// connection is allocated.
type socket struct {
	raw   syscall.RawConn
	count func(fd uintptr) // sets n and err
	n     int
	err   error
}

func newSocket(c *net.TCPConn) (*socket, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{raw: raw}
	s.count = func(fd uintptr) { s.n, s.err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }
	return s, nil
}

// sendBuffer is the size of the socket's send buffer.
func (s *socket) sendBuffer() (size int, err error) {
	controlErr := s.raw.Control(func(fd uintptr) {
		size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	})
	return size, errors.Join(controlErr, err)
}

// queued returns how many bytes the peer's kernel has not acknowledged. It belongs to the caller.
func (s *socket) queued() (n int, known bool) {
	if s.raw.Control(s.count) != nil {
		return 0, false
	}
	return s.n, s.err == nil
}

// reset reports whether the connection will bring nothing any more.
func (s *socket) reset() (reset bool) {
	err := s.raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
		reset = err != nil || info.State == tcpClosed
	})
	return reset || err != nil
}

// unsent reports whether there are bytes that the peer's kernel has not acknowledged and still may.
func (p *peer) unsent() bool {
	if p.socket == nil {
		return false
	}
	// A reset does not set the count to zero.
	n, known := p.socket.queued()
	return known && n > 0 && !p.socket.reset()
}
