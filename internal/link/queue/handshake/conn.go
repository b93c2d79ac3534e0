package handshake

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/sys/memfile"
)

// Conn is an authenticated connection. Nothing was read beyond the handshake.
type Conn struct {
	net.Conn
	// Peer is what the worker said of itself; at the worker only its Instance is set.
	Peer Identity
	// Session is the connection's session: new, or the resumed one.
	Session Session
	// Local says that the peer is on this host, proven by the unix socket that connects the two.
	Local bool
}

// NetConn returns the connection below, as (*tls.Conn).NetConn does.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// socketOf is the connection at the bottom.
func socketOf(c net.Conn) net.Conn {
	for {
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = below.NetConn()
	}
}

// ended says that the peer has closed the connection, or was reset.
func (c *Conn) ended() (yes bool) {
	raw, err := socketOf(c).(syscall.Conn).SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		yes = err == nil && n > 0
	})
	return yes || err != nil
}

// ErrNoPassing says that no file can be passed over this connection, or that none arrived. The
// stream is intact and both sides know: they go on without the file.
var ErrNoPassing = errors.New("handshake: connection cannot pass a file")

// passing bounds the exchange of one file.
const passing = 10 * time.Second

// The bytes of that exchange: the file comes with offer (or nothing comes, with none), and the
// receiver answers.
const (
	offer  = 'F'
	none   = 'N'
	taken  = 'Y'
	failed = 'X'
)

// SendFile passes a descriptor of f to the peer, which must be in RecvFile, and waits for its
// answer; f stays open here. It must not run beside other reads or writes, and leaves no deadline
// set. Over a connection that is not Local, or when either kernel refuses, both sides get
// ErrNoPassing.
func (c *Conn) SendFile(f *os.File) error {
	u, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return ErrNoPassing
	}
	u.SetDeadline(time.Now().Add(passing))
	defer u.SetDeadline(time.Time{})

	var sent error
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("pass file %s: %w", f.Name(), err)
	}
	if err := raw.Control(func(fd uintptr) {
		_, _, sent = u.WriteMsgUnix([]byte{offer}, unix.UnixRights(int(fd)), nil)
	}); err != nil {
		return fmt.Errorf("pass file %s: %w", f.Name(), err)
	}
	var errno syscall.Errno
	switch {
	case sent == nil:
	case errors.As(sent, &errno) && errno != unix.EPIPE && errno != unix.ECONNRESET:
		// The kernel would not pass it (seccomp, a limit on descriptors in flight): the stream
		// still works.
		if _, err := u.Write([]byte{none}); err != nil {
			return fmt.Errorf("pass file %s: %w", f.Name(), err)
		}
	default:
		return fmt.Errorf("pass file %s: %w", f.Name(), sent)
	}
	var answer [1]byte
	if _, err := u.Read(answer[:]); err != nil {
		return fmt.Errorf("pass file %s: read answer: %w", f.Name(), err)
	}
	switch {
	case answer[0] == taken && sent == nil:
		return nil
	case answer[0] == failed && sent == nil:
		return fmt.Errorf("%w: the peer received no descriptor", ErrNoPassing)
	case answer[0] == failed:
		return fmt.Errorf("%w: %w", ErrNoPassing, sent)
	}
	return refuse(Malformed, "answer %q to a passed file", answer[0])
}

// RecvFile receives the file that the peer passes with SendFile. The caller owns it.
func (c *Conn) RecvFile() (*os.File, error) {
	u, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return nil, ErrNoPassing
	}
	u.SetDeadline(time.Now().Add(passing))
	defer u.SetDeadline(time.Time{})

	var b [1]byte
	control := make([]byte, unix.CmsgSpace(4*4)) // room to see that a peer passes more than one
	n, controlled, _, _, err := u.ReadMsgUnix(b[:], control)
	if err != nil {
		return nil, fmt.Errorf("receive file: %w", err)
	}
	files := memfile.Passed(control[:controlled])
	discard := func() {
		for _, fd := range files {
			unix.Close(fd)
		}
	}
	if n != 1 || (b[0] != offer && b[0] != none) || len(files) > 1 {
		discard()
		return nil, refuse(Malformed, "%q with %d descriptors instead of one file", b[:n],
			len(files))
	}
	answer := byte(taken)
	if b[0] == none || len(files) == 0 {
		answer = failed
	}
	if _, err := u.Write([]byte{answer}); err != nil {
		discard()
		return nil, fmt.Errorf("receive file: answer: %w", err)
	}
	if answer == failed {
		discard()
		return nil, ErrNoPassing
	}
	return os.NewFile(uintptr(files[0]), "passed"), nil
}

// PeerPID is the peer's process in this process's PID namespace; 0 when it has none there or is not
// Local.
func (c *Conn) PeerPID() int {
	u, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	cred, err := credentials(u)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

// checkUser refuses a unix socket whose peer runs neither as this user nor as root.
func checkUser(u *net.UnixConn) error {
	cred, err := credentials(u)
	if err != nil {
		return fmt.Errorf("peer credentials: %w", err)
	}
	if !sameUser(cred.Uid, uint32(os.Getuid())) {
		return refuse(Foreign, "process %d of user %d, this is user %d", cred.Pid, cred.Uid,
			os.Getuid())
	}
	return nil
}

// credentials are those of the process that made the peer's end of a unix socket, as this one sees
// them (SO_PEERCRED, unix(7)).
func credentials(u *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var got error
	if err := raw.Control(func(fd uintptr) {
		cred, got = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, got
}

func sameUser(peer, own uint32) bool { return peer == own || peer == 0 }
