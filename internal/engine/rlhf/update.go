package rlhf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// Session is how a trainer brings weights.
type Session struct {
	// Token is the secret of the session.
	Token string `json:"token"`
	// Unix is an abstract unix socket, without its leading zero byte.
	Unix string `json:"unix"`
	// TCP is an address under TLS, whose certificate, in PEM, is for the name eagleray-weights;
	// both are "" when trainers of other machines are not let in.
	TCP         string `json:"tcp,omitempty"`
	Certificate string `json:"certificate,omitempty"`
}

// Init opens a session of weight transfer, anew if there is one: an update under way is given up.
// The system finds the memory for an update now, which takes it long: that of the ranks, and with
// streams that for the bytes that come.
func (c *Control) Init(ctx context.Context, streams bool) (Session, error) {
	m, err := c.enter(ctx)
	if err != nil {
		return Session{}, err
	}
	defer c.leave()
	if p := c.opt.Engines()[0].Info().Pooling; p != nil && p.Classes != nil {
		// Ranks have all other tensors: an update of these alone would leave a head that is not
		// theirs.
		return Session{}, &SourceError{errors.New(
			"the weights of a classifier cannot be updated: its head, score.weight, is not in " +
				"the ranks")}
	}
	if q := c.opt.Engines()[0].Model().Quantization; q != nil {
		return Session{}, &SourceError{fmt.Errorf("the weights of a model that is stored "+
			"quantised (quant_method %s) cannot be updated: serve the one that it was made of, "+
			"with --quantization int8 or int4 if it is to be as small", q.Method)}
	}
	if err := m.Init(); err != nil {
		return Session{}, err
	}
	c.fail(nil)
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

// fail drops the update under way, if there is one, because of an error.
func (c *Control) fail(cause error) {
	if c.builder != nil {
		c.builder.Close()
		c.builder = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cause != nil {
		c.machine.Fail(cause)
	}
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
	c.builder.MayLack(c.further)
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
		c.fail(err)
		return err
	}
	c.become(m)
	return nil
}

// passes says that a tensor of an update has no use here.
func (c *Control) passes(name string) bool {
	return c.passing[name] || weights.Passes(name, c.tied, c.beside)
}

// load takes in files.
func (c *Control) load(path string) error {
	folder, err := c.allowed(path)
	if err != nil {
		return &SourceError{err}
	}
	files, err := checkpoint.Open(folder)
	if err != nil {
		// The client may not be allowed to read the file: what is in it is told to the log alone.
		c.log.Warn("weights were not loaded", "path", path, "cause", err)
		if errors.Is(err, fs.ErrNotExist) {
			return &SourceError{fmt.Errorf("there are no weights at %s: safetensors files are "+
				"loaded", path)}
		}
		return &SourceError{fmt.Errorf("what is at %s is not read as weights, or is damaged: the "+
			"server's log says why", path)}
	}
	defer files.Close()
	var pieces []weights.Piece
	for _, name := range files.Names() {
		if c.passes(name) {
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
	if err := c.builder.Load(files, pieces); err != nil {
		return &SourceError{err}
	}
	return nil
}

// SourceError is about weights that cannot be read, or cannot be computed with.
type SourceError struct{ Err error }

func (e *SourceError) Error() string { return e.Err.Error() }
func (e *SourceError) Unwrap() error { return e.Err }

// allowed is a folder of a checkpoint, or of one file alone, if it is the model's own or lies below
// one of Options.Allowed, through whatever links. An error says nothing of paths elsewhere, not
// even whether there is something.
func (c *Control) allowed(path string) (checkpoint.Folder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = path
	}
	parent := filepath.Dir(path)
	own := c.opt.Folder != "" && (sameFolder(path, c.opt.Folder) || sameFolder(parent,
		c.opt.Folder))
	if !own && !c.below(real) {
		return nil, fmt.Errorf("%s is not below a folder of --allowed-local-weights%s", path,
			c.ownFolder())
	}
	if err != nil {
		return nil, fmt.Errorf("weights at %s: %w", path, cause(err))
	}
	info, err := os.Stat(real)
	if err != nil {
		return nil, fmt.Errorf("weights at %s: %w", path, cause(err))
	}
	name := ""
	if !info.IsDir() {
		path, name = parent, filepath.Base(path)
	}
	f, err := checkpoint.Dir(path)
	if err != nil {
		return nil, fmt.Errorf("weights at %s: %w", path, cause(err))
	}
	if !own {
		f = within{f, c}
	}
	if name != "" {
		return checkpoint.Single(f, name), nil
	}
	return f, nil
}

// cause is an error of the system without the path, which the caller has.
func cause(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (c *Control) ownFolder() string {
	if c.opt.Folder == "" {
		return ""
	}
	return ", nor is it the model's own folder"
}

// sameFolder says that two paths are of one folder.
func sameFolder(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && x.IsDir() && os.SameFile(x, y)
}

func (c *Control) below(path string) bool { return Below(c.opt.Allowed, path) }

// Below says that a path without links is below one of some folders.
func Below(folders []string, path string) bool {
	for _, dir := range folders {
		dir, err := filepath.Abs(dir)
		if err == nil {
			dir, err = filepath.EvalSymlinks(dir)
		}
		if err != nil {
			continue
		}
		if rest, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rest) {
			return true
		}
	}
	return false
}

// within is a folder whose files, too, must lie below an allowed one, through whatever links.
type within struct {
	checkpoint.Folder
	control *Control
}

func (w within) check(name string) error {
	real, err := filepath.EvalSymlinks(filepath.Join(w.Location(), name))
	if err == nil && !w.control.below(real) {
		err = fmt.Errorf("%s leads out of the folders of --allowed-local-weights: %w",
			filepath.Join(w.Location(), name), fs.ErrPermission)
	}
	return err
}

// ReadFile implements checkpoint.Folder.
func (w within) ReadFile(name string) ([]byte, error) {
	if err := w.check(name); err != nil {
		return nil, err
	}
	return w.Folder.ReadFile(name)
}

// Map implements checkpoint.Folder.
func (w within) Map(name string) (*checkpoint.View, error) {
	if err := w.check(name); err != nil {
		return nil, err
	}
	return w.Folder.Map(name)
}

// stream takes in what a trainer's connection brings. What it brings is compared with the model
// first.
func (c *Control) stream(ctx context.Context, s Source) error {
	var counted []weights.Piece
	for i := range s.Pieces {
		p := &s.Pieces[i]
		if !c.passes(p.Name) {
			counted = append(counted, *p)
		} else if _, err := p.Size(); err != nil {
			return &SourceError{err}
		}
	}
	if err := c.builder.Check(counted); err != nil {
		return err
	}
	in, err := c.receiver.await(ctx, s.Stream)
	if err != nil {
		return &SourceError{err}
	}
	if in.memory != nil {
		defer in.conn.Close()
		err = c.builder.Adopt(in.memory, counted)
	} else {
		err = receive(ctx, in.conn, c.builder, s.Pieces, c.passes)
	}
	if err != nil {
		return &SourceError{err}
	}
	return nil
}

// unsound is the error of a rank about what is in the weights as one about their source.
func unsound(err error) error {
	var r *executor.RPCError
	if errors.As(err, &r) && r.Type == fmt.Sprintf("%T", &weights.UnsoundError{}) {
		return &SourceError{errors.New(r.Message)}
	}
	return err
}

// Finish has all ranks of all engines compute with the weights that came, from the same step of
// each engine on, and gives them a version, by default their number. On an error all compute with
// those from before.
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
		c.fail(err)
		return err
	}
	c.builder = nil
	complete := time.Now()
	// Not given up half-way: engines that have begun would be left with a part.
	ctx = context.WithoutCancel(ctx)
	if err := c.stage(ctx, u); err != nil {
		dropping := c.each(func(e *engine.Engine) error { return drop(ctx, e) })
		if dropping != nil {
			c.trouble("an update was not dropped", dropping)
		}
		err = unsound(err)
		c.fail(err)
		c.wanted.Retire(u)
		return err
	}
	loaded := time.Now()
	c.retiring.Wait()
	// This is the decision: a group that fails from here on has the new weights when it is back.
	before := c.wanted.Commit(u)
	swapping := c.each(func(e *engine.Engine) error { return e.Equip(ctx) })
	streams := c.streams
	c.retiring.Go(func() {
		c.wanted.Retire(before)
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
		c.trouble("ranks did not swap their weights: others take their place", swapping)
	}
	c.opt.Events.Emit(status.WeightsUpdated{Version: version, Bytes: u.Bytes(),
		Received: complete.Sub(c.begun), Loaded: loaded.Sub(complete), Swapped: time.Since(loaded)})
	return nil
}
