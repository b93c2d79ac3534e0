package engine_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// prefixed are requests whose prompts fill some blocks, those of one n the same beginning.
func prefixed(e *engine.Engine, n int) []*engine.Request {
	list := sampled(e, n)
	for i, r := range list {
		words := e.Info().Tokenizer.Encode(strings.Repeat(
			fmt.Sprintf("Package %d has strings and bytes. ", i%3), 12), false)
		r.Prompt = slices.Concat(words, r.Prompt)
	}
	return list
}

// files are those of the blocks in a folder.
func files(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*.kv"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// awaitFiles waits until there are so many files, and no more come.
func awaitFiles(t *testing.T, dir string, n int) {
	t.Helper()
	for last := -1; ; {
		now := len(files(t, dir))
		if now >= n && now == last {
			return
		}
		last = now
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("%d files of %d", now, n)
		}
	}
}

// TestOffload asks engines that store blocks in one folder, one after the other and at the same
// time, with few blocks and after all files were damaged: answers are those without it.
func TestOffload(t *testing.T) {
	plain := openEngine(t, nil)
	want := receiveAll(t, plain, prefixed(plain, 6), func(int) {})
	for _, c := range []struct {
		name string
		set  func(p *config.Parallel)
	}{
		{"one rank", func(p *config.Parallel) {}},
		{"tp 2, pp 2", func(p *config.Parallel) {
			p.Backend, p.TensorParallelSize, p.PipelineParallelSize = "mp", 2, 2
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "kv")
			var events recorded
			open := func(more func(*config.Config)) *engine.Engine {
				e, _ := openWith(t, func(o *config.Config) {
					o.Cache.Offloading.GiB, o.Cache.Offloading.Dir = 0.1, dir
					o.Parallel.CPUThreads = 1
					c.set(&o.Parallel)
					more(o)
				}, events.add)
				return e
			}
			hits := func(e *engine.Engine, what string) uint64 {
				t.Helper()
				same(t, what, receiveAll(t, e, prefixed(e, 6), func(int) {}), want)
				return e.Totals().ExternalHits
			}
			first := open(func(*config.Config) {})
			if n := hits(first, "without files"); n != 0 {
				t.Errorf("%d tokens came from files before there were any", n)
			}
			awaitFiles(t, dir, 20)
			second := open(func(*config.Config) {})
			if n := hits(second, "another engine"); n < 3*48 {
				t.Errorf("%d tokens came from files of the other engine", n)
			}
			few := open(func(o *config.Config) { o.Cache.Blocks, o.Model.MaxModelLen = 24, 256 })
			hits(few, "few blocks")
			for range 2 {
				before := few.Totals().ExternalHits
				if n := hits(few, "few blocks again"); n-before < 48 {
					t.Errorf("%d tokens came back from files", n-before)
				}
			}
			for i, path := range files(t, dir) {
				raw, err := os.ReadFile(path)
				if err == nil && i%2 == 0 {
					raw[len(raw)-1-i] ^= 1
				} else {
					raw = raw[:len(raw)/2]
				}
				if err := errors.Join(err, os.WriteFile(path, raw, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if n := events.count(func(e status.Event) bool { return damaged(e) }); n > 0 {
				t.Errorf("%d files are called damaged that are not", n)
			}
			last := open(func(*config.Config) {})
			if n := hits(last, "damaged files"); n != 0 {
				t.Errorf("%d tokens came from damaged files", n)
			}
			if n := events.count(func(e status.Event) bool { return damaged(e) }); n == 0 {
				t.Error("no damage was told")
			}
		})
	}
}

func damaged(e status.Event) bool {
	l, ok := e.(status.OffloadLoaded)
	return ok && l.Err != nil && strings.Contains(l.Err.Error(), "damaged")
}

// recorded are events that have happened.
type recorded struct {
	mu   sync.Mutex
	list []status.Event
}

func (r *recorded) add(e status.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, e)
}

func (r *recorded) count(f func(status.Event) bool) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.list {
		if f(e) {
			n++
		}
	}
	return n
}

// TestOffloadRecovery kills a rank under requests whose prompts are stored: they come back from
// files, and the streams go on as they would have.
func TestOffloadRecovery(t *testing.T) {
	dir := t.TempDir()
	var events recorded
	e, _ := openWith(t, func(o *config.Config) {
		p := &o.Parallel
		p.Backend, p.TensorParallelSize, p.CPUThreads = "mp", 2, 1
		o.Cache.Offloading.GiB, o.Cache.Offloading.Dir = 0.1, dir
	}, events.add)
	requests := func() []*engine.Request {
		list := prefixed(e, 3)
		for _, r := range list {
			r.Constraint, r.Params.MinTokens, r.Params.MaxTokens = constrain.Spec{}, 150, 150
		}
		return list
	}
	stored := func() int {
		return events.count(func(e status.Event) bool {
			_, ok := e.(status.OffloadStored)
			return ok
		})
	}
	want := receiveAll(t, e, requests(), func(int) {})
	before := stored()
	var once sync.Once
	got := receiveAll(t, e, requests(), func(tokens int) {
		if tokens < 20 || stored() < before+3 {
			return
		}
		once.Do(func() {
			if p, err := os.FindProcess(e.Report()[1].PID); err != nil || p.Kill() != nil {
				t.Error("the rank is not there")
			}
		})
	})
	same(t, "killed", got, want)
	if n := events.count(func(e status.Event) bool {
		l, ok := e.(status.OffloadLoaded)
		return ok && l.Err == nil && l.Blocks > 0
	}); n == 0 || e.Totals().ExternalHits > 0 {
		t.Errorf("%d prompts came back, %d tokens of new requests", n, e.Totals().ExternalHits)
	}
}

// TestOffloadFolder wants a folder refused that cannot be written, and the loss of one later told
// once, at the cost of no request.
func TestOffloadFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Cache.Offloading.GiB, c.Cache.Offloading.Dir = 1, file
	_, _, err := engine.Open(t.Context(), engine.Options{Config: c})
	var usage *config.UsageError
	if !errors.As(err, &usage) || !strings.Contains(err.Error(), "--kv-offloading-dir") {
		t.Errorf("a file for a folder: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "kv")
	var events recorded
	e, _ := openWith(t, func(o *config.Config) {
		o.Cache.Offloading.GiB, o.Cache.Offloading.Dir = 1, dir
	}, events.add)
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for i, a := range receiveAll(t, e, prefixed(e, 3), func(int) {}) {
			if a.err != nil {
				t.Errorf("request %d: %v", i, a.err)
			}
		}
	}
	failed := func(e status.Event) bool { _, ok := e.(status.OffloadFailed); return ok }
	for events.count(failed) == 0 && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if n := events.count(failed); n != 1 {
		t.Errorf("%d failures were told", n)
	}
}

// TestOffloadRefused wants models refused whose state is not in blocks, by name.
func TestOffloadRefused(t *testing.T) {
	for folder, want := range map[string]string{
		"models/qwen3next-tiny": "keep a state", "encoders/bert-tiny": "is an encoder"} {
		c := config.Default()
		c.Model.Path = "../../testdata/" + folder
		c.Model.LoadFormat, c.Model.SkipTokenizerInit = "dummy", true
		c.Cache.Offloading.GiB, c.Cache.Offloading.Dir = 1, t.TempDir()
		_, _, err := engine.Open(t.Context(), engine.Options{Config: c})
		if err == nil || !strings.Contains(err.Error(), "--kv-offloading-size: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", folder, err)
		}
	}
}
