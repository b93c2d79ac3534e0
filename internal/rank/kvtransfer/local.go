package kvtransfer

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/sys/memfile"
	"golang.org/x/sys/unix"
)

// A local connection is for two processes of one host: a socket of the abstract namespace, and
// memory that the one that dials has made and passed with the first byte. What is said on it is
// what is said over TCP, in TLS with the same certificate; only the bytes of blocks go through the
// memory. It has several parts that are filled in turn. The one that fills says over the connection
// how much is in the next part, the other one when it has copied that out, so whatever ends a
// connection ends a wait. Neither the memory (memfd) nor the socket has a name in a file system:
// both vanish with the processes that hold them.

// localParts are the parts of the memory, of localPart bytes: small enough for the processor's
// cache, large enough that the words about them cost nothing beside.
const (
	localParts = 4
	localPart  = 256 << 10
)

// localPatience bounds the start of a local connection: then it is TCP.
const localPatience = 2 * time.Second

// socketName is the abstract socket of a name in an Address. Others' sockets cannot be named by it.
func socketName(name string) (string, error) {
	if raw, err := hex.DecodeString(name); err != nil || len(raw) != 16 {
		return "", fmt.Errorf("%.40q is no name of a local socket", name)
	}
	return "@eagleray-kv-" + name, nil
}

// listenLocal listens at a socket of a random name.
func listenLocal() (l *net.UnixListener, name string, err error) {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	name = hex.EncodeToString(random[:])
	at, err := socketName(name)
	if err != nil {
		return nil, "", err
	}
	l, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: at})
	return l, name, err
}

// segment is the memory of a local connection.
type segment struct {
	file *os.File
	data []byte
}

// newSegment makes memory whose size cannot be changed.
func newSegment() (*segment, error) {
	f, err := memfile.Create("eagleray-kv", localParts*localPart)
	if err != nil {
		return nil, err
	}
	s := &segment{file: f}
	if err = memfile.Seal(f); err == nil {
		err = s.mapIn()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// mapSegment maps memory that a peer has passed. It rejects memory that is not sealed against
// shrinking: a peer that truncates it would kill this process with SIGBUS.
func mapSegment(fd int) (*segment, error) {
	s := &segment{file: os.NewFile(uintptr(fd), "eagleray-kv")}
	err := memfile.Sealed(s.file)
	var info os.FileInfo
	if err == nil {
		info, err = s.file.Stat()
	}
	if err == nil && info.Size() != localParts*localPart {
		err = fmt.Errorf("memory of %d bytes", info.Size())
	}
	if err == nil {
		err = s.mapIn()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *segment) mapIn() (err error) {
	s.data, err = unix.Mmap(int(s.file.Fd()), 0, localParts*localPart,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return os.NewSyscallError("mmap", err)
}

func (s *segment) close() {
	if s.data != nil {
		_ = unix.Munmap(s.data)
		s.data = nil
	}
	s.file.Close()
}

func (s *segment) part(i int) []byte {
	at := i % localParts * localPart
	return s.data[at : at+localPart : at+localPart]
}

// dialLocal connects to an agent of this host, and passes it memory.
func dialLocal(ctx context.Context, name string, config *tls.Config) (net.Conn, *segment, error) {
	at, err := socketName(name)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, localPatience)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", at)
	if err != nil {
		return nil, nil, err
	}
	c := raw.(*net.UnixConn)
	s, err := newSegment()
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	t := tls.Client(c, config)
	if _, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(s.file.Fd())), nil); err == nil {
		err = t.HandshakeContext(ctx)
	}
	if err != nil {
		c.Close()
		s.close()
		return nil, nil, err
	}
	return t, s, nil
}

// acceptLocal receives and maps the memory of the peer that has connected.
func acceptLocal(c *net.UnixConn) (*segment, error) {
	c.SetDeadline(time.Now().Add(localPatience))
	one, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, flags, _, err := c.ReadMsgUnix(one, control)
	if err != nil {
		return nil, err
	}
	fds := memfile.Passed(control[:n])
	if len(fds) != 1 || flags&unix.MSG_CTRUNC != 0 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("%d descriptors were passed", len(fds))
	}
	return mapSegment(fds[0])
}

// filler is an io.Writer into the memory of a local connection.
type filler struct {
	*segment
	c net.Conn
	// turn is the number of the part that is filled, from 0, used what is in it; taken is how many
	// parts the reader has copied out.
	turn, used, copied int
	// waits is called before a wait for the reader.
	waits func()
}

func (f *filler) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		m := copy(f.part(f.turn)[f.used:], b)
		f.used += m
		b = b[m:]
		if f.used == localPart {
			if err := f.pass(); err != nil {
				return n - len(b), err
			}
		}
	}
	return n, nil
}

// pass announces the filled part, and waits until the next one is free.
func (f *filler) pass() error {
	if f.used == 0 {
		return nil
	}
	f.waits()
	if _, err := f.c.Write(appendPortion(nil, f.used)); err != nil {
		return err
	}
	f.turn, f.used = f.turn+1, 0
	return f.await(f.turn - localParts + 1)
}

// await returns when the reader has copied out so many parts.
func (f *filler) await(parts int) error {
	var word [localParts]byte
	for f.copied < parts {
		f.waits()
		n, err := f.c.Read(word[:min(parts-f.copied, localParts)])
		f.copied += n
		if err != nil && f.copied < parts {
			return err
		}
	}
	return nil
}

// finish passes the last part, and returns when the reader has copied out all parts.
func (f *filler) finish() error {
	if err := f.pass(); err != nil {
		return err
	}
	return f.await(f.turn)
}

// drainer is an io.Reader of the bytes of blocks that come in portions.
type drainer struct {
	*peer
	// left is how much of a portion is to come over the connection, part what is to be read of one
	// in the memory, turn how many parts have been.
	left int
	part []byte
	turn int
	head [portionHead]byte
}

func (d *drainer) Read(b []byte) (n int, err error) {
	if d.left == 0 && len(d.part) == 0 {
		if err := d.next(); err != nil {
			return 0, err
		}
	}
	if d.left > 0 {
		n, err = d.r.Read(b[:min(len(b), d.left)])
		d.left -= n
		return n, err
	}
	n = copy(b, d.part)
	if d.part = d.part[n:]; len(d.part) == 0 {
		d.turn++
		_, err = d.c.Write([]byte{1})
	}
	return n, err
}

// next begins a portion.
func (d *drainer) next() error {
	if _, err := io.ReadFull(d.r, d.head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(d.head[:])
	switch {
	case n == 0:
		_, err := d.receive()
		return cmp.Or(err, errors.New("a portion has 0 bytes"))
	case d.memory == nil:
		d.left = int(n)
	case n > localPart:
		return fmt.Errorf("%d bytes in a part of %d", n, localPart)
	default:
		d.part = d.memory.part(d.turn)[:n]
	}
	return nil
}
