// Package offload keeps KV blocks in files of a folder, in memory or on a disk, from which they
// come back when the cache has lost them: of this engine, of others of the machine, and after a
// restart.
//
// Each rank stores its own share: the layers and heads that it has of a block. A file is named by a
// hash of all that its bytes follow from (Names), so that a rank finds those only that it would
// have computed to the very bits. It appears under its name when all of it
// was written, and its bytes are compared with their checksum before any of them goes to the cache.
// Files that were not used for the longest time make room for others. Nothing is locked for longer
// than a look at the folder, and nothing that dies leaves more than a file that others remove.
package offload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// Open are the arguments of the call by which a rank begins to store blocks.
type Open struct {
	// Dir is the folder on the rank's machine (PathOf); Bytes bounds its files.
	Dir   string `json:"dir,omitempty"`
	Bytes int64  `json:"bytes"`
	// Shape is the engine's.
	Shape kvtransfer.Shape `json:"shape"`
	// Epoch is the driver's number for what the ranks compute with: calls of another one are void.
	Epoch uint64 `json:"epoch"`
}

// Opened is a rank's answer.
type Opened struct {
	// Error is "" when blocks can be stored.
	Error string `json:"error,omitempty"`
	// Folder is the same for two processes that have one folder.
	Folder string `json:"folder,omitempty"`
	// Room is how many bytes the file system leaves for the files.
	Room int64 `json:"room"`
}

// Blocks are those that ranks load or store.
type Blocks struct {
	Epoch uint64 `json:"epoch"`
	// Place is where they are, among those of data parallel attention.
	Place int `json:"place,omitempty"`
	// Blocks is a table from its beginning on, or from a multiple of the groups of layers, with
	// step.NoBlock for those that are not there to be stored, or are not needed. Digests are their
	// names, one after the other.
	Blocks  []uint32 `json:"blocks"`
	Digests []byte   `json:"digests"`
}

func (b *Blocks) digest(i int) Digest { return Digest(b.Digests[i*len(Digest{}):]) }

// Done is a rank's answer to Blocks.
type Done struct {
	// Blocks is how many, from the first on, are there now; Bytes is what was read or written.
	Blocks int   `json:"blocks"`
	Bytes  int64 `json:"bytes"`
	// Error is what went wrong beside that a file is not there.
	Error string `json:"error,omitempty"`
}

// Remove removes the files of all blocks in the folder, of all ranks that share it.
func (f *Folder) Remove() error { return f.patience.Run(f.room.clear) }

func (d *Done) fail(err error) {
	if err != nil && !errors.Is(err, errOver) && !errors.Is(err, ErrAside) &&
		!errors.Is(err, fs.ErrNotExist) {
		d.Error = err.Error()
	}
}

// Options configure a Folder.
type Options struct {
	Open
	// Program is the hash of this one.
	Program string
	// Rank is this one's number, Memory its cache, of so many Blocks. Loads and stores run beside
	// steps, which write to none of their blocks.
	Rank   int
	Memory kvtransfer.Memory
	Blocks int
}

// Folder is where a rank stores its share of blocks. Its methods may be called by several
// goroutines.
type Folder struct {
	opt   Options
	names Names
	parts []kvtransfer.Part
	// sizes are those of the files of a block of each group of layers.
	sizes []int
	place int
	room  *room
	// patience is with files, none of which a step waits for.
	patience Patience

	life    context.Context
	quit    context.CancelFunc
	running sync.WaitGroup
	// loading and storing are one at a time each, and have memory for a file.
	loading, storing turn
}

// turn is memory for a file, which one at a time uses.
type turn struct {
	mu   sync.Mutex
	file []byte
}

// hangsAfter is how long a file may take: loads that are waited for are of many.
const hangsAfter = 5 * time.Second

// with has something done with a file in the turn's memory. If that hangs it keeps the memory.
func (t *turn) with(p *Patience, do func() error) error {
	err := p.Run(do)
	if errors.Is(err, errHangs) {
		t.file = make([]byte, len(t.file))
	}
	return err
}

// New opens a folder, which it makes. A disk that hangs is an error in time.
func New(o Options) (*Folder, error) { return newFolder(o, capacityOf, hangsAfter) }

func newFolder(o Options, capacity capacity, patience time.Duration) (*Folder, error) {
	f := &Folder{opt: o, names: NamesOf(o.Dir, &o.Shape, o.Rank, o.Program),
		parts: o.Shape.Parts(o.Rank), place: o.Shape.Layout.Place(o.Rank).DP,
		patience: Patience{Limit: patience}}
	most := 0
	for g := range o.Shape.Groups() {
		size := headSize
		for _, p := range f.parts {
			n, err := o.Shape.Bytes(p, f.alone(g, 0))
			if err != nil {
				return nil, err
			}
			size += int(n)
		}
		f.sizes, most = append(f.sizes, size), max(most, size)
	}
	f.room = newRoom(f.names.dir, o.Bytes, capacity)
	if err := f.patience.Run(func() error {
		if err := makeDir(f.names.dir); err != nil {
			return err
		}
		_, err := f.room.look()
		return err
	}); err != nil {
		return nil, fmt.Errorf("%s: %w", f.names.dir, err)
	}
	f.loading.file, f.storing.file = make([]byte, most), make([]byte, most)
	f.life, f.quit = context.WithCancel(context.Background())
	return f, nil
}

// alone is a table with the i-th block of another one, which lists one of each group of layers in
// turn.
func (f *Folder) alone(i int, block uint32) []uint32 {
	table := slices.Repeat([]uint32{step.NoBlock}, f.opt.Shape.Groups())
	table[i%len(table)] = block
	return table
}

