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
// few seconds. All ranks have one line.
type progress struct {
	line
	work map[string]*work
	// doing is the work of each place that reports.
	doing map[place]string
}

// place names a rank that reports; rank is -1 for the driver.
type place struct{ engine, rank int }

// work is a phase of all ranks that are in it, or have been.
type work struct {
	began time.Time
	// before is what was done when it was first heard of.
	before int64
	of     map[place]status.Progress
}

func newProgress(out *os.File) *progress {
	return progressTo(out, isTerminal(out))
}

// progressTo shows it through another writer to the same place.
func progressTo(out io.Writer, terminal bool) *progress {
	p := &progress{line: newLine(out, terminal)}
	p.anew()
	return p
}

// anew forgets what ranks have done: what they report next is of another start.
func (p *progress) anew() { p.work, p.doing = map[string]*work{}, map[place]string{} }

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
	switch e := inner.(type) {
	case status.GroupReady, status.GroupRestarting:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.anew()
	case status.Progress:
		p.mu.Lock()
		defer p.mu.Unlock()
		now := time.Now()
		p.note(place{engine, e.Rank}, e, now)
		p.show(now, func() string { return p.describe(e.Phase, now) })
	}
}

// note keeps what a place says of its work. The one it did before is done.
func (p *progress) note(at place, e status.Progress, now time.Time) {
	kind := kindOf(e.Phase)
	if len(p.work) == 0 {
		p.started = now
	}
	if last := p.doing[at]; last != "" && last != kind {
		done := p.work[last].of[at]
		done.Done = done.Total
		p.work[last].of[at] = done
	}
	p.doing[at] = kind
	w := p.work[kind]
	if w == nil {
		w = &work{began: now, before: e.Done, of: map[place]status.Progress{}}
		p.work[kind] = w
	}
	w.of[at] = e
}

// kindOf is a phase without the file that it is about: files are downloaded side by side.
func kindOf(phase string) string {
	if kind, _, ok := strings.Cut(phase, " "); ok && kind == "download" {
		return kind
	}
	return phase
}

// end leaves the line clean.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// describe is the line of a phase: how far all its ranks are together, how fast, and how long it
// will take if it goes on so.
func (p *progress) describe(phase string, now time.Time) string {
	w := p.work[kindOf(phase)]
	var done, total int64
	ranks, known := 0, true
	for at, e := range w.of {
		done += e.Done
		total += e.Total
		known = known && e.Total > 0
		if at.rank >= 0 {
			ranks++
		}
	}
	text := phase
	if ranks > 1 {
		text = fmt.Sprintf("%s, %d ranks", phase, ranks)
	}
	const gb = 1e9
	if known {
		done = min(done, total)
		if p.terminal {
			const width = 20
			full := int(width * done / total)
			text += " [" + strings.Repeat("#", full) + strings.Repeat("-", width-full) + "]"
		}
		text += fmt.Sprintf(" %3d%% of %.2f GB", 100*done/total, float64(total)/gb)
	} else if done > 0 {
		text += fmt.Sprintf(" %.2f GB", float64(done)/gb)
	}
	took := now.Sub(w.began).Seconds()
	if took <= 0.5 || done <= w.before {
		return text
	}
	rate := float64(done-w.before) / took
	text += fmt.Sprintf(", %.2f GB/s", rate/gb)
	if left := float64(total-done) / rate; known && left >= 1 {
		text += ", " + roughly(time.Duration(left*float64(time.Second))) + " left"
	}
	return text
}

// roughly is a time as one says it: in seconds below two minutes, else in minutes.
func roughly(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
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
