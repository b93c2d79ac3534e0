package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/eagleray/eagleray/internal/link/status"
)

// quiet is how long a start may take before it is shown to be going on.
const quiet = 2 * time.Second

// progress shows how a start goes on: a line rewritten in place on a terminal, else a line every
// few seconds.
type progress struct {
	line
	phaseAt map[place]phaseStart
}

// place names the rank of the phase.
type place struct{ engine, rank int }

type phaseStart struct {
	phase string
	at    time.Time
}

func newProgress(out *os.File) *progress {
	return progressTo(out, isTerminal(out))
}

// progressTo shows it through another writer to the same place.
func progressTo(out io.Writer, terminal bool) *progress {
	return &progress{line: newLine(out, terminal), phaseAt: map[place]phaseStart{}}
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// line is what progress is shown in.
type line struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	started  time.Time
	shown    time.Time
	width    int
}

func newLine(out io.Writer, terminal bool) line {
	return line{out: out, terminal: terminal, started: time.Now()}
}

// show rewrites the line, unless it is too early or the last time was just now.
func (l *line) show(now time.Time, text func() string) {
	every := 5 * time.Second
	if l.terminal {
		every = 200 * time.Millisecond
	}
	if now.Sub(l.started) < quiet || now.Sub(l.shown) < every {
		return
	}
	l.shown = now
	s := text()
	if !l.terminal {
		fmt.Fprintln(l.out, s)
		return
	}
	fmt.Fprintf(l.out, "\r%s%s", s, strings.Repeat(" ", max(0, l.width-len(s))))
	l.width = len(s)
}

func (l *line) clear() {
	if l.width > 0 {
		fmt.Fprintf(l.out, "\r%s\r", strings.Repeat(" ", l.width))
		l.width = 0
	}
}

// listen is a status.Listener.
func (p *progress) listen(event status.Event) {
	inner, engine := status.Source(event)
	e, ok := inner.(status.Progress)
	if !ok {
		return
	}
	_, several := event.(status.OfEngine)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	at := place{engine, e.Rank}
	start := p.phaseAt[at]
	if start.phase != e.Phase {
		start = phaseStart{e.Phase, now}
		p.phaseAt[at] = start
	}
	p.show(now, func() string {
		text := describe(e, now.Sub(start.at))
		if several {
			text = fmt.Sprintf("engine %d, %s", engine, text)
		}
		return text
	})
}

// end leaves the line clean.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func describe(e status.Progress, took time.Duration) string {
	line := e.Phase
	if e.Rank >= 0 {
		line = fmt.Sprintf("rank %d: %s", e.Rank, e.Phase)
	}
	const gb = 1e9
	done, total := e.Done, e.Total
	if total > 0 {
		line += fmt.Sprintf(" %3d%% of %.2f GB", min(100, 100*done/total), float64(total)/gb)
	} else if done > 0 {
		line += fmt.Sprintf(" %.2f GB", float64(done)/gb)
	}
	if s := took.Seconds(); s > 0.5 && done > 0 {
		line += fmt.Sprintf(", %.2f GB/s", float64(done)/gb/s)
	}
	return line
}

// meter shows how far a benchmark is.
type meter struct {
	line
	// off shows nothing.
	off  bool
	what string
}

func newMeter(out *os.File, what string) *meter {
	return &meter{line: newLine(out, isTerminal(out)), what: what}
}

// update shows that done of total are done.
func (m *meter) update(done, total int) {
	m.tell(func(took time.Duration) string {
		s := fmt.Sprintf("%d of %d %s, %.0f s", done, total, m.what, took.Seconds())
		if done > 0 {
			left := took.Seconds() * float64(total-done) / float64(done)
			s += fmt.Sprintf(", %.0f s left, %.2f a second", left, float64(done)/took.Seconds())
		}
		return s
	})
}

// waiting shows that the server is not there yet, and why.
func (m *meter) waiting(took time.Duration, why error) {
	m.tell(func(time.Duration) string {
		return fmt.Sprintf("waiting for the server, %.0f s: %v", took.Seconds(), why)
	})
}

func (m *meter) tell(text func(took time.Duration) string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); !m.off {
		m.show(now, func() string { return text(now.Sub(m.started)) })
	}
}

// restart counts something else from now on.
func (m *meter) restart(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clear()
	m.what, m.started = what, time.Now()
}

// end leaves the line clean.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clear()
}
