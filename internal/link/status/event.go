package status

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/sys/figure"
)

// Event is something that happened to an engine or its group of ranks. The events of this package
// are all there are: the log, the metrics and every view of a running engine are made from them.
type Event interface {
	// Log is the event as a log record: its level, its message, and what belongs to it.
	Log() (slog.Level, string, []slog.Attr)
}

// Listener is notified of every event, in the order in which they happen to one emitter. Several
// goroutines may call it at once. It returns soon: the step loop may be its caller.
type Listener func(Event)

// Emit notifies the listener, if there is one.
func (l Listener) Emit(e Event) {
	if l != nil {
		l(e)
	}
}

// Tee notifies every listener, in order; nil ones are left out.
func Tee(listeners ...Listener) Listener {
	return func(e Event) {
		for _, l := range listeners {
			l.Emit(e)
		}
	}
}

// LogTo is a listener that logs every event, and nothing when log is nil.
func LogTo(log *slog.Logger) Listener {
	if log == nil {
		return nil
	}
	return func(e Event) {
		level, message, attrs := e.Log()
		log.LogAttrs(context.Background(), level, message, attrs...)
	}
}

// Details are attributes as LogTo's text handler shows them.
func Details(attrs []slog.Attr) string {
	var b strings.Builder
	for _, a := range attrs {
		v := a.Value.String()
		if v == "" || strings.ContainsAny(v, " =\"\n") {
			v = fmt.Sprintf("%q", v)
		}
		fmt.Fprintf(&b, " %s=%s", a.Key, v)
	}
	return strings.TrimSpace(b.String())
}

// PhaseEnded is the end of a phase of a group's start that went well: connect, place, …, load.
type PhaseEnded struct {
	// Name is the phase's, as the log has it: "ray connect".
	Name string
	Took time.Duration
	// Found is what the phase learned.
	Found []slog.Attr
}

// Log is at level info.
func (e PhaseEnded) Log() (slog.Level, string, []slog.Attr) {
	took := slog.Int64("ms", e.Took.Milliseconds())
	return slog.LevelInfo, e.Name, append([]slog.Attr{took}, e.Found...)
}

// Progress is how far the start of a group has come. It is not logged by itself at the default
// level: a terminal shows it.
type Progress struct {
	// Rank is -1 for the driver's own phases.
	Rank int
	// Phase is the name of what is under way.
	Phase string
	// Done and Total are bytes; Total is 0 when it is unknown.
	Done, Total int64
}

// Log is at level debug.
func (e Progress) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelDebug, "progress", []slog.Attr{
		slog.Int("rank", e.Rank), slog.String("phase", e.Phase), slog.Int64("done", e.Done),
		slog.Int64("total", e.Total),
	}
}

// WeightsCache says what became of a rank's file in the folder of packed weights.
type WeightsCache struct {
	Rank int
	// Found says that weights came from the file, Stored that it was written; Bytes is its weights.
	Found, Stored bool
	Bytes         int64
	// Failure is why it was not used or written, "" if it was.
	Failure string
}

// Log is at level warn for a failure: the rank goes on, but the next start takes longer.
func (e WeightsCache) Log() (slog.Level, string, []slog.Attr) {
	rank := slog.Int("rank", e.Rank)
	size := slog.Int64("mb", e.Bytes>>20)
	switch {
	case e.Failure != "":
		return slog.LevelWarn, "weights cache is of no use", []slog.Attr{rank,
			slog.String("cause", e.Failure)}
	case e.Stored:
		return slog.LevelInfo, "packed weights are stored for the next start",
			[]slog.Attr{rank, size}
	}
	return slog.LevelInfo, "packed weights of an earlier start are used", []slog.Attr{rank, size}
}

// HubLookup says that the driver asks a Hub for a model: no folder of this machine has its name.
type HubLookup struct {
	// Repo is the repository, Hub the address of the Hub.
	Repo, Hub string
}

// Log is at level info.
func (e HubLookup) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "looking for " + e.Repo + " on " + e.Hub, nil
}

// GroupReady says that every rank of a group has loaded its share of the model.
type GroupReady struct {
	// Epoch counts the groups that this engine has started, from 1.
	Epoch uint64
	// Backend is what started the ranks: uni, mp or ray.
	Backend string
	Ranks   int
	// WeightBytes is the size of all shards in memory.
	WeightBytes int64
	Took        time.Duration
}

// Log is at level debug: the server's own line of readiness says more.
func (e GroupReady) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelDebug, "group is ready", []slog.Attr{
		slog.Uint64("epoch", e.Epoch), slog.String("backend", e.Backend),
		slog.Int("ranks", e.Ranks), slog.Int64("weight_bytes", e.WeightBytes),
		slog.Int64("ms", e.Took.Milliseconds()),
	}
}

