package fleetbench

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/process"
	"github.com/eagleray/eagleray/internal/link/queue/fanin"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/queue/link"
)

// goroutines starts ranks as goroutines, each on a link of its own.
type goroutines struct {
	latency  time.Duration
	hub      *fanin.Hub
	ends     []*conn // the ranks', by rank
	exited   chan launch.Exit
	stopping atomic.Bool
	running  sync.WaitGroup
}

func newGoroutines(latency time.Duration) *goroutines { return &goroutines{latency: latency} }

// Launch starts the ranks. The end of a link is the end of its rank: nothing resumes it.
func (l *goroutines) Launch(_ context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	l.exited = make(chan launch.Exit, len(specs))
	links := make([]*link.Link, len(specs))
	workers := make([]launch.Worker, len(specs))
	for i := range specs {
		ours, theirs := newConns(l.latency)
		var session handshake.Session
		binary.LittleEndian.PutUint64(session[:], uint64(i)+1)
		o := link.Options{Grace: -1}
		links[i] = link.Accept(ours, session, o)
		l.ends = append(l.ends, theirs)
		l.running.Go(func() {
			port := port{link.Connect(theirs, session, nil, o)}
			_ = serve(port, i) // the end of its link says enough
			_ = port.Close()
		})
		l.running.Go(func() {
			<-links[i].Down()
			if !l.stopping.Load() {
				l.exited <- launch.Exit{Rank: i, Node: launch.ThisHost,
					End: launch.End{How: launch.Lost, Reason: links[i].Err().Error()}}
			}
		})
	}
	l.hub = fanin.New(nil, links)
	for i := range workers {
		workers[i] = launch.Worker{Rank: i, LocalRank: i, Node: launch.ThisHost, Hub: l.hub}
	}
	return workers, nil
}

// port is a rank's end of a link.
type port struct{ *link.Link }

func (p port) Close() error { return p.Link.Close("rank is ending") }

func (l *goroutines) Exited() <-chan launch.Exit { return l.exited }

// kill cuts the connection of a rank.
func (l *goroutines) kill(rank int) error { return l.ends[rank].Close() }

// Stop ends the ranks and waits for them.
func (l *goroutines) Stop(context.Context, error) error {
	l.stopping.Store(true)
	if l.hub == nil {
		return nil
	}
	err := l.hub.Close()
	for _, end := range l.ends {
		_ = end.Close()
	}
	l.running.Wait()
	return err
}

// processes starts ranks as mp does.
type processes struct {
	*process.Launcher
	workers []launch.Worker
}

func newProcesses() *processes {
	return &processes{Launcher: process.New(nil, Verb)}
}

// Launch starts the ranks and notes their processes.
func (l *processes) Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	var err error
	l.workers, err = l.Launcher.Launch(ctx, specs)
	return l.workers, err
}

// kill ends a rank's process.
func (l *processes) kill(rank int) error {
	return syscall.Kill(l.workers[rank].PID, syscall.SIGKILL)
}
