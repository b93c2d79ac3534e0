package handshake

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/queue/queuetest"
)

// socketPair returns the two ends of a unix stream, as a child inherits one.
func socketPair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "pair")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		return c.(*net.UnixConn)
	}
	return conn(fds[0]), conn(fds[1])
}

func memfd(t testing.TB, size int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	return f
}

func mapped(t testing.TB, f *os.File, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// TestPassFile passes memory and writes through both mappings.
func TestPassFile(t *testing.T) {
	defer queuetest.NoLeaks(t)()
	f := listen(t, nil)
	d, w := f.meet(t, f.Endpoint(), Identity{Rank: 1})
	mem := memfd(t, 4096)
	defer mem.Close()
	sent := make(chan error, 1)
	go func() { sent <- d.SendFile(mem) }()
	got, err := w.RecvFile()
	if err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	ours, theirs := mapped(t, mem, 4096), mapped(t, got, 4096)
	ours[17], theirs[4095] = 42, 43
	if theirs[17] != 42 || ours[4095] != 43 {
		t.Error("the two mappings are not the same memory")
	}
	if flags, err := unix.FcntlInt(got.Fd(), unix.F_GETFD, 0); err != nil ||
		flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the passed file would be inherited: %x, %v", flags, err)
	}
	got.Close()
	talk(t, d, w)

	// The worker may pass one too, and the file outlives its name.
	back, err := os.CreateTemp(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	go func() { sent <- w.SendFile(back) }()
	got, err = d.RecvFile()
	if serr := <-sent; err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	back.Close()
	got.Close()
	d.Close()
	w.Close()
	f.Close()
}

// TestNoPassing tells both sides that no file can come, and leaves the stream intact.
func TestNoPassing(t *testing.T) {
	f := listen(t, nil)
	mem := memfd(t, 1)
	defer mem.Close()
	d, w := f.meet(t, f.via("tcp"), Identity{Rank: 1})
	if err := d.SendFile(mem); !errors.Is(err, ErrNoPassing) {
		t.Error(err)
	}
	if _, err := w.RecvFile(); !errors.Is(err, ErrNoPassing) {
		t.Error(err)
	}
	talk(t, d, w)

	// The byte came, the descriptor did not.
	d, w = f.meet(t, f.via("unix"), Identity{Rank: 2})
	for _, b := range []byte{offer, none} {
		if _, err := d.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.RecvFile(); !errors.Is(err, ErrNoPassing) {
			t.Errorf("%q: %v", b, err)
		}
		answer := make([]byte, 1)
		if _, err := d.Read(answer); err != nil || answer[0] != failed {
			t.Errorf("%q: %q, %v", b, answer, err)
		}
	}
	sent := make(chan error, 1)
	go func() { sent <- d.SendFile(mem) }()
	u := w.Conn.(*net.UnixConn)
	u.Read(make([]byte, 1)) // drops the descriptor
	u.Write([]byte{failed})
	if err := <-sent; !errors.Is(err, ErrNoPassing) {
		t.Error(err)
	}
	talk(t, d, w)
}

// TestPassedTooMuch closes what was not asked for.
func TestPassedTooMuch(t *testing.T) {
	a, b := socketPair(t)
	defer a.Close()
	defer b.Close()
	mem := memfd(t, 1)
	defer mem.Close()
	defer queuetest.NoLeaks(t)()
	w := &Conn{Conn: b, Local: true}
	fd := int(mem.Fd())
	for _, c := range []struct {
		b   byte
		fds []int
	}{{offer, []int{fd, fd}}, {'?', []int{fd}}, {none, []int{fd}}, {offer, []int{fd, fd, fd, fd, fd,
		fd, fd, fd}}} {
		if _, _, err := a.WriteMsgUnix([]byte{c.b}, unix.UnixRights(c.fds...), nil); err != nil {
			t.Fatal(err)
		}
		if f, err := w.RecvFile(); err == nil {
			f.Close()
			t.Errorf("%q with %d descriptors was taken", c.b, len(c.fds))
		}
	}
}

func TestSameUser(t *testing.T) {
	for _, c := range []struct {
		peer, own uint32
		want      bool
	}{{1000, 1000, true}, {0, 1000, true}, {0, 0, true}, {1000, 0, false}, {1001, 1000, false},
		{65534, 1000, false}} {
		if sameUser(c.peer, c.own) != c.want {
			t.Errorf("%+v", c)
		}
	}
}

// Where a child that only dials finds its driver.
const (
	childUnix  = "HANDSHAKE_TEST_UNIX"
	childToken = "HANDSHAKE_TEST_TOKEN"
)

// child runs the test of t again in a process that inChild is true of.
func child(t *testing.T, f *fixture, as syscall.SysProcAttr) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	// Another user may not find this binary by its name.
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { self.Close() })
	cmd, out := exec.Command("/proc/self/fd/3", "-test.run", "^"+t.Name()+"$"), new(bytes.Buffer)
	cmd.ExtraFiles, cmd.Dir, cmd.SysProcAttr = []*os.File{self}, "/", &as
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = []string{childUnix + "=" + f.Endpoint().Unix, childToken + "=" + f.token.Reveal()}
	err = cmd.Start()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skipf("cannot start such a child: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// inChild says whether this process is a child, and then dials the driver of an instance.
func inChild(t *testing.T, instance Instance) (is bool, c *Conn, err error) {
	t.Helper()
	name := os.Getenv(childUnix)
	if name == "" {
		return false, nil, nil
	}
	token, err := ParseToken(os.Getenv(childToken))
	if err != nil {
		t.Fatal(err)
	}
	c, err = Dial(short(t), Endpoint{Instance: instance, Unix: name}, token,
		Identity{Instance: instance, PID: os.Getpid()})
	return true, c, err
}

// TestForeignUser dials as another user from a child; it needs root to become that one.
func TestForeignUser(t *testing.T) {
	if is, _, err := inChild(t, "foreign"); is {
		if err == nil {
			t.Fatal("ADMITTED")
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to start a child as another user")
	}
	f := listen(t, func(o *Options) { o.Instance = "foreign" })
	cmd, out := child(t, f, syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534,
		Gid: 65534}})
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	waitFor(t, func() bool {
		return strings.Contains(f.log.String(),
			"user 65534, this is user 0")
	})
}

// TestPeerPID dials from a child with a PID namespace of its own, in which it has another number.
func TestPeerPID(t *testing.T) {
	if is, c, err := inChild(t, "namespace"); is {
		if err != nil {
			t.Fatal(err)
		}
		// The driver closes it when it has looked.
		_, _ = c.Read(make([]byte, 1))
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to start a child in a PID namespace")
	}
	f := listen(t, func(o *Options) { o.Instance = "namespace" })
	cmd, out := child(t, f, syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID,
		Pdeathsig: syscall.SIGKILL})
	c, err := f.Accept(short(t))
	if err == nil {
		if own, here := c.Peer.PID, c.PeerPID(); own != 1 || here != cmd.Process.Pid {
			t.Errorf("process %d of its namespace is %d here, want 1 and %d", own, here,
				cmd.Process.Pid)
		}
		c.Close()
	}
	if end := cmd.Wait(); err != nil || end != nil {
		t.Fatalf("%v, %v\n%s", err, end, out)
	}
}
