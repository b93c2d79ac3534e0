package groups

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// Supervisor owns the group of ranks that an engine computes on: the launcher that started them,
// the executor that drives them, and the epoch that tells one group from the next. What belongs to
// one attempt (listener, token, shared memory) is made by start and ends with it, so that a new
// group can take the place of one that failed. The launcher stays where the next group reuses
// ranks.
type Supervisor struct {
	// Backend is what starts the ranks: uni, mp or ray.
	Backend string
	// Options makes the options of one attempt. Its argument is the previous launcher if its ranks
	// may be reused, else nil.
	Options func(context.Context, executor.Launcher) (executor.Options, error)
	// files sets the files that the next ranks load, and returns the number of their revision,
	// which becomes that of the newest group.
	files    func(*queue.Init) (revision int64, err error)
	Revision int64
	// ready, if it is not nil, is called when all ranks of an attempt have loaded. options may set
	// it.
	ready func()
	// Patience is for how long the ranks of the next group may lack a place before its start ends
	// with a *launch.NoPlace; 0 is --ray-placement-timeout.
	Patience time.Duration
	// Room, if it is not nil, tells whether there is a place for so many more ranks than those of
	// the newest group. It is not called during a start.
	Room   func(ctx context.Context, ranks int) (bool, error)
	events status.Listener
	// Life ends with Stop, which calls quit: that ends a start under way.
	Life context.Context
	quit context.CancelFunc

	// starting is held during a start. launcher is the last one's, until it is stopped.
	starting sync.Mutex
	launcher executor.Launcher

	mu      sync.Mutex
	epoch   uint64
	group   *executor.Executor // the newest, also when it is dead; nil before the first
	stopped bool
}

// Start starts the next group and returns when all of its ranks have loaded. It ends the previous
// group first: two groups never hold the devices at once. cause is the previous group's failure,
// after which living ranks may be reused; nil reuses none. After Stop it returns ErrStopped.
func (s *Supervisor) Start(ctx context.Context, cause error) (*executor.Executor, error) {
	s.starting.Lock()
	defer s.starting.Unlock()
	var files queue.Init
	revision, err := s.files(&files)
	if err != nil {
		return nil, FilesError{err}
	}
	if err := s.endPrevious(ctx, cause); err != nil {
		return nil, err
	}
	started := time.Now()
	o, err := s.Options(ctx, s.launcher)
	if err != nil {
		return nil, err
	}
	o.Init.Files, o.Init.TokenizerFiles = files.Files, files.TokenizerFiles
	o.Init.DraftFiles = files.DraftFiles
	o.Init.Holder, o.Init.Later = files.Holder, files.Later
	o.Fresh = executor.LostRanks(cause)
	group, err := executor.Start(ctx, o)
	if o.Reuse {
		s.launcher = o.Launcher
	}
	if err != nil {
		if cause == nil { // else it is the next one's, which Failed reports
			emitOutput(s.events, err)
		}
		return nil, err
	}
	s.mu.Lock()
	stopped := s.stopped
	s.epoch++
	s.group, s.Revision = group, revision
	epoch := s.epoch
	s.mu.Unlock()
	if stopped {
		return nil, errors.Join(ErrStopped, s.end(ctx, group, s.launcher))
	}
	if s.ready != nil {
		s.ready()
	}
	ready := status.GroupReady{Epoch: epoch, Backend: s.Backend, Ranks: o.Init.Layout.World(),
		Took: time.Since(started)}
	for _, r := range group.Ranks() {
		ready.WeightBytes += r.WeightBytes
	}
	s.events.Emit(ready)
	return group, nil
}

// Stop ends the group; no other starts after it. Stopping twice is harmless.
func (s *Supervisor) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	s.quit()
	group, epoch := s.group, s.epoch
	s.mu.Unlock()
	if group == nil {
		return nil
	}
	started := time.Now()
	s.starting.Lock()
	defer s.starting.Unlock()
	err := s.end(ctx, group, s.launcher)
	s.events.Emit(status.GroupStopped{Epoch: epoch, Took: time.Since(started)})
	return err
}

// ErrStopped means that no group is started any more.
var ErrStopped = errors.New("engine is stopped")

const (
	// shutdownGrace is how long ranks may take to end by themselves, and then by force.
	shutdownGrace = 5 * time.Second
	leastGrace    = 2 * time.Second
)

// endPrevious ends the previous group, and its ranks unless they may be reused after cause.
func (s *Supervisor) endPrevious(ctx context.Context, cause error) error {
	before := s.Current()
	if s.launcher != nil && executor.CanReuse(cause) {
		if before == nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		return before.Detach(ctx)
	}
	launcher := s.launcher
	s.launcher = nil
	return s.end(ctx, before, launcher)
}

// end ends a group and its ranks, and those that its launcher still has after Detach. It takes
// shutdownGrace, less if ctx ends sooner, but leastGrace at least. Both arguments may be nil.
func (s *Supervisor) end(ctx context.Context, group *executor.Executor, l executor.Launcher) error {
	grace := shutdownGrace
	if end, ok := ctx.Deadline(); ok {
		grace = min(grace, max(time.Until(end), leastGrace))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	var errs []error
	if group != nil {
		errs = append(errs, group.Shutdown(ctx))
	}
	if l != nil {
		errs = append(errs, l.Stop(ctx, nil))
	}
	return errors.Join(errs...)
}

// Failed reports the failure of the group, and returns its epoch.
func (s *Supervisor) Failed(cause error) uint64 {
	s.mu.Lock()
	f := status.GroupFailed{Epoch: s.epoch, Rank: -1, Cause: cause.Error()}
	s.mu.Unlock()
	if rank := (*executor.Failure)(nil); errors.As(cause, &rank) {
		f.Rank, f.Node, f.PID = rank.Rank, rank.Node, rank.PID
	}
	s.events.Emit(f)
	emitOutput(s.events, cause)
	return f.Epoch
}

// Newest is the epoch of the newest group.
func (s *Supervisor) Newest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// Current is the newest group, which may be dead; nil before the first.
func (s *Supervisor) Current() *executor.Executor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.group
}

// Report returns the status of every rank of the newest group.
func (s *Supervisor) Report() []executor.RankStatus { return s.Current().Report() }

// Links are the connections of the newest group to ranks of other hosts.
func (s *Supervisor) Links() []metrics.Link { return s.Current().Links() }

// GPUs are those of the ranks of the newest group.
func (s *Supervisor) GPUs() []metrics.GPU { return s.Current().GPUs() }

// Stored is closed when no rank of the newest group stores packed weights any more.
func (s *Supervisor) Stored() <-chan struct{} { return s.Current().Stored() }

// emitOutput emits the details of a failure, and the last lines that a rank of another host wrote:
// lines of local ranks are printed as they come.
func emitOutput(to status.Listener, cause error) {
	var f *executor.Failure
	if !errors.As(cause, &f) {
		return
	}
	emit := func(source, line string) {
		to.Emit(status.RankOutput{Rank: f.Rank, Node: f.Node, PID: f.PID, Source: source,
			Line: line})
	}
	for line := range strings.Lines(f.Detail) {
		emit("detail", strings.TrimRight(line, "\n"))
	}
	if f.Node == launch.ThisHost {
		return
	}
	for _, line := range f.Stderr {
		emit("last output", line)
	}
}

// FilesError is an error about the model's files before a start: living ranks may be reused in the
// next one.
type FilesError struct{ error }

func (e FilesError) Unwrap() error { return e.error }
