package ring

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// memoryFile is a memory file with a header's fields and more bytes of nothing.
func memoryFile(t testing.TB, size int64, header []byte, seal int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("eagleray-hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(t, err)
	f := os.NewFile(uintptr(fd), "hostile")
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(size))
	_, err = f.WriteAt(header, 0)
	must(t, err)
	if seal != 0 {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seal)
		must(t, err)
	}
	return f
}

func header(fields ...uint64) []byte {
	var b []byte
	for _, v := range fields {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return b
}

const seals = unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL

func TestMapRefuses(t *testing.T) {
	good, err := plan(2, 64<<10)
	must(t, err)
	page, size := uint64(good.page), good.size()
	fields := func() []uint64 {
		return []uint64{magic, version, page, 2, uint64(good.broadcast), uint64(good.reply)}
	}
	with := func(i int, v uint64) []byte {
		f := fields()
		f[i] = v
		return header(f...)
	}
	r, err := Map(memoryFile(t, size, header(fields()...), seals), 1)
	must(t, err)
	must(t, r.Close())

	pipe, w, err := os.Pipe()
	must(t, err)
	defer pipe.Close()
	defer w.Close()
	plain, err := os.Create(t.TempDir() + "/plain")
	must(t, err)
	defer plain.Close()
	closed, err := os.Create(t.TempDir() + "/closed")
	must(t, err)
	closed.Close()
	for name, c := range map[string]struct {
		f    *os.File
		rank int
		want string
	}{
		"a pipe":        {pipe, 0, "seals"},
		"a plain file":  {plain, 0, "seals"},
		"a closed file": {closed, 0, "seals"},
		"not sealed":    {memoryFile(t, size, header(fields()...), 0), 0, "seals"},
		"may grow": {memoryFile(t, size, header(fields()...),
			unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL), 0, "seals"},
		"may shrink": {memoryFile(t, size, header(fields()...),
			unix.F_SEAL_GROW|unix.F_SEAL_SEAL), 0, "seals"},
		"empty": {memoryFile(t, 0, nil, 0), 0, "seals"},
		"short": {memoryFile(t, 40, header(fields()[:5]...), seals), 0,
			"read header of a segment of 40 bytes"},
		"too short":      {memoryFile(t, size-1, header(fields()...), seals), 0, "bytes, not"},
		"too long":       {memoryFile(t, size+1, header(fields()...), seals), 0, "bytes, not"},
		"magic":          {memoryFile(t, size, with(0, 7), seals), 0, "magic 0x7"},
		"version":        {memoryFile(t, size, with(1, 2), seals), 0, "version 2"},
		"page":           {memoryFile(t, size, with(2, 2*page), seals), 0, "pages of"},
		"no ranks":       {memoryFile(t, size, with(3, 0), seals), 0, "0 ranks"},
		"many ranks":     {memoryFile(t, size, with(3, MaxRanks+1), seals), 0, "65 ranks"},
		"negative ranks": {memoryFile(t, size, with(3, 1<<64-2), seals), 0, "ranks"},
		"other ranks":    {memoryFile(t, size, with(3, 3), seals), 0, "bytes, not"},
		"odd ring":       {memoryFile(t, size, with(4, 5000), seals), 0, "rings of"},
		"no ring":        {memoryFile(t, size, with(4, 0), seals), 0, "rings of"},
		"huge ring":      {memoryFile(t, size, with(4, 1<<40), seals), 0, "rings of"},
		"other reply ring": {memoryFile(t, size, with(5, uint64(2*good.reply)), seals), 0,
			"bytes, not"},
		"overflowing reply": {memoryFile(t, size, with(5, 1<<63), seals), 0, "rings of"},
		"rank beyond": {memoryFile(t, size, header(fields()...), seals), 2,
			"rank 2 of a segment for 2"},
		"rank below":         {memoryFile(t, size, header(fields()...), seals), -1, "rank -1"},
		"a segment of zeros": {memoryFile(t, size, nil, seals), 0, "magic 0x0"},
	} {
		if r, err := Map(c.f, c.rank); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				r.Close()
			}
		}
	}
	d, _ := segment(t, 2, 0)
	if _, err := Map(d.file, 1); err == nil || !strings.Contains(err.Error(), "mapped before") {
		t.Errorf("mapped twice: %v", err)
	}
	if err := d.file.Truncate(0); err == nil {
		t.Error("a segment could be resized")
	}
}

func FuzzMap(f *testing.F) {
	l, err := plan(1, 32<<10)
	must(f, err)
	f.Add(header(magic, version, uint64(l.page), 1, uint64(l.broadcast), uint64(l.reply)),
		uint32(l.size()))
	f.Add(header(magic, version, 4096, 1<<63, 4096, 4096), uint32(1<<20))
	f.Add([]byte{1}, uint32(4))
	f.Fuzz(func(t *testing.T, head []byte, size uint32) {
		size %= 4 << 20
		r, err := Map(memoryFile(t, int64(size), head[:min(len(head), int(size))], seals), 0)
		if err != nil {
			return
		}
		if _, err := r.Recv(past()); err != queue.ErrTimeout && !errors.Is(err, queue.ErrClosed) &&
			!errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
		must(t, r.Close())
	})
}