// GroupFailed is the end of a group that was not asked for: the first failure of any of its ranks.
type GroupFailed struct {
	Epoch uint64
	// Rank is -1 when no single rank is to blame; Node and PID are then empty.
	Rank int
	Node string
	PID  int
	// Cause is the whole failure in one line, with rank, node, pid, step and phase.
	Cause string
}

// Log is at level error.
func (e GroupFailed) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelError, "workers failed", []slog.Attr{
		slog.String("cause", e.Cause),
	}
}

// GroupRestarting says that another group takes the place of one that failed.
type GroupRestarting struct {
	// Epoch is the group that failed.
	Epoch uint64
	// Restart counts those within the window in which Allowed are.
	Restart, Allowed int
	// Delay is how long the start waits, after failures that followed each other.
	Delay time.Duration
	// Requests is how many wait for it.
	Requests int
}

// Log is at level warn.
func (e GroupRestarting) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelWarn, "restarting the workers", []slog.Attr{
		slog.Int("restart", e.Restart), slog.Int("allowed", e.Allowed),
		slog.Int64("delay_ms", e.Delay.Milliseconds()), slog.Int("requests", e.Requests),
	}
}

// GroupRecovered says that requests go on with a new group.
type GroupRecovered struct {
	// Epoch is the new group.
	Epoch uint64
	// Requests is how many go on; Took is the time since the failure was known.
	Requests int
	Took     time.Duration
	// Reused is the number of ranks that stayed with their loaded model; CacheKept says that the
	// prefix cache stayed too.
	Reused    int
	CacheKept bool
}

// Log is at level info.
func (e GroupRecovered) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "workers are back", []slog.Attr{
		slog.Uint64("epoch", e.Epoch), slog.Int("requests", e.Requests),
		slog.Int64("ms", e.Took.Milliseconds()), slog.Int("ranks_kept", e.Reused),
		slog.Bool("prefix_cache_kept", e.CacheKept),
	}
}

// CacheReset says that what an engine has computed of requests is void: its prefix cache is empty.
type CacheReset struct{}

// Log is at level debug.
func (e CacheReset) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelDebug, "prefix cache is reset", nil
}

// RequestCondemned is a request that was failed alone: every group that computed it failed.
type RequestCondemned struct {
	Request uint64
	// Cause is the last failure.
	Cause string
}

// Log is at level error.
func (e RequestCondemned) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelError, "request failed: workers fail whenever they compute it", []slog.Attr{
		slog.Uint64("request", e.Request), slog.String("cause", e.Cause),
	}
}

// ModelChanged says that a file of the model was replaced on disk: ranks go on with the one that
// was loaded.
type ModelChanged struct {
	// File is its path, Identity what was loaded, Now what is there ("" when nothing is).
	File, Identity, Now string
}

// Log is at level warn.
func (e ModelChanged) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelWarn, "a file of the model was replaced: the one that was loaded is kept " +
			"until the " +
			"server is restarted (--on-model-change)", []slog.Attr{
			slog.String("file", e.File), slog.String("identity", e.Identity),
			slog.String("now", e.Now),
		}
}

// ModelAdopted says that the files of the model were replaced on disk, and that answers come from
// the new ones from now on.
type ModelAdopted struct {
	// Folder is where they are, Identity what they are, Before what answered until now.
	Folder, Identity, Before string
}

// Log is at level warn.
func (e ModelAdopted) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelWarn, "other weights answer from now on: the files of the model were replaced",
		[]slog.Attr{slog.String("folder", e.Folder), slog.String("identity", e.Identity),
			slog.String("before", e.Before)}
}

// RankOutput is a line of what is known of a failed rank beside its cause.
type RankOutput struct {
	Rank int
	Node string
	PID  int
	// Source is "detail" for the stack of a panic and for all of Ray's words, "last output" for
	// what the rank wrote.
	Source string
	Line   string
}

// Log is at level error.
func (e RankOutput) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelError, e.Source, []slog.Attr{
		slog.Int("rank", e.Rank), slog.String("node", e.Node), slog.Int("pid", e.PID),
		slog.String("line", e.Line),
	}
}

// GroupStopped is the end of a group that was asked for.
type GroupStopped struct {
	Epoch uint64
	Took  time.Duration
}

// Log is at level debug.
func (e GroupStopped) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelDebug, "group is stopped", []slog.Attr{
		slog.Uint64("epoch", e.Epoch), slog.Int64("ms", e.Took.Milliseconds()),
	}
}

// RankAbandoned says that a killed rank did not end: its successor is started beside it.
type RankAbandoned struct {
	Rank int
	Node string
	PID  int
}

