package offload

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// blocks is how many blocks the caches of these tests have.
const blocks = 8

// shapeOf is a model of keys and values with different heads, and of latents.
func shapeOf(l layout.Layout, stages ...int) kvtransfer.Shape {
	return kvtransfer.Shape{Model: "m", DType: "bfloat16", CacheDType: "bfloat16", ISA: "avx2",
		BlockSize: 16, Layout: l, Stages: stages, Cache: []compute.CacheLayer{
			{Kind: compute.KeysValues, Heads: 4, Dim: 32}, {Kind: compute.KeysValues, Heads: 2,
				Dim: 32}, {Kind: compute.Latent, Heads: 1, Dim: 48, Values: 32}}}
}

// rank is a Folder and its cache.
type rank struct {
	*Folder
	cache *attention.Cache
}

func open(t testing.TB, dir string, s kvtransfer.Shape, number int, change func(*Options)) *rank {
	t.Helper()
	l := s.Layout.Sizes()
	from, to := s.Stages.Range(l.Place(number).PP, len(s.Cache))
	var own []compute.CacheLayer
	for _, c := range s.Cache[from:to] {
		c.Heads = max(1, c.Heads/l.TP)
		own = append(own, c)
	}
	c, err := attention.NewCache(compute.CacheShape{Layers: own, Blocks: blocks, BlockSize: 16,
		DType: compute.BFloat16})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Open: Open{Dir: dir, Bytes: 1 << 30, Shape: s, Epoch: 1}, Program: "p",
		Rank: number, Memory: c, Blocks: blocks}
	if change != nil {
		change(&o)
	}
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		c.Free()
	})
	return &rank{f, c}
}

