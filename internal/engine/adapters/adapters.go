// Package adapters loads and unloads adapters of the model that engines serve, while they serve:
// all engines and all ranks of each have one, or none does. Each has a name, by which requests ask
// for it as for a model.
package adapters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/engine/steer"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// Options configure a Control.
type Options struct {
	// Engines are those that serve now, at least one.
	Engines func() []*engine.Engine
	// MaxRank is the largest rank of an adapter (--max-lora-rank), Most how many there may be at a
	// time (--max-cpu-loras), 0 for no limit.
	MaxRank, Most int
	// Resolve finds the folder of an adapter that a request names and that is not loaded, as
	// --lora-resolver says; nil, or "" for an answer, is none.
	Resolve func(ctx context.Context, name string) (path string, err error)
	// May says of a name, without a look at a network, whether Resolve may find it.
	May func(name string) bool
	// Allowed are folders below which clients may name adapters (LoadFor), beside what Fetch finds,
	// which may be nil: the folder of a repo of the Hub, "" for one that is not looked for.
	Allowed []string
	Fetch   func(ctx context.Context, repo string) (path string, err error)
	// Log is told what was loaded and unloaded; nil is silence.
	Log *slog.Logger
}

// Adapter is one that is loaded.
type Adapter struct {
	// Name is what requests call it, Path the folder that it was read from.
	Name, Path string
	// Rank is its largest one.
	Rank int
	// Loaded is when it was.
	Loaded time.Time
}

// entry is an adapter, loaded or on its way out.
type entry struct {
	Adapter
	update *weights.Update
	// leases are the answers that are computed with it, used is when the last one began. idle is
	// closed once there are none, after gone was set: its name is not its any more.
	leases int
	used   time.Time
	gone   bool
	idle   chan struct{}
	// resolved says that a request's name brought it, so that another's may take its place.
	resolved bool
	// removed is closed once no rank has it, with err set if one could not be told.
	removed chan struct{}
	err     error
}

// Control is the adapters of a server. Its methods are safe for concurrent use; loads and unloads
// come one after the other.
type Control struct {
	opt    Options
	wanted *steer.Wanted
	shapes []lora.Shape
	names  []string // of the model
	log    *slog.Logger
	// life ends with Close; retiring are the adapters that wait for the end of their requests.
	life     context.Context
	end      context.CancelFunc
	retiring sync.WaitGroup
	// turn is held by what changes the ranks.
	turn chan struct{}

	mu     sync.Mutex
	loaded map[string]*entry
	all    []*entry // those on their way out, too
	ids    uint32
}

// Errors a caller acts on.
var (
	// ErrUnknown means that no adapter has the name, or the folder is none's.
	ErrUnknown = errors.New("no such adapter")
	// ErrLoaded means that one has the name already.
	ErrLoaded = errors.New("an adapter of this name is loaded already")
)

// Refused is about what was asked for: the adapter or its name cannot be had.
type Refused struct{ Err error }

func (e *Refused) Error() string { return e.Err.Error() }

// Unwrap returns the error itself.
func (e *Refused) Unwrap() error { return e.Err }

func refuse(format string, args ...any) error { return &Refused{fmt.Errorf(format, args...)} }

