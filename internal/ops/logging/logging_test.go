package logging

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestText(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(NewText(&out, slog.LevelInfo, false))
	log.Info("ready", "model", "go-std-tiny", "took", 31*time.Millisecond, "url",
		"http://127.0.0.1:8000")
	log.Debug("hidden")
	log.Warn("a message that is longer than its column", "n", 3)
	log.Error("cut\noff \x1b[31m", "cause", "rank 1: signal", "empty", "", "line", "a\nb",
		slog.Group("g", "x", 1, "y", true))
	log.With("rank", 1).WithGroup("link").Info("up", "ms", 1.5)
	log.Info("bare")
	got := ""
	for line := range strings.Lines(out.String()) {
		if _, err := time.Parse(time.TimeOnly, line[:8]); err != nil {
			t.Error(err)
		}
		got += line[9:]
	}
	const want = `INFO  ready               model=go-std-tiny took=31ms url=http://127.0.0.1:8000
WARN  a message that is longer than its column n=3
ERROR cut\noff \x1b[31m   cause="rank 1: signal" empty="" line="a\nb" g.x=1 g.y=true
INFO  up                  rank=1 link.ms=1.5
INFO  bare
`
	if got != want {
		t.Errorf("logged\n%swant\n%s", got, want)
	}
	out.Reset()
	slog.New(NewText(&out, slog.LevelInfo, true)).Error("x", "a", 1)
	if !strings.Contains(out.String(), red+"ERROR"+plain) || !strings.Contains(out.String(),
		faint+"a=1"+plain) {
		t.Errorf("no colours in %q", out.String())
	}
}

// The format follows what the log is written to, unless one is asked for.
func TestFormats(t *testing.T) {
	for format, want := range map[string]string{"auto": "level=INFO msg=hello a=1 wait=1.5s",
		"logfmt": "level=INFO msg=hello a=1 wait=1.5s",
		"json":   `"level":"INFO","msg":"hello","a":1,"wait_seconds":1.5}`,
		"text":   "INFO  hello               a=1 wait=1.5s"} {
		r, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		log, w := New(out, format)
		log.Info("hello", "a", 1, "wait", 1500*time.Millisecond)
		w.Close(time.Minute)
		out.Close()
		var got bytes.Buffer
		if _, err := got.ReadFrom(r); err != nil || !strings.HasSuffix(got.String(), want+"\n") {
			t.Errorf("%s: %q, error %v", format, got.String(), err)
		}
		r.Close()
	}
}

// stuck is a reader that takes nothing until it is released.
type stuck struct {
	release chan struct{}
	mu      sync.Mutex
	got     bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.release
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.Write(p)
}

// A log that is not read holds nothing up; what was dropped is counted once it is read again.
func TestWriterNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &stuck{release: make(chan struct{})}
		w := NewWriter(out)
		counted := 0
		w.lost = func(n int) { counted += n }
		line := []byte(strings.Repeat("x", 1023) + "\n")
		const lines = 5000
		for range lines {
			if n, err := w.Write(line); n != len(line) || err != nil {
				t.Fatal(n, err)
			}
		}
		synctest.Wait()
		close(out.release)
		synctest.Wait()
		got := strings.Count(out.got.String(), "\n")
		if got < maxPending/1024 || got+counted != lines {
			t.Errorf("%d lines arrived and %d were counted as dropped, of %d", got, counted, lines)
		}
		w.Close(time.Minute)
	})
}

// Close does not wait longer than it is told to.
func TestWriterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &stuck{release: make(chan struct{})}
		w := NewWriter(out)
		w.Write([]byte("line\n"))
		started := time.Now()
		w.Close(time.Second)
		if took := time.Since(started); took != time.Second {
			t.Errorf("it took %v", took)
		}
		close(out.release)
		synctest.Wait()
		if out.got.String() != "line\n" {
			t.Errorf("written: %q", out.got.String())
		}
	})
}

type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// A log whose reader is gone goes on as if it were read.
func TestWriterGone(t *testing.T) {
	w := NewWriter(gone{})
	log := slog.New(slog.NewTextHandler(w, nil))
	for range 100 {
		log.Info("x")
	}
	w.Close(time.Minute)
}