// spans are all that the rank has of a block.
func (r *rank) spans(block uint32) iter.Seq[compute.Span] {
	return func(yield func(compute.Span) bool) {
		for _, p := range r.parts {
			for s := range r.opt.Shape.Spans(r.opt.Rank, p, []uint32{block}) {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// fill gives a block contents that follow from a number.
func (r *rank) fill(block uint32, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 5))
	_ = r.cache.Fill(r.spans(block), func(b []byte) error {
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return nil
	})
}

func (r *rank) bytes(block uint32) (all []byte) {
	_ = r.cache.Read(r.spans(block), func(b []byte) error {
		all = append(all, b...)
		return nil
	})
	return all
}

// named are blocks with digests of the given numbers.
func named(at []uint32, of ...byte) *Blocks {
	b := &Blocks{Epoch: 1, Blocks: at}
	for _, n := range of {
		d := Digest{n}
		b.Digests = append(b.Digests, d[:]...)
	}
	return b
}

// TestFolder stores blocks of every rank of layouts, and wants them in other blocks of another
// engine's rank.
func TestFolder(t *testing.T) {
	for _, s := range []kvtransfer.Shape{shapeOf(layout.Layout{}), shapeOf(layout.Layout{TP: 2}),
		shapeOf(layout.Layout{TP: 4}), shapeOf(layout.Layout{TP: 2, PP: 2}, 1),
		shapeOf(layout.Layout{PCP: 2})} {
		dir := filepath.Join(t.TempDir(), "made", "for it")
		for number := range s.Layout.World() {
			from := open(t, dir, s, number, nil)
			to := open(t, dir, s, number, nil)
			for b := range uint32(3) {
				from.fill(b, uint64(b)+100*uint64(s.Layout.Place(number).TP))
			}
			d := from.Store(t.Context(), named([]uint32{0, 1, 2}, 1, 2, 3))
			if d.Blocks != 3 || d.Error != "" || s.Layout.Place(number).PCP == 0 &&
				d.Bytes != 3*int64(len(from.storing.file)) {
				t.Fatalf("%v, rank %d: stored %+v", s.Layout, number, d)
			}
			if d := from.Store(t.Context(), named([]uint32{0, 1, 2}, 1, 2, 3)); d.Blocks != 3 ||
				d.Bytes != 0 {
				t.Errorf("%v, rank %d: stored again %+v", s.Layout, number, d)
			}
			names := to.names
			if !names.Has(Digest{2}) || names.Has(Digest{4}) {
				t.Errorf("%v, rank %d: the names do not tell what is there", s.Layout, number)
			}
			d = to.Load(t.Context(), named([]uint32{7, 5, 6, 4}, 1, 2, 3, 4))
			if d.Blocks != 3 || d.Error != "" {
				t.Fatalf("%v, rank %d: loaded %+v", s.Layout, number, d)
			}
			for b, at := range []uint32{7, 5, 6} {
				if !bytes.Equal(to.bytes(at), from.bytes(uint32(b))) {
					t.Errorf("%v, rank %d: block %d differs", s.Layout, number, b)
				}
			}
		}
	}
}

// TestForeign wants nothing found by a rank that computes something else, or another share of it.
func TestForeign(t *testing.T) {
	dir, s := t.TempDir(), shapeOf(layout.Layout{})
	from := open(t, dir, s, 0, nil)
	from.Store(t.Context(), named([]uint32{0}, 1))
	for what, change := range map[string]func(o *Options){
		"program": func(o *Options) { o.Program = "q" },
		"weights": func(o *Options) { o.Shape.Model = "n" },
		"dtype":   func(o *Options) { o.Shape.DType = "float16" },
		"ISA":     func(o *Options) { o.Shape.ISA = "amx" },
		"epoch":   func(o *Options) { o.Epoch = 2 },
		"layer":   func(o *Options) { o.Shape.Cache[1].Window = 32 },
		"stage":   func(o *Options) { o.Shape.Layout.PP, o.Shape.Stages = 2, []int{2} },
		"heads":   func(o *Options) { o.Shape.Layout.TP = 2 },
	} {
		to := open(t, dir, s, 0, func(o *Options) {
			o.Shape = shapeOf(layout.Layout{})
			change(o)
		})
		if d := to.Load(t.Context(), named([]uint32{0}, 1)); d.Blocks != 0 || d.Error != "" {
			t.Errorf("another %s: %+v", what, d)
		}
	}
	if d := from.Load(t.Context(), named([]uint32{0}, 1)); d.Blocks != 1 {
		t.Errorf("its own: %+v", d)
	}
	places := open(t, dir, shapeOf(layout.Layout{DP: 2}), 1, nil)
	if d := places.Load(t.Context(), named([]uint32{0}, 9)); d.Blocks != 1 || d.Bytes != 0 {
		t.Errorf("blocks of another place: %+v", d)
	}
}

// TestDamaged wants a file that is not as it was written refused and removed, and nothing of it in
// the cache.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, shapeOf(layout.Layout{}), 0, nil)
	r.fill(0, 1)
	r.fill(1, 2)
	r.Store(t.Context(), named([]uint32{0, 1}, 1, 2))
	path := r.names.path(r.names.name(Digest{1}))
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(r.names.path(r.names.name(Digest{2})))
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) []byte {
		b := bytes.Clone(sound)
		b[(at+len(b))%len(b)] ^= 4
		return b
	}
	r.fill(7, 99)
	before := r.bytes(7)
	for what, content := range map[string][]byte{
		"nothing": {}, "half a header": sound[:20], "cut": sound[:len(sound)-1],
		"longer": append(bytes.Clone(sound), 0), "magic": flip(0), "version": flip(9),
		"sum": flip(13), "size": flip(17), "name": flip(30), "header's sum": flip(headSize - 1),
		"first byte": flip(headSize), "last byte": flip(-1), "another block's": other,
		"zeros": make([]byte, len(sound)),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		d := r.Load(t.Context(), named([]uint32{7}, 1))
		if d.Blocks != 0 || !strings.Contains(d.Error, "damaged") {
			t.Errorf("%s: %+v", what, d)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file is there: %v", what, err)
		}
		if !bytes.Equal(r.bytes(7), before) {
			t.Fatalf("%s: something of it is in the cache", what)
		}
	}
	elsewhere := filepath.Join(t.TempDir(), "f")
	if err := errors.Join(os.WriteFile(elsewhere, sound, 0o600),
		os.Symlink(elsewhere, path)); err != nil {
		t.Fatal(err)
	}
	if d := r.Load(t.Context(), named([]uint32{7}, 1)); d.Blocks != 0 || d.Error == "" {
		t.Errorf("a link: %+v", d)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, sound, 0o600)); err != nil {
		t.Fatal(err)
	}
	if d := r.Load(t.Context(), named([]uint32{7}, 1)); d.Blocks != 1 || d.Error != "" ||
		!bytes.Equal(r.bytes(7), r.bytes(0)) {
		t.Errorf("as it was written: %+v", d)
	}
}

