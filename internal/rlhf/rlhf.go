// Package rlhf steers the engines of a server for a trainer: it pauses them, lets them sleep, and brings
// them new weights, all engines and all ranks of each or none.
package rlhf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/layout"
	"github.com/eagleray/eagleray/internal/model"
	"github.com/eagleray/eagleray/internal/model/checkpoint"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/rlhf/state"
	"github.com/eagleray/eagleray/internal/weights"
)

// Options configure a Control.
type Options struct {
	// Engines are those that serve now, at least one.
	Engines func() []*engine.Engine
	// Host is the address at which trainers of other machines bring weights, "" for none.
	Host string
	// Layout is how the ranks of an engine divide the model.
	Layout layout.Layout
	// Log says what was done; nil is silence.
	Log *slog.Logger
}

// Control is what a trainer asks of a server. Its methods are safe for concurrent use; what changes the
// server is done one after the other. An error that wraps *state.WrongOrder has changed nothing.
type Control struct {
	opt      Options
	steering *engine.Steering
	// retiring gives back the memory of the update before the last one, and finds that of the next, which
	// the system takes long to do: nobody waits for it but the next update.
	retiring sync.WaitGroup
	tied     bool
	specs    []checkpoint.Spec
	// dtype is the type in which weights are expected, spare memory for the next update.
	dtype checkpoint.DType
	spare weights.Spare
	log   *slog.Logger

	// turn is held by what changes the server.
	turn chan struct{}
	// streams says that trainers send bytes: memory is found for them ahead.
	streams bool
	// ready are the engines whose ranks have memory for updates that they are sent.
	ready    map[*engine.Engine]bool
	receiver *receiver
	builder  *weights.Builder
	// begun is when the update under way was started.
	begun time.Time

	mu      sync.Mutex
	machine state.Machine
	version string
	updates int
	bytes   int64
}

// New makes the control of engines that were opened together.
func New(o Options) (*Control, error) {
	first := o.Engines()[0]
	specs, err := model.Expected(first.Model())
	if err != nil {
		return nil, err
	}
	dtype, ok := checkpoint.ParseDType(first.Model().DType)
	if !ok || !dtype.Weight() {
		dtype = checkpoint.BF16
	}
	c := &Control{opt: o, dtype: dtype, steering: first.Steering(), tied: first.Model().TieEmbeddings, specs: specs,
		log: o.Log, turn: make(chan struct{}, 1), version: "0"}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Close ends a session of weight transfer. It is called once nothing else is.
func (c *Control) Close() {
	if c.receiver != nil {
		c.receiver.close()
	}
	if c.builder != nil {
		c.builder.Close()
	}
	c.retiring.Wait()
	c.steering.Retire(c.steering.Commit(nil))
	c.spare.Drop()
}

// enter waits for the right to change the server, and returns a copy of its state.
func (c *Control) enter(ctx context.Context) (state.Machine, error) {
	select {
	case c.turn <- struct{}{}:
		return c.state(), nil
	case <-ctx.Done():
		return state.Machine{}, ctx.Err()
	}
}

func (c *Control) leave() { <-c.turn }

func (c *Control) state() state.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine
}

// become keeps a state that was reached.
func (c *Control) become(m state.Machine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machine = m
}

// each asks every engine at the same time. One that has failed for good is left out as long as another
// one serves.
func (c *Control) each(f func(e *engine.Engine) error) error {
	engines := c.opt.Engines()
	return eachOf(engines, func(i int) error { return f(engines[i]) })
}

