package rlhf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/model/checkpoint"
	"github.com/eagleray/eagleray/internal/weights"
)

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
	if p := c.opt.Engines()[0].Info().Pooling; p != nil && p.Classes != nil {
		// Ranks have all other tensors: an update of these alone would leave a head that is not theirs.
		return Session{}, &SourceError{errors.New("the weights of a classifier cannot be updated: " +
			"its head, score.weight, is not in the ranks")}
	}
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
func (s single) Map(string) (*checkpoint.View, error) { return s.Folder.Map(s.name) }

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