// TestWindow stores the last blocks of a sequence whose first ones are given up.
func TestWindow(t *testing.T) {
	r := open(t, t.TempDir(), shapeOf(layout.Layout{}), 0, nil)
	d := r.Store(t.Context(), named([]uint32{step.NoBlock, 3, 4}, 1, 2, 3))
	if d.Blocks != 3 || d.Error != "" || r.names.Has(Digest{1}) || !r.names.Has(Digest{3}) {
		t.Errorf("%+v", d)
	}
}

// TestCalls wants calls refused that cannot be right, and ended ones without a complaint.
func TestCalls(t *testing.T) {
	r := open(t, t.TempDir(), shapeOf(layout.Layout{}), 0, nil)
	for _, b := range []*Blocks{named([]uint32{blocks}, 1), named([]uint32{1, 2}, 1)} {
		if d := r.Store(t.Context(), b); d.Error == "" || d.Blocks != 0 {
			t.Errorf("store of %+v: %+v", b, d)
		}
		if d := r.Load(t.Context(), b); d.Error == "" || d.Blocks != 0 {
			t.Errorf("load of %+v: %+v", b, d)
		}
	}
	r.Close()
	if d := r.Store(r.life, named([]uint32{1}, 1)); d.Error != "" || d.Blocks != 0 {
		t.Errorf("after the end: %+v", d)
	}
}

// sizes are what the files of a folder take, all of them below a bound.
func used(t *testing.T, dir string) (n int64) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if info, err := e.Info(); err == nil {
			n += pages(info.Size())
		}
	}
	return n
}

// TestRoom wants the files within their bound, those that were used last kept, and of a prefix the
// beginning; files of others stay.
func TestRoom(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "README")
	left := filepath.Join(dir, "0123.kv.00"+partSuffix)
	old := time.Now().Add(-2 * abandoned)
	if err := errors.Join(os.WriteFile(foreign, nil, 0o600), os.WriteFile(left, nil, 0o600),
		os.Chtimes(left, old, old)); err != nil {
		t.Fatal(err)
	}
	size := pages(int64(len(open(t, dir, shapeOf(layout.Layout{}), 0, nil).storing.file)))
	r := open(t, dir, shapeOf(layout.Layout{}), 0, func(o *Options) { o.Bytes = 10*size + 1 })
	if _, err := os.Stat(left); err == nil {
		t.Error("what was left half written is there")
	}
	for i := range byte(6) {
		at := []uint32{0, 1, 2, 3}
		d := r.Store(t.Context(), named(at, 10*i, 10*i+1, 10*i+2, 10*i+3))
		if d.Blocks != 4 || d.Error != "" {
			t.Fatalf("%d: %+v", i, d)
		}
		if n := used(t, dir); n > 10*size {
			t.Fatalf("%d: the files have %d bytes, %d are allowed", i, n, 10*size)
		}
		// The first prefix is used each time.
		if d := r.Load(t.Context(), named(at[:2], 0, 1)); d.Blocks != 2 {
			t.Fatalf("%d: %+v", i, d)
		}
	}
	for n, want := range map[byte]bool{0: true, 1: true, 3: false, 50: true, 53: true, 10: false} {
		if r.names.Has(Digest{n}) != want {
			t.Errorf("block %d is there: %v", n, !want)
		}
	}
	// Another process fills the folder: that is seen in time, and the bound holds.
	more := open(t, dir, shapeOf(layout.Layout{}), 0, nil)
	more.Store(t.Context(), named([]uint32{0, 1, 2, 3}, 60, 61, 62, 63))
	r.room.looked = time.Time{}
	r.Store(t.Context(), named([]uint32{0}, 70))
	if n := used(t, dir); n > 10*size || !r.names.Has(Digest{70}) {
		t.Errorf("the files have %d bytes, %d are allowed", n, 10*size)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
	small := open(t, dir, shapeOf(layout.Layout{}), 0, func(o *Options) { o.Bytes = size - 1 })
	if d := small.Store(t.Context(), named([]uint32{0}, 80)); d.Blocks != 0 ||
		!strings.Contains(d.Error, "--kv-offloading-size") {
		t.Errorf("a bound below a block: %+v", d)
	}
}