// eachOf does the same with the numbers of engines.
func eachOf(engines []*engine.Engine, f func(i int) error) error {
	errs := make([]error, len(engines))
	var group sync.WaitGroup
	for i := range engines {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	failed := 0
	var first error
	for _, err := range errs {
		switch {
		case errors.Is(err, engine.ErrFailed):
			failed++
		case first == nil:
			first = err
		}
	}
	if failed == len(engines) {
		return errs[0]
	}
	return first
}

// Paused and Sleeping are what /is_paused and /is_sleeping answer.
func (c *Control) Paused() bool { m := c.state(); return m.Paused() }

// Sleeping says whether a part of the server sleeps.
func (c *Control) Sleeping() bool { m := c.state(); return m.Sleeping() }

// Version is that of the weights that answers are computed by.
func (c *Control) Version() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// SetVersion gives the weights another name.
func (c *Control) SetVersion(version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = version
}

// Info is what /weight_info answers.
type Info struct {
	// Version is the name of the weights, Updates how many there were before them, Tensors and Bytes
	// what the last one brought.
	Version string `json:"weight_version"`
	Updates int    `json:"num_updates"`
	Tensors int    `json:"num_tensors"`
	Bytes   int64  `json:"num_bytes"`
	State   string `json:"state"`
}

// Info describes the weights and the state.
func (c *Control) Info() Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Info{Version: c.version, Updates: c.updates, Tensors: len(c.specs), Bytes: c.bytes,
		State: c.machine.String()}
}

// WorldSize is the number of ranks of an engine, or of all.
func (c *Control) WorldSize(all bool) int {
	n := c.opt.Layout.World()
	if all {
		n *= len(c.opt.Engines())
	}
	return n
}

// Pause lets new requests wait until Resume. Those in flight are ended, finish, or stay as they are, by
// the mode; it returns when that is done. Except for requests that stay, the prefix cache is emptied if
// that is wanted. While requests finish, another pause or a Resume may come.
func (c *Control) Pause(ctx context.Context, mode state.Mode, clearCache bool) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	if err := m.Pause(mode); err != nil {
		c.leave()
		return err
	}
	c.become(m)
	c.steering.Hold(mode == state.Keep)
	c.leave()
	if err := c.halt(ctx, mode); err != nil || mode == state.Keep || !clearCache {
		return err
	}
	if m := c.state(); !m.Paused() {
		return nil // Resume came first
	}
	_, err = c.ResetPrefixCache(ctx, true)
	return err
}

// halt brings requests in flight to what a pause wants.
func (c *Control) halt(ctx context.Context, mode state.Mode) error {
	return c.each(func(e *engine.Engine) error {
		switch mode {
		case state.Abort:
			return e.AbortAll(ctx)
		case state.Wait:
			return e.Drain(ctx)
		}
		return e.Settle(ctx)
	})
}

// Resume goes on with generation.
func (c *Control) Resume(ctx context.Context) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer c.leave()
	if err := m.Resume(); err != nil {
		return err
	}
	c.become(m)
	return c.release(ctx)
}

func (c *Control) release(ctx context.Context) error {
	c.steering.Release()
	return c.each(func(e *engine.Engine) error { return e.Settle(ctx) })
}

// AbortAll ends all requests with what they have.
func (c *Control) AbortAll(ctx context.Context) error {
	return c.each(func(e *engine.Engine) error { return e.AbortAll(ctx) })
}

// ResetPrefixCache empties the prefix caches. It returns false where requests run, unless these are to
// be computed again.
func (c *Control) ResetPrefixCache(ctx context.Context, running bool) (bool, error) {
	var mu sync.Mutex
	all := true
	err := c.each(func(e *engine.Engine) error {
		done, err := e.ResetPrefixCache(ctx, running)
		mu.Lock()
		defer mu.Unlock()
		all = all && done
		return err
	})
	return all, err
}

// Sleep pauses as Pause does and gives memory back: at level 1 that of the KV cache, at level 2 that of
// the weights too.
func (c *Control) Sleep(ctx context.Context, level int, mode state.Mode) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer c.leave()
	awake := !m.Paused()
	if err := m.Sleep(level, mode); err != nil {
		return err
	}
	if awake {
		c.steering.Hold(mode == state.Keep)
		if err := c.halt(ctx, mode); err != nil {
			c.steering.Release()
			return err
		}
	} else {
		// What was let finish, and has not, goes on after the sleep.
		c.steering.Hold(true)
		if err := c.halt(ctx, state.Keep); err != nil {
			return err
		}
	}
	c.become(m)
	if level > 0 {
		c.retiring.Wait()
		c.spare.Drop()
	}
	return c.rest(&m)
}