// size is that of the file of the i-th block of a table.
func (f *Folder) size(i int) int { return f.sizes[i%len(f.sizes)] }

// Opened describes the folder.
func (f *Folder) Opened() Opened {
	return Opened{Folder: Identify(f.opt.Dir), Room: f.room.limit}
}

// Identify names a folder (PathOf), so that processes know whether they see the same one; it
// returns "" where that is not known.
func Identify(dir string) string {
	var s unix.Stat_t
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || unix.Stat(PathOf(dir), &s) != nil {
		return ""
	}
	return fmt.Sprintf("%s %d %d", strings.TrimSpace(string(boot)), s.Dev, s.Ino)
}

// Go runs f in a goroutine that Close waits for; ctx ends with the Folder.
func (f *Folder) Go(g func(ctx context.Context)) { f.running.Go(func() { g(f.life) }) }

// Close ends what is under way. When it has returned nothing reads or writes the cache.
func (f *Folder) Close() {
	f.quit()
	f.running.Wait()
}

// errOver says that the driver has no use for an answer.
var errOver = errors.New("over")

// check refuses blocks of an earlier epoch, and those that cannot be.
func (f *Folder) check(b *Blocks) error {
	if b.Epoch != f.opt.Epoch {
		return errOver
	}
	if len(b.Digests) != len(b.Blocks)*len(Digest{}) {
		return fmt.Errorf("%d bytes of digests for %d blocks", len(b.Digests), len(b.Blocks))
	}
	for _, at := range b.Blocks {
		if at != step.NoBlock && int64(at) >= int64(f.opt.Blocks) {
			return fmt.Errorf("block %d of %d", at, f.opt.Blocks)
		}
	}
	return nil
}

// Load fills blocks from files, up to the first that has none, or a damaged one, which it removes.
// Blocks after that have undefined contents. A block that is not needed need not be there.
func (f *Folder) Load(ctx context.Context, b *Blocks) (d Done) {
	if b.Place != f.place {
		return Done{Blocks: len(b.Blocks)}
	}
	f.loading.mu.Lock()
	defer f.loading.mu.Unlock()
	err := f.check(b)
	for err == nil && d.Blocks < len(b.Blocks) {
		if ctx.Err() != nil {
			break
		}
		at := b.Blocks[d.Blocks]
		if at == step.NoBlock {
			d.Blocks++
			continue
		}
		file := f.loading.file[:f.size(d.Blocks)]
		name := f.names.name(b.digest(d.Blocks))
		err = f.loading.with(&f.patience, func() error {
			err := f.names.read(file, name)
			if errors.Is(err, errDamaged) {
				err = errors.Join(err, os.Remove(f.names.path(name)))
			}
			return err
		})
		if err != nil {
			break
		}
		rest := file[headSize:]
		for _, p := range f.parts {
			spans := f.opt.Shape.Spans(f.opt.Rank, p, f.alone(d.Blocks, at))
			err = errors.Join(err, f.opt.Memory.Fill(spans, func(to []byte) error {
				rest = rest[copy(to, rest):]
				return nil
			}))
		}
		if err == nil {
			d.Blocks++
			d.Bytes += int64(len(file))
		}
	}
	if n := d.Blocks; n > 0 {
		used := f.patience.Run(func() error { return f.use(b, n) })
		err = cmp.Or(err, used)
	}
	d.fail(err)
	return d
}

// use makes the first n files ones that were used just now, the last ones the longest ago: of a
// prefix the end goes first.
func (f *Folder) use(b *Blocks, n int) error {
	now := time.Now()
	for i := range n {
		f.names.touch(f.names.name(b.digest(i)), usedAt(now, i))
	}
	return nil // another process may have removed some
}

func usedAt(now time.Time, i int) time.Time { return now.Add(-time.Duration(i) * time.Microsecond) }

// Store writes the files of blocks that have none; the others were used just now.
func (f *Folder) Store(ctx context.Context, b *Blocks) (d Done) {
	if b.Place != f.place {
		return Done{Blocks: len(b.Blocks)}
	}
	f.storing.mu.Lock()
	defer f.storing.mu.Unlock()
	now, err := time.Now(), f.check(b)
	for ; err == nil && d.Blocks < len(b.Blocks); d.Blocks++ {
		if ctx.Err() != nil {
			break
		}
		at, name := b.Blocks[d.Blocks], f.names.name(b.digest(d.Blocks))
		used, there := usedAt(now, d.Blocks), false
		err = f.patience.Run(func() error {
			there = f.names.touch(name, used)
			return nil
		})
		if err != nil {
			break
		}
		if there || at == step.NoBlock {
			continue
		}
		to, file := headSize, f.storing.file[:f.size(d.Blocks)]
		for _, p := range f.parts {
			spans := f.opt.Shape.Spans(f.opt.Rank, p, f.alone(d.Blocks, at))
			err = errors.Join(err, f.opt.Memory.Read(spans, func(from []byte) error {
				to += copy(file[to:], from)
				return nil
			}))
		}
		if err == nil {
			err = seal(file, name)
		}
		if err == nil {
			err = f.storing.with(&f.patience, func() error {
				if err := f.room.reserve(int64(len(file))); err != nil {
					return err
				}
				return f.names.write(file, name, used)
			})
		}
		if err != nil {
			break
		}
		d.Bytes += int64(len(file))
	}
	d.fail(err)
	return d
}