// Log is at level error.
func (e RankAbandoned) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelError, "a rank was killed and does not end (frozen, in a debugger, or " +
			"waiting for a " +
			"device): it is left behind", []slog.Attr{
			slog.Int("rank", e.Rank), slog.String("node", e.Node), slog.Int("pid", e.PID),
		}
}

// RankMoves says that a rank moves again that RankStalled was said of, or owes nothing any more.
type RankMoves struct {
	Rank int
	Node string
	PID  int
	// After is for how long it had not moved.
	After time.Duration
}

// Log is at level info.
func (e RankMoves) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "rank moves again", []slog.Attr{
		slog.Int("rank", e.Rank), slog.String("node", e.Node), slog.Int("pid", e.PID),
		slog.Any("seconds", figure.Seconds(e.After, 1)),
	}
}

// RankStalled says that a rank has not moved for a while although work is queued for it, and that
// no other rank holds it up.
type RankStalled struct {
	Rank int
	Node string
	PID  int
	// Place is the rank's in each dimension of the layout that is larger than 1, as "TP0_PP1".
	Place string
	// For is how long it has not moved.
	For time.Duration
	// Phase is what it was doing, Process what the kernel says of its process ("" for one of
	// another host).
	Phase, Process string
	// Received, Started and Finished are the last steps it knows of, Sent the last one sent to all.
	Received, Started, Finished, Sent uint64
	// Call is the method of the call it is busy with, if any.
	Call string
}

// Log is at level warn.
func (e RankStalled) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelWarn, "rank is stalled", []slog.Attr{
		slog.Int("rank", e.Rank), slog.String("node", e.Node), slog.Int("pid", e.PID),
		slog.String("place", e.Place), slog.Any("seconds", figure.Seconds(e.For, 1)),
		slog.String("phase", e.Phase), slog.String("process", e.Process),
		slog.Uint64("received", e.Received), slog.Uint64("started", e.Started),
		slog.Uint64("finished", e.Finished), slog.Uint64("sent", e.Sent),
		slog.String("call", e.Call),
	}
}

// StepSlow is a step that took longer than the time after which ranks count as stalled, and ended
// well.
type StepSlow struct {
	Step uint64
	// Requests is how many requests it computed, Tokens how many of their tokens.
	Requests, Tokens int
	Took             time.Duration
}

// Log is at level warn.
func (e StepSlow) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelWarn, "step was slow", []slog.Attr{
		slog.Uint64("step", e.Step), slog.Int("requests", e.Requests),
		slog.Int("tokens", e.Tokens),
		slog.Any("seconds", figure.Seconds(e.Took, 1)),
	}
}

// Preempted says that running requests gave their blocks up and wait to be computed again.
type Preempted struct {
	// Requests is how many since the last such event; Running and Waiting are those now.
	Requests, Running, Waiting int
}

// Log is at level debug: a full cache preempts many times a second.
func (e Preempted) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelDebug, "requests preempted", []slog.Attr{
		slog.Int("requests", e.Requests), slog.Int("running", e.Running),
		slog.Int("waiting", e.Waiting),
	}
}

// RelayoutFailed says that a group of another layout did not start: one of the old layout goes on.
type RelayoutFailed struct {
	// Layout is what was asked for, Cause why it is not to be had.
	Layout, Cause string
}

// Log is at level error.
func (e RelayoutFailed) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelError, "the other layout did not start", []slog.Attr{
		slog.String("layout", e.Layout), slog.String("cause", e.Cause)}
}

// Shrunk says that an engine serves with fewer ranks than are wanted: there was no place for more.
type Shrunk struct {
	// Layout is the one that serves, with as many ranks; Wanted is how many there should be.
	Layout        string
	Ranks, Wanted int
	// Missing is what there was no place for.
	Missing string
}

// Log is at level warn.
func (e Shrunk) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelWarn, "serving with fewer ranks", []slog.Attr{
		slog.String("layout", e.Layout), slog.Int("ranks", e.Ranks),
		slog.Int("wanted", e.Wanted), slog.String("missing", e.Missing)}
}

// Grown says that an engine that had shrunk has all ranks again.
type Grown struct {
	Layout string
	Ranks  int
	// Took is for how long requests were held.
	Took time.Duration
}

// Log is at level info.
func (e Grown) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "serving with all ranks again", []slog.Attr{
		slog.String("layout", e.Layout), slog.Int("ranks", e.Ranks),
		slog.Int64("ms", e.Took.Milliseconds())}
}

// Stopping says that an engine takes no new requests; those it has may finish for a while.
type Stopping struct{ Running, Waiting int }

// Log is at level debug: the server logs its own shutdown.
func (e Stopping) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelDebug, "engine is stopping", []slog.Attr{
		slog.Int("running", e.Running), slog.Int("waiting", e.Waiting),
	}
}
