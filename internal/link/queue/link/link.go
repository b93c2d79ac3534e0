// Package link carries records between a driver and a remote rank over one authenticated connection
// at a time, and survives the loss of that connection.
//
// Records travel in frames: 24 bytes of header (type, flags, length, sequence number, acknowledged
// number; all little-endian) and a payload of less than 64 KiB, so that a heartbeat never waits
// behind a large record. Frames of data are numbered from 1 in each direction and kept until the
// peer acknowledges them, after its Recv has returned them: the window of unacknowledged bytes is
// at the same time the replay buffer and the flow control. When a connection is cut the worker
// dials again, both sides say in their hello what they have received, and the rest is sent again;
// neither loss nor duplication is possible. When that does not succeed within the grace time, or
// the peer is silent, or it breaks the protocol, the link is down for good and says why.
//
// No goroutine stands between a caller and the socket: Send writes and Recv reads it. Only what
// would block is written by a goroutine of the link (more than 32 KiB unacknowledged), and only
// while no caller is in Recv another one reads, so that acknowledgements, heartbeats and the end of
// the connection are seen by a rank that computes.
package link

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/status"
)

// Options are a link's limits and times. The zero value of each means its default.
type Options struct {
	// Window bounds the unacknowledged bytes of each direction, headers included: 8 MiB, at least
	// 64 KiB. The smaller one of the two ends holds.
	Window int
	// MaxRecord bounds a record in bytes, in both directions: 1 GiB.
	MaxRecord int
	// Heartbeat is the time between heartbeats: 1 s.
	Heartbeat time.Duration
	// Silence is how long nothing may be heard of the peer before the link is down: 4 s.
	Silence time.Duration
	// Grace is how long a cut connection may take to be resumed: 2 s. When negative nothing is
	// resumed.
	Grace time.Duration
	// Log receives cuts, resumptions and the link's end; nil discards.
	Log *slog.Logger
}