// TestFullDisk has other files fill the file system: those of blocks give way, and then nothing is
// stored, which is said.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, shapeOf(layout.Layout{}), 0, nil)
	size := pages(int64(len(r.storing.file)))
	others := int64(0)
	r.room.capacity = func(string) (total, free int64, err error) {
		n := 16 * size
		return n, n - used(t, dir) - others, nil
	}
	store := func(n byte) Done {
		r.room.looked = time.Time{}
		return r.Store(t.Context(), named([]uint32{0}, n))
	}
	for n := range byte(8) {
		if d := store(n); d.Error != "" {
			t.Fatalf("%d: %+v", n, d)
		}
	}
	others = 10 * size
	if d := store(20); d.Error != "" || used(t, dir) > 6*size {
		t.Errorf("with a few blocks' room: %+v, %d bytes", d, used(t, dir))
	}
	others = 16*size - used(t, dir)
	for n := range byte(3) {
		store(30 + n)
	}
	others = 16 * size
	if d := store(40); !strings.Contains(d.Error, "leaves 0 MB") {
		t.Errorf("without room: %+v", d)
	}
}

// TestFullFileSystem does it for real, where a file system can be mounted.
func TestFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	r := open(t, filepath.Join(dir, "kv"), shapeOf(layout.Layout{}), 0, nil)
	size := pages(int64(len(r.storing.file)))
	if err := unix.Mount("tmpfs", r.names.dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700",
		6*size)); err != nil {
		t.Skip("no file system can be mounted: ", err)
	}
	defer unix.Unmount(r.names.dir, unix.MNT_DETACH)
	r.room.looked = time.Time{}
	for n := range byte(20) {
		if d := r.Store(t.Context(), named([]uint32{0}, n)); d.Blocks != 1 || d.Error != "" {
			t.Fatalf("%d: %+v", n, d)
		}
	}
	// What the room does not know of.
	r.room.looked, r.room.limit = time.Now().Add(time.Hour), 1<<40
	r.room.used = 0
	failed := ""
	for n := range byte(10) {
		if d := r.Store(t.Context(), named([]uint32{0}, 100+n)); d.Error != "" {
			failed = d.Error
		}
	}
	if !strings.Contains(failed, "no space") {
		t.Errorf("on a full file system: %q", failed)
	}
	list, _ := filepath.Glob(filepath.Join(r.names.dir, "*"+partSuffix))
	if len(list) > 0 {
		t.Errorf("left behind: %q", list)
	}
}

// TestDir wants folders refused that cannot be written, or that others write to.
func TestDir(t *testing.T) {
	dir := t.TempDir()
	file, shared := filepath.Join(dir, "file"), filepath.Join(dir, "shared")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(shared, 0o700),
		os.Chmod(shared, 0o777)); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{file: "not a directory",
		shared: "can be written by others", "/proc/eagleray": "/proc/eagleray"} {
		_, err := New(Options{Open: Open{Dir: dir, Bytes: 1, Shape: shapeOf(layout.Layout{})}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if a, b := Identify(dir), Identify(shared); a == "" || a == b || a != Identify(dir+"/.") {
		t.Errorf("folders are named %q and %q", a, b)
	}
}

// TestTogether has ranks of several engines store and load the same blocks with little room, and
// wants what they load to be right.
func TestTogether(t *testing.T) {
	dir := t.TempDir()
	s := shapeOf(layout.Layout{})
	loaded := make([]int, 3)
	var all sync.WaitGroup
	for i := range loaded {
		r := open(t, dir, s, 0, func(o *Options) { o.Bytes = 200 << 10 })
		want := make([][]byte, 40)
		for n := range want {
			r.fill(0, uint64(n))
			want[n] = r.bytes(0)
		}
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for range 300 {
				n := rng.IntN(len(want))
				r.fill(0, uint64(n))
				if d := r.Store(t.Context(), named([]uint32{0}, byte(n))); d.Error != "" {
					t.Error(d.Error)
				}
				n = rng.IntN(len(want))
				d := r.Load(t.Context(), named([]uint32{1}, byte(n)))
				if d.Error != "" || d.Blocks > 0 && !bytes.Equal(r.bytes(1), want[n]) {
					t.Errorf("block %d: %+v", n, d)
				}
				loaded[i] += d.Blocks
			}
		})
	}
	all.Wait()
	if n := loaded[0] + loaded[1] + loaded[2]; n == 0 || n == 900 {
		t.Errorf("%d blocks of 900 were found", n)
	}
}