// Wake takes the memory of parts again, of all without tags. What the weights were before they slept
// they are again.
func (c *Control) Wake(ctx context.Context, tags []string) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer c.leave()
	slept := m.Sleeping()
	resumed, err := m.Wake(tags)
	if err != nil {
		return err
	}
	if slept {
		if err := c.rest(&m); err != nil {
			return err
		}
	}
	c.become(m)
	if resumed {
		return c.release(ctx)
	}
	return nil
}

// rest has all ranks be as asleep as a state says. It is not given up half-way.
func (c *Control) rest(m *state.Machine) error {
	c.steering.SetAsleep(queue.Asleep{Weights: m.Asleep(state.Weights), KVCache: m.Asleep(state.KVCache)})
	return c.each(func(e *engine.Engine) error { return e.Rest(context.Background()) })
}

// Session is how a trainer brings weights.
type Session struct {
	// Token is the secret of the session.
	Token string `json:"token"`
	// Unix is an abstract unix socket, without its leading zero byte.
	Unix string `json:"unix"`
	// TCP is an address under TLS, whose certificate, in PEM, is for the name eagleray-weights; both are
	// "" when trainers of other machines are not let in.
	TCP         string `json:"tcp,omitempty"`
	Certificate string `json:"certificate,omitempty"`
}

// Init opens a session of weight transfer, anew if there is one: an update under way is given up. The
// system finds the memory for an update now, which takes it long: that of the ranks, and with streams
// that for the bytes that come.
func (c *Control) Init(ctx context.Context, streams bool) (Session, error) {
	m, err := c.enter(ctx)
	if err != nil {
		return Session{}, err
	}
	defer c.leave()
	if err := m.Init(); err != nil {
		return Session{}, err
	}
	c.giveUp()
	if c.receiver != nil {
		c.receiver.close()
		c.receiver = nil
	}
	r, err := listen(c.opt.Host)
	if err != nil {
		return Session{}, err
	}
	c.receiver, c.streams = r, streams
	c.become(m)
	c.reserve(ctx)
	s := Session{Token: r.token, Unix: r.unix.Addr().String()[1:]}
	if r.tcp != nil {
		s.TCP, s.Certificate = r.tcp.Addr().String(), string(r.certificate)
	}
	return s, nil
}

// giveUp drops the update under way, if there is one.
func (c *Control) giveUp() {
	if c.builder != nil {
		c.builder.Close()
		c.builder = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machine.GiveUp()
}

// Start begins an update.
func (c *Control) Start(ctx context.Context) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer c.leave()
	if err := m.Start(); err != nil {
		return err
	}
	c.retiring.Wait()
	if c.builder, err = weights.NewBuilder(c.specs, &c.spare); err != nil {
		return err
	}
	c.begun = time.Now()
	c.become(m)
	return nil
}

// Source is where the weights of one update_weights come from: a file or a folder, or a stream of
// pieces.
type Source struct {
	Path   string
	Stream string
	Pieces []weights.Piece
}

// Update takes weights into the update under way. An error ends the update, but for a
// *state.WrongOrder: the weights are those from before it.
func (c *Control) Update(ctx context.Context, s Source) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer c.leave()
	if err := m.Update(); err != nil {
		return err
	}
	if s.Path != "" {
		err = c.load(s.Path)
	} else {
		err = c.stream(ctx, s)
	}
	if err != nil {
		c.giveUp()
		return err
	}
	c.become(m)
	return nil
}

// load takes in files.
func (c *Control) load(path string) error {
	folder, err := folderAt(path)
	if err != nil {
		return &SourceError{fmt.Errorf("weights at %s: %w", path, err)}
	}
	files, err := checkpoint.Open(folder)
	if err != nil {
		return &SourceError{fmt.Errorf("weights at %s: %w", path, err)}
	}
	defer files.Close()
	var pieces []weights.Piece
	for _, name := range files.Names() {
		if weights.Passes(name, c.tied) {
			continue
		}
		t, err := files.Tensor(name)
		if err != nil {
			return &SourceError{err}
		}
		pieces = append(pieces, weights.Piece{Name: name, DType: t.DType, Shape: t.Shape})
	}
	if err := c.builder.Check(pieces); err != nil {
		return err
	}
	return c.builder.Load(files, pieces)
}