func (o *Options) fill() {
	if o.Window <= 0 {
		o.Window = 8 << 20
	}
	o.Window = min(max(o.Window, chunkSize), 1<<30)
	if o.MaxRecord <= 0 {
		o.MaxRecord = 1 << 30
	}
	if o.Heartbeat <= 0 {
		o.Heartbeat = time.Second
	}
	if o.Silence <= 0 {
		o.Silence = 4 * time.Second
	}
	if o.Grace == 0 {
		o.Grace = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// State is a link's condition.
type State uint8

// The states of a link.
const (
	// Up is a link with a connection.
	Up State = iota
	// Cut is a link whose connection broke and may be resumed.
	Cut
	// Down is the end.
	Down
)

// Redial makes a new connection for a worker whose old one was cut: handshake.Dial with r in its
// identity. It must end with ctx.
type Redial func(ctx context.Context, r handshake.Resume) (net.Conn, error)

// reader names the goroutine that reads the connection.
type reader uint8

const (
	noReader reader = iota
	inRecv          // a caller of Recv
	inPump          // the link's goroutine, outside Recv
	yielding        // that goroutine, asked to make way
)

// Link is one end. Send may be called from several goroutines, Recv from one at a time, everything
// else from any.
type Link struct {
	o       Options
	session handshake.Session
	redial  Redial
	start   time.Time

	sending      chan struct{} // held by the caller of Send whose record is being queued
	space        chan struct{} // tells it of room in the window
	changed      chan struct{} // tells Recv of a new connection or the end
	readerFree   chan struct{} // tells Recv that the pump has made way
	kick         chan struct{} // wakes the writer
	takeover     chan struct{} // wakes the pump
	closeWritten chan struct{} // has a value when the frame of Close is written
	soon         *time.Timer   // the writer's, for delayed acknowledgements and the pump's start

	ctx     context.Context // ends when the link is down
	cancel  context.CancelFunc
	down    chan struct{}
	running sync.WaitGroup
	own     status.Rank // of this end; heartbeats carry it once speaks is set
	speaks  atomic.Bool
	heard   atomic.Uint64 // counts reads that brought bytes

	mu    sync.Mutex
	state State
	err   error    // why the link is down
	conn  net.Conn // the newest
	gen   uint64   // counts connections
	// greeted says that the peer's hello came over conn: before that no data is replayed.
	greeted  bool
	broken   error // a failed write; what the peer sent before it went can still be read
	cause    error // of the cut
	graceEnd time.Time
	attempts int // of dialling since the last greeting

	out        outbox
	window     int  // what the two ends agreed on
	waiting    bool // a Send waits for room
	writing    bool
	scratch    []byte // control frames; belongs to the caller that set writing
	due        due
	closing    bool
	dropped    bool // Send waits no more
	reason     string
	closedSent bool

	reader       reader
	interrupted  bool   // Interrupt was called, and no Recv has ended by it yet
	recvs        uint64 // counts calls of Recv
	idleRecvs    uint64 // the count when the writer's timer last looked
	readDeadline time.Time
	buf          inbuf
	bufGen       uint64
	spare        []byte // the other buffer, while a view of the first is in use
	viewed       bool
	inbox        inbox
	record       []byte // assembled from fragments
	assembling   bool
	small        int // records since the last one that needed record

	received   uint64 // last frame of data that arrived
	consumed   uint64 // last one that Recv took
	unconsumed int    // bytes between the two
	debt       int    // bytes consumed and not acknowledged
	ackArmed   bool   // soon fires in ackDelay

	beat  beat
	stats Stats
	peer  status.Snapshot
	seen  time.Time
}

// due are the control frames to write next.
type due struct{ hello, beat, ack bool }

// beat is the state of the heartbeats.
type beat struct {
	status   status.Snapshot
	speaks   bool          // status is to be sent
	theirs   time.Duration // the peer's timestamp, not yet echoed
	theirsAt time.Time
	pending  bool
}

// Stats are figures of a link since it began.
type Stats struct {
	State State
	// Cause is why the link is cut or down, nil while it is up.
	Cause error
	// RTT is the last round trip and SmoothRTT its moving average with weight 1/8 (RFC 6298 §2), of
	// heartbeats. They include the time until the peer reads, which is up to 50 ms when it has just
	// started to compute.
	RTT, SmoothRTT time.Duration
	// BytesSent and BytesReceived count all that crossed the connections, without TLS's own.
	BytesSent, BytesReceived uint64
	// RecordsSent and RecordsReceived count whole records.
	RecordsSent, RecordsReceived uint64
	// Resumes counts connections after the first.
	Resumes uint64
	// Retransmits counts frames sent again.
	Retransmits uint64
	// Unacknowledged is the fill of the window in bytes.
	Unacknowledged int
}

// Accept makes the driver's end of a session over c, which the link then owns.
func Accept(c net.Conn, s handshake.Session, o Options) *Link { return open(c, s, nil, o) }

// Connect makes the worker's end of a session over c, which the link then owns. redial replaces c
// when it is cut.
func Connect(c net.Conn, s handshake.Session, redial Redial, o Options) *Link {
	return open(c, s, redial, o)
}

func open(c net.Conn, s handshake.Session, redial Redial, o Options) *Link {
	o.fill()
	l := &Link{o: o, session: s, redial: redial, start: time.Now(), conn: c, gen: 1, bufGen: 1,
		sending: make(chan struct{}, 1), space: make(chan struct{}, 1),
		changed: make(chan struct{}, 1), readerFree: make(chan struct{}, 1),
		kick: make(chan struct{}, 1), takeover: make(chan struct{}, 1),
		closeWritten: make(chan struct{}, 1), down: make(chan struct{}), window: chunkSize,
		soon: time.NewTimer(time.Hour)}
	l.soon.Stop()
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.due = due{hello: true, beat: true}
	l.running.Go(l.writer)
	l.running.Go(l.pump)
	l.running.Go(l.watch)
	signal(l.kick)
	return l
}

// signal wakes the one goroutine that waits on c, or the next one that will.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Status returns where this end publishes what it is doing. From the first call on heartbeats carry
// it.
func (l *Link) Status() *status.Rank {
	l.speaks.Store(true)
	return &l.own
}

// PeerStatus returns the status of the peer's last heartbeat and when it came, a zero time for
// never.
func (l *Link) PeerStatus() (status.Snapshot, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peer, l.seen
}

// Stats returns the link's figures.
func (l *Link) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.State, s.Unacknowledged = l.state, l.out.bytes
	switch l.state {
	case Cut:
		s.Cause = l.cause
	case Down:
		s.Cause = l.err
	}
	return s
}

// Down is closed when the link is down.
func (l *Link) Down() <-chan struct{} { return l.down }

// Err returns why the link is down, nil before.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Session returns the session that the link's connections share.
func (l *Link) Session() handshake.Session { return l.session }