// TestHangs has a file hang that is opened, as those of a disk do that does not answer: a load
// returns in time and with what came before, the folder is set aside meanwhile, and used again when
// there was an answer. What hung writes to nothing that others have.
func TestHangs(t *testing.T) {
	r := open(t, t.TempDir(), shapeOf(layout.Layout{}), 0, nil)
	r.patience.Limit = 100 * time.Millisecond
	for b := range uint32(3) {
		r.fill(b, uint64(b))
	}
	if d := r.Store(t.Context(), named([]uint32{0, 1, 2}, 1, 2, 3)); d.Blocks != 3 {
		t.Fatalf("%+v", d)
	}
	path := r.names.path(r.names.name(Digest{2}))
	if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	memory := &r.loading.file[0]
	d := r.Load(t.Context(), named([]uint32{5, 6, 7}, 1, 2, 3))
	if d.Blocks != 1 || !strings.Contains(d.Error, "no answer within 100ms") ||
		!bytes.Equal(r.bytes(5), r.bytes(0)) {
		t.Errorf("a file that hangs: %+v", d)
	}
	if memory == &r.loading.file[0] {
		t.Error("what hangs has the memory of the next load")
	}
	for range 3 {
		if d := r.Load(t.Context(), named([]uint32{5}, 1)); d.Blocks != 0 || d.Error != "" {
			t.Errorf("a load meanwhile: %+v", d)
		}
		if d := r.Store(t.Context(), named([]uint32{0}, 9)); d.Blocks != 0 || d.Error != "" {
			t.Errorf("a store meanwhile: %+v", d)
		}
	}
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	for r.patience.stuck.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	if d := r.Load(t.Context(), named([]uint32{5, 6}, 3, 1)); d.Blocks != 2 || d.Error != "" ||
		!bytes.Equal(r.bytes(5), r.bytes(2)) {
		t.Errorf("after it answered: %+v", d)
	}
}

// TestHangsWhenOpened has the file system of a folder hang when it is opened, and when its files
// are to be removed: neither waits for it.
func TestHangsWhenOpened(t *testing.T) {
	hang := make(chan struct{})
	hangs := func(string) (size, free int64, err error) {
		<-hang
		return 0, 0, errors.New("over")
	}
	o := Options{Open: Open{Dir: filepath.Join(t.TempDir(), "kv"), Bytes: 1 << 30,
		Shape: shapeOf(layout.Layout{}), Epoch: 1}}
	const limit = 50 * time.Millisecond
	if _, err := newFolder(o, hangs, limit); err == nil ||
		!strings.Contains(err.Error(), o.Dir+": no answer within 50ms") {
		t.Errorf("opened: %v", err)
	}
	r := open(t, o.Dir, o.Shape, 0, nil)
	r.patience.Limit = limit
	r.room.mu.Lock() // as a store has it that looks at the folder
	err := r.Remove()
	r.room.mu.Unlock()
	if err == nil || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("removed: %v", err)
	}
	close(hang)
	for r.patience.stuck.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	if err := r.Remove(); err != nil {
		t.Errorf("removed after it answered: %v", err)
	}
}

// TestInMemory wants what files may yet take of the memory: nothing on a disk, and of a bound what
// those leave that are there.
func TestInMemory(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "eagleray-test")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	const most = 1 << 20
	file := filepath.Join(dir, "0123"+suffix)
	if err := os.WriteFile(file, make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir        string
		most, want int64
	}{{dir, most, most - 8192}, {filepath.Join(dir, "to", "be", "made"), most, most}, {dir, 0, 0},
		{dir, 4096, 0}, {"/proc", most, 0}, {"", 0, 0}} {
		if got := InMemory(c.dir, c.most); got != c.want {
			t.Errorf("%s, %d: %d, want %d", c.dir, c.most, got, c.want)
		}
	}
}