// SourceError is about weights that cannot be read.
type SourceError struct{ Err error }

func (e *SourceError) Error() string { return e.Err.Error() }
func (e *SourceError) Unwrap() error { return e.Err }

// folderAt is a folder of a checkpoint, or of one file alone.
func folderAt(path string) (checkpoint.Folder, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return checkpoint.Dir(path)
	}
	f, err := checkpoint.Dir(filepath.Dir(path))
	return single{f, filepath.Base(path)}, err
}

// single is a folder in which a file has the name of a checkpoint's.
type single struct {
	checkpoint.Folder
	name string
}

const wholeFile = "model.safetensors"

// Names implements checkpoint.Folder.
func (s single) Names() []string { return []string{wholeFile} }

// Map implements checkpoint.Folder.
func (s single) Map(string) ([]byte, func() error, error) { return s.Folder.Map(s.name) }

// stream takes in what a trainer's connection brings. What it brings is compared with the model first.
func (c *Control) stream(ctx context.Context, s Source) error {
	if err := c.builder.Check(s.Pieces); err != nil {
		return err
	}
	in, err := c.receiver.await(ctx, s.Stream)
	if err != nil {
		return &SourceError{err}
	}
	if err := receive(ctx, in, c.builder, s.Pieces); err != nil {
		return &SourceError{err}
	}
	return nil
}

// Finish has all ranks of all engines compute with the weights that came, from the same step of each
// engine on, and gives them a version, by default their number. On an error all compute with those from
// before.
func (c *Control) Finish(ctx context.Context, version string) error {
	m, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer c.leave()
	if err := m.Finish(); err != nil {
		return err
	}
	u, err := c.builder.Finish()
	if err != nil {
		c.giveUp()
		return err
	}
	c.builder = nil
	complete := time.Now()
	// Not given up half-way: engines that have begun would be left with a part.
	ctx = context.WithoutCancel(ctx)
	if err := c.stage(ctx, u); err != nil {
		if dropping := c.each(func(e *engine.Engine) error { return e.Drop(ctx) }); dropping != nil {
			c.log.Warn("an update was not dropped", "cause", dropping)
		}
		c.giveUp()
		c.steering.Retire(u)
		return err
	}
	loaded := time.Now()
	c.retiring.Wait()
	// This is the decision: a group that fails from here on has the new weights when it is back.
	before := c.steering.Commit(u)
	swapping := c.each(func(e *engine.Engine) error { return e.Swap(ctx) })
	streams := c.streams
	c.retiring.Go(func() {
		c.steering.Retire(before)
		if streams {
			c.reserveStream()
		}
	})
	c.mu.Lock()
	c.machine = m
	c.updates++
	c.bytes = u.Bytes()
	if version == "" {
		version = strconv.Itoa(c.updates)
	}
	c.version = version
	c.mu.Unlock()
	if swapping != nil {
		c.log.Warn("ranks did not swap their weights: others take their place", "cause", swapping)
	}
	c.log.Info("weights were updated", "version", version, "mb", u.Bytes()>>20,
		"received_ms", complete.Sub(c.begun).Milliseconds(), "loaded_ms",
		loaded.Sub(complete).Milliseconds(), "swapped_ms", time.Since(loaded).Milliseconds())
	return nil
}

// Call runs a method on the ranks of all engines and returns the results, engine by engine, in rank
// order.
func (c *Control) Call(ctx context.Context, method string, args []byte,
	timeout time.Duration) ([][]byte, error) {
	engines := c.opt.Engines()
	results := make([][][]byte, len(engines))
	index := map[*engine.Engine]int{}
	for i, e := range engines {
		index[e] = i
	}
	err := c.each(func(e *engine.Engine) (err error) {
		i, ok := index[e]
		if !ok {
			return nil // has come meanwhile
		}
		results[i], err = e.Call(ctx, method, args, timeout)
		return err
	})
	var all [][]byte
	for _, r := range results {
		all = append(all, r...)
	}
	return all, err
}