// New makes the control of engines that were opened together.
func New(o Options) (*Control, error) {
	first := o.Engines()[0]
	shapes, err := model.Adaptable(first.Model())
	if err != nil {
		return nil, err
	}
	c := &Control{opt: o, wanted: first.Wanted(), shapes: shapes, names: first.Info().Names,
		log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), turn: make(chan struct{}, 1),
		loaded: map[string]*entry{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Close frees the driver's memory. It is called once, after the engines have stopped.
func (c *Control) Close() {
	c.end()
	c.retiring.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted.SetAdapters(nil)
	for _, e := range c.all {
		c.wanted.Retire(e.update)
	}
	c.all, c.loaded = nil, map[string]*entry{}
}

// List is the adapters that requests may name, in the order of their names.
func (c *Control) List() (list []Adapter) {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.loaded {
		list = append(list, e.Adapter)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

// Find is the loaded adapter of a name.
func (c *Control) Find(name string) (a Adapter, ok bool) {
	if c == nil {
		return a, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.loaded[c.bare(name)]
	if e == nil {
		return a, false
	}
	return e.Adapter, true
}

// bare is an adapter's name without that of the model, where a request has both as Ray Serve has
// them: MODEL:ADAPTER.
func (c *Control) bare(name string) string {
	for _, model := range c.names {
		if adapter, found := strings.CutPrefix(name, model+":"); found {
			return adapter
		}
	}
	return name
}

// Serves says whether a request may name an adapter so: it is loaded, or may be found.
func (c *Control) Serves(name string) bool {
	if c == nil {
		return false
	}
	if _, ok := c.Find(name); ok {
		return true
	}
	return c.opt.May != nil && c.opt.May(c.bare(name))
}

// Acquire keeps the adapter of a name from being unloaded until release is called, which may be
// called more than once, and returns its id. One that is not loaded is looked for, and loaded. The
// error wraps ErrUnknown if there is none.
func (c *Control) Acquire(ctx context.Context, name string) (id uint32, release func(),
	err error) {
	name = c.bare(name)
	for {
		if id, release = c.lease(name); release != nil {
			return id, release, nil
		}
		if !c.Serves(name) {
			return 0, nil, fmt.Errorf("%w: %s", ErrUnknown, checkpoint.Short(name))
		}
		path, err := c.opt.Resolve(ctx, name)
		if err != nil {
			return 0, nil, err
		}
		if path == "" {
			return 0, nil, fmt.Errorf("%w: %s", ErrUnknown, checkpoint.Short(name))
		}
		if err := c.load(ctx, name, path, false, true); err != nil && !errors.Is(err, ErrLoaded) {
			return 0, nil, err
		}
	}
}

// lease is Acquire for one that is loaded; release is nil for another.
func (c *Control) lease(name string) (id uint32, release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.loaded[name]
	if e == nil {
		return 0, nil
	}
	e.leases++
	e.used = time.Now()
	return e.update.Adapter.ID, sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		e.leases--
		e.rest()
	})
}

// rest closes idle once nothing has the adapter nor can have it. The caller holds mu.
func (e *entry) rest() {
	if e.gone && e.leases == 0 {
		close(e.idle)
	}
}

// Load loads the adapter in a folder and gives it a name. With inPlace it takes the name of the one
// that has it, whose requests finish with that one; else the error wraps ErrLoaded. On an error no
// rank has anything of it.
func (c *Control) Load(ctx context.Context, name, path string, inPlace bool) error {
	return c.load(ctx, name, path, inPlace, false)
}

// LoadFor is Load for a client, who may name a folder below one of Options.Allowed, or what Fetch
// finds.
func (c *Control) LoadFor(ctx context.Context, name, path string, inPlace bool) error {
	if c.opt.Fetch != nil {
		dir, err := c.opt.Fetch(ctx, path)
		if err != nil {
			return err
		}
		if dir != "" {
			return c.load(ctx, name, dir, inPlace, false)
		}
	}
	real, err := filepath.Abs(path)
	if err != nil {
		return &Refused{err}
	}
	if links, err := filepath.EvalSymlinks(real); err == nil {
		real = links
	}
	if !rlhf.Below(c.opt.Allowed, real) {
		return refuse("%s is not below a folder of --allowed-local-weights or --lora-resolver",
			path)
	}
	return c.load(ctx, name, real, inPlace, false)
}

func (c *Control) load(ctx context.Context, name, path string, inPlace, resolved bool) error {
	if err := c.checkName(name); err != nil {
		return &Refused{err}
	}
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	old, err := c.room(name, inPlace)
	if err != nil {
		return err
	}
	began := time.Now()
	u, err := c.read(path)
	if err != nil {
		return refuse("adapter %s: %w", checkpoint.Short(name), err)
	}
	// What has begun is not given up half-way: engines would be left with it.
	ctx = context.WithoutCancel(ctx)
	e := &entry{Adapter: Adapter{Name: name, Path: path, Rank: u.Adapter.Rank(), Loaded: began},
		update: u, used: began, resolved: resolved, idle: make(chan struct{}),
		removed: make(chan struct{})}
	c.add(e)
	if err := c.each(func(g *engine.Engine) error { return g.LoadAdapter(ctx, u) }); err != nil {
		c.strike(e)
		dropping := c.each(func(g *engine.Engine) error { return g.TrimAdapters(ctx) })
		c.wanted.Retire(u)
		if dropping != nil {
			c.log.Warn("an adapter that was not loaded was not dropped", "cause", dropping)
		}
		var r *executor.RPCError
		if errors.As(err, &r) {
			return refuse("adapter %s: rank %d: %s", checkpoint.Short(name), r.Rank, r.Message)
		}
		return fmt.Errorf("adapter %s: %w", checkpoint.Short(name), err)
	}
	c.mu.Lock()
	c.loaded[name] = e
	c.mu.Unlock()
	if old != nil {
		c.retire(old)
	}
	c.log.Info("adapter loaded", "name", name, "path", path, "rank", e.Rank, "modules",
		len(u.Adapter.Modules), "mb", u.Bytes()>>20, "took", time.Since(began).Round(
			time.Millisecond))
	return nil
}

// checkName refuses what cannot be the name of an adapter.
func (c *Control) checkName(name string) error {
	switch {
	case name == "":
		return errors.New("an adapter needs a name")
	case len(name) > 256 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }):
		return fmt.Errorf("the name %s of an adapter is too long or has control characters",
			checkpoint.Short(name))
	case slices.Contains(c.names, name):
		return fmt.Errorf("the model is served as %s: an adapter needs another name", name)
	}
	return nil
}

// room makes sure that one more adapter may be loaded: of those that requests brought, the one that
// has rested longest goes. It returns the adapter whose place the new one takes.
func (c *Control) room(name string, inPlace bool) (old *entry, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old = c.loaded[name]
	if old != nil && !inPlace {
		return nil, refuse("%w: %s (load_inplace replaces it)", ErrLoaded,
			checkpoint.Short(name))
	}
	if c.opt.Most == 0 || len(c.all) < c.opt.Most || old != nil {
		return old, nil
	}
	var oldest *entry
	for _, e := range c.loaded {
		if e.resolved && e.leases == 0 && (oldest == nil || e.used.Before(oldest.used)) {
			oldest = e
		}
	}
	if oldest == nil {
		return nil, refuse("%d adapters are loaded, as many as --max-cpu-loras %d allows: "+
			"unload one", len(c.all), c.opt.Most)
	}
	c.depart(oldest)
	c.remove(oldest)
	return nil, oldest.err
}

// read reads a folder into memory that ranks map, or are sent.
func (c *Control) read(path string) (u *weights.Update, err error) {
	folder, err := checkpoint.Dir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no folder %s", ErrUnknown, path)
	}
	if err != nil {
		return nil, err
	}
	a, files, err := lora.Open(folder)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	if err := a.Fit(c.shapes, c.opt.MaxRank); err != nil {
		return nil, err
	}
	var specs []checkpoint.Spec
	var pieces []weights.Piece
	for _, name := range files.Names() {
		t, _ := files.Header(name)
		specs = append(specs, checkpoint.Spec{Name: name, Shape: t.Shape})
		pieces = append(pieces, weights.Piece{Name: name, DType: t.DType, Shape: t.Shape})
	}
	b, err := weights.NewBuilder(specs, nil) // adapters differ in size: none is kept
	if err != nil {
		return nil, err
	}
	defer b.Close() // what an update did not take over
	if err := b.Check(pieces); err != nil {
		return nil, err
	}
	if err := b.Load(files, pieces); err != nil {
		return nil, err
	}
	if u, err = b.Finish(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids++
	u.Adapter = &weights.Adapter{ID: c.ids, Adapter: *a}
	return u, nil
}

// Unload takes a name away from its adapter at once, and returns when no rank has the adapter any
// more: once the requests that it answers are done. It goes on when ctx ends. The error wraps
// ErrUnknown if none has the name.
func (c *Control) Unload(ctx context.Context, name string) error {
	c.mu.Lock()
	e := c.loaded[name]
	c.mu.Unlock()
	if e == nil || !c.retire(e) {
		return fmt.Errorf("%w: %s", ErrUnknown, checkpoint.Short(name))
	}
	select {
	case <-e.removed:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retire has an adapter dropped once its requests are done; false if that is under way.
func (c *Control) retire(e *entry) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.gone {
		return false
	}
	c.depart(e)
	c.retiring.Go(func() {
		select {
		case <-e.idle:
		case <-c.life.Done():
			return
		}
		if c.enter(c.life) != nil {
			return
		}
		defer c.leave()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.remove(e)
	})
	return true
}

// depart takes an adapter's name away. The caller holds mu.
func (c *Control) depart(e *entry) {
	e.gone = true
	if c.loaded[e.Name] == e {
		delete(c.loaded, e.Name)
	}
	e.rest()
}

// remove has the ranks drop an adapter that nothing has. The caller holds the turn and mu, which is
// let go of meanwhile.
func (c *Control) remove(e *entry) {
	c.mu.Unlock()
	c.strike(e)
	e.err = c.each(func(g *engine.Engine) error { return g.TrimAdapters(c.life) })
	c.wanted.Retire(e.update)
	c.log.Info("adapter unloaded", "name", e.Name)
	close(e.removed)
	c.mu.Lock()
}

// add has ranks that are started have an adapter, strike has them not have it. The caller holds the
// turn.
func (c *Control) add(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, e)
	c.tell()
}

func (c *Control) strike(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(o *entry) bool { return o == e })
	c.tell()
}

func (c *Control) tell() {
	list := make([]*weights.Update, len(c.all))
	for i, e := range c.all {
		list[i] = e.update
	}
	c.wanted.SetAdapters(list)
}

func (c *Control) enter(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Control) leave() { <-c.turn }

// each asks every engine at the same time: see engine.Each.
func (c *Control) each(f func(e *engine.Engine) error) error {
	engines := c.opt.Engines()
	return engine.Each(engines, func(i int) error { return f(engines[i]) })
}

// InFolder resolves names to the folders of adapters that lie in one.
func InFolder(dir string) (resolve func(context.Context, string) (string, error),
	may func(string) bool) {
	may = func(name string) bool {
		if !filepath.IsLocal(name) || name == "." {
			return false
		}
		info, err := os.Stat(filepath.Join(dir, name, lora.ConfigFile))
		return err == nil && info.Mode().IsRegular()
	}
	return func(_ context.Context, name string) (string, error) {
		if !may(name) {
			return "", nil
		}
		return filepath.Join(dir, name), nil
	}, may
}