// corruption is a segment of which bytes change between calls: script is pairs of an action and a
// number.
func corruption(t testing.TB, script []byte) {
	s, err := Create(Options{Ranks: 2, Memory: 64 << 10})
	must(t, err)
	d := s.Driver()
	var rs []*Rank
	for i := range 2 {
		r, err := Map(s.File(), i)
		must(t, err)
		rs = append(rs, r)
	}
	control := int(d.m.control())
	known := func(err error) {
		if err != nil && !errors.Is(err, queue.ErrTimeout) && !errors.Is(err, queue.ErrClosed) &&
			!errors.Is(err, ErrCorrupt) {
			t.Errorf("unknown error: %v", err)
		}
	}
	for ; len(script) >= 4; script = script[4:] {
		action, a, v := script[0], int(binary.LittleEndian.Uint16(script[1:])), script[3]
		switch action % 12 {
		case 0, 1:
			known(d.Send(pattern(a, a%3000), past()))
		case 2, 3:
			got, err := rs[v%2].Recv(past())
			known(err)
			for range got { // within bounds
			}
		case 4, 5:
			known(rs[v%2].Send(pattern(a, a%3000), past()))
		case 6, 7:
			_, got, err := d.Recv(past())
			known(err)
			for range got {
			}
		// anything in the control pages but the words of futexes, which the test does not set
		case 8:
			d.m.mem[d.m.page+a%(control-d.m.page)] = v
		case 9: // anything in the rings
			d.m.mem[control+a%(len(d.m.mem)-control)] = v
		case 10: // a position, to something near a true one
			at := []int{0, 128, 256}[v%3]
			if v%4 == 0 {
				at = d.m.page
			} else {
				at += d.m.rankPage(a % 2)
			}
			word := d.m.mem[at : at+8]
			binary.NativeEndian.PutUint64(word,
				binary.NativeEndian.Uint64(word)+uint64(int64(int8(v)))*8)
		case 11: // a header, to a length near the ring's
			at := control + a%(len(d.m.mem)-control)&^7
			binary.NativeEndian.PutUint64(d.m.mem[at:], uint64(v&7)<<32|uint64(a)*uint64(v))
		}
		if v == 255 && action == 255 {
			d.Drop(a % 3)
		}
		d.Lag(a % 2)
		d.Status(a % 2)
	}
	must(t, d.Close())
	d.Release()
	for _, r := range rs {
		must(t, r.Close())
		r.Release()
	}
}

func TestCorruption(t *testing.T) {
	rounds := 2000
	if testing.Short() {
		rounds = 200
	}
	rng := rand.New(rand.NewPCG(11, 12))
	script := make([]byte, 4*200)
	for range rounds {
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		corruption(t, script)
	}
}

func FuzzCorruption(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 8, 0, 0, 9, 2, 0, 0, 0, 2, 0, 0, 1})
	f.Add([]byte{4, 200, 5, 1, 10, 0, 0, 130, 6, 0, 0, 0, 11, 0, 16, 255, 6, 0, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) { corruption(t, script[:min(len(script), 4000)]) })
}

// TestCorruptNamed checks what is said of wrong values, and that the others go on.
func TestCorruptNamed(t *testing.T) {
	corrupt := func(err error, rank int, detail string) {
		t.Helper()
		var e *CorruptError
		if !errors.As(err, &e) || !errors.Is(err, ErrCorrupt) || e.Rank != rank ||
			!strings.Contains(err.Error(), detail) {
			t.Errorf("%v, not of rank %d and %q", err, rank, detail)
		}
	}
	d, rs := segment(t, 2, 0)
	rs[1].own.sent.Store(1 << 40)
	rank, _, err := d.Recv(soon())
	corrupt(err, 1, "rank 1 wrote position 1099511627776")
	if rank != 1 {
		t.Errorf("rank %d", rank)
	}
	must(t, rs[0].Send([]byte("still here"), soon()))
	if rank, got, err := d.Recv(soon()); rank != 0 || string(got) != "still here" || err != nil {
		t.Error(rank, got, err)
	}
	if _, _, err := d.Recv(time.Now().Add(time.Millisecond)); err != queue.ErrTimeout {
		t.Error(err)
	}
	rs[1].own.read.Store(1 << 20)
	for err = nil; err == nil; {
		err = d.Send(make([]byte, 300), soon())
		_, _ = rs[0].Recv(past())
		rs[0].Release()
	}
	corrupt(err, 1, "rank 1 wrote position 1048576 as reader")
	d.Drop(1)
	must(t, d.Send([]byte("on"), soon()))
	_, err = rs[0].Recv(soon())
	must(t, err)

	d, rs = segment(t, 1, 0)
	must(t, d.Send(make([]byte, 8), soon()))
	binary.NativeEndian.PutUint64(d.out.ring, 9|(flagFirst|flagLast)<<32)
	_, err = rs[0].Recv(soon())
	corrupt(err, -1, "the driver wrote record of 9 bytes")
	_, again := rs[0].Recv(soon())
	if again != err {
		t.Errorf("then %v", again)
	}
	d, rs = segment(t, 1, 0)
	must(t, d.Send(make([]byte, 8), soon()))
	binary.NativeEndian.PutUint64(d.out.ring, 8|flagLast<<32)
	_, err = rs[0].Recv(soon())
	corrupt(err, -1, "has not begun")
}
