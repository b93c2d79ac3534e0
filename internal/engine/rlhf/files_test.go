package rlhf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestUpdateFromOwnFolder overwrites the model's own files in place, as trainers do, and loads the
// update from there: ranks that are started afterwards, and ranks that have slept, have the update,
// though nothing is left of the model's files.
func TestUpdateFromOwnFolder(t *testing.T) {
	list, _ := builtins(t)
	other := others(t)
	want := otherAnswers(t)
	for _, policy := range []string{"keep", "refuse", "adopt"} {
		t.Run(policy, func(t *testing.T) {
			dir := folder(t, list)
			s := open(t, func(c *config.Config) {
				c.Model.Path, c.Parallel.Backend, c.Parallel.TensorParallelSize = dir, "mp", 2
				c.Recovery.OnModelChange = policy
			})
			ctx := t.Context()
			_, err := s.Init(ctx, false)
			ok(t, err)
			s.update(t, file(t, dir, other))
			equal(t, "updated", answers(t, s), want)
			kill := func(ranks ...int) {
				for _, r := range ranks {
					ok(t, syscall.Kill(s.engines[0].Report()[r].PID, syscall.SIGKILL))
				}
			}
			kill(1)
			equal(t, "one rank killed", answers(t, s), want)
			kill(0, 1)
			equal(t, "all ranks killed", answers(t, s), want)
			ok(t, s.Sleep(ctx, 2, "abort"))
			kill(0)
			ok(t, s.Wake(ctx, nil))
			equal(t, "slept", answers(t, s), want)
			if info := s.engines[0].Info(); info.WeightBytes == 0 {
				t.Error("ranks say that they have no weights")
			}
		})
	}
}

// TestSleepKeepsTheModel replaces the model's files while the weights sleep: what wakes up is what
// was loaded, where that is kept.
func TestSleepKeepsTheModel(t *testing.T) {
	list, _ := builtins(t)
	dir := folder(t, list)
	s := open(t, func(c *config.Config) {
		c.Model.Path, c.Parallel.Backend, c.Parallel.TensorParallelSize = dir, "mp", 2
	})
	want := answers(t, s)[0]
	ok(t, s.Sleep(t.Context(), 2, "abort"))
	ok(t, os.Rename(file(t, t.TempDir(), others(t)), filepath.Join(dir, "model.safetensors")))
	ok(t, s.Wake(t.Context(), nil))
	equal(t, "awake", answers(t, s), want)
}

// TestPaths: weights are loaded from the model's own folder and from below those that are allowed,
// and nothing else is told of any other path; of what is no weights its bytes are not told.
func TestPaths(t *testing.T) {
	list, _ := builtins(t)
	const secret = "GEHEIM1 and more that is nobody's business"
	own, top, outside := folder(t, list), t.TempDir(), t.TempDir()
	blobs := t.TempDir()
	link := func(to, name string) {
		t.Helper()
		ok(t, os.Symlink(to, name))
	}
	mkdir := func(name string) string {
		t.Helper()
		ok(t, os.MkdirAll(name, 0o700))
		return name
	}
	write := func(name, text string) {
		t.Helper()
		ok(t, os.WriteFile(name, []byte(text), 0o600))
	}
	// A folder as the cache of the Hub has it: its files are links to elsewhere.
	ok(t, os.Rename(filepath.Join(own, "model.safetensors"), filepath.Join(blobs, "blob")))
	link(filepath.Join(blobs, "blob"), filepath.Join(own, "model.safetensors"))
	file(t, mkdir(filepath.Join(top, "step")), list)
	file(t, outside, list)
	link(outside, filepath.Join(top, "out"))
	link(filepath.Join(outside, "model.safetensors"), filepath.Join(mkdir(filepath.Join(top,
		"files")), "model.safetensors"))
	write(filepath.Join(top, "secret"), secret)
	write(filepath.Join(mkdir(filepath.Join(top, "index")), "model.safetensors.index.json"),
		"{"+secret)
	write(filepath.Join(outside, "secret"), secret)
	link(top, filepath.Join(outside, "in"))

	c := config.Default()
	c.Cache.MemoryBytes, c.Parallel.CPUThreads, c.Model.Path = 16<<20, 1, own
	engines, _, err := engine.OpenAll(t.Context(), engine.Options{Config: c})
	ok(t, err)
	t.Cleanup(func() { ok(t, engines[0].Stop(t.Context())) })
	var s *Control
	for _, x := range []struct {
		path    string
		allowed []string
		want    string // "" is taken
	}{
		{own, nil, ""},
		{filepath.Join(own, "model.safetensors"), nil, ""},
		{filepath.Join(own, "nothing"), nil, "no such file"},
		{filepath.Join(top, "step"), nil, "is not below a folder of --allowed-local-weights"},
		{"/etc/passwd", nil, "is not below"},
		{"/nowhere/at/all", nil, "is not below"},
		{filepath.Join(top, "step"), []string{top}, ""},
		{filepath.Join(top, "step"), []string{outside, filepath.Join(outside, "in")}, ""},
		{filepath.Join(top, "step", "model.safetensors"), []string{top}, ""},
		{filepath.Join(outside, "in", "step"), []string{top}, ""},
		{filepath.Join(top, "out"), []string{top}, "is not below"},
		{filepath.Join(top, "..", filepath.Base(outside)), []string{top}, "is not below"},
		{filepath.Join(outside, "model.safetensors"), []string{top}, "is not below"},
		{outside, []string{filepath.Join(outside, "nothing")}, "is not below"},
		{top + "x", []string{top}, "is not below"},
		{filepath.Join(top, "files"), []string{top}, "is not read as weights"},
		{filepath.Join(top, "secret"), []string{top}, "is not read as weights"},
		{filepath.Join(top, "index"), []string{top}, "is not read as weights"},
		{top, []string{top}, "there are no weights at " + top},
		{filepath.Join(top, "nothing"), []string{"/"}, "no such file"},
	} {
		s, err = New(Options{Engines: func() []*engine.Engine { return engines },
			Folder:  engines[0].Info().Folder(),
			Allowed: x.allowed})
		ok(t, err)
		_, err = s.Init(t.Context(), false)
		ok(t, err)
		ok(t, s.Start(t.Context()))
		err = s.Update(t.Context(), Source{Path: x.path})
		what := fmt.Sprintf("%s with %q", x.path, x.allowed)
		var source *SourceError
		switch {
		case x.want == "":
			ok(t, err)
		case !errors.As(err, &source) || !strings.Contains(err.Error(), x.want):
			t.Errorf("%s: %v, not %q", what, err, x.want)
		case strings.Contains(err.Error(), "GEHEIM"), strings.Contains(err.Error(), "business"),
			strings.Contains(err.Error(), fmt.Sprint(number(secret))):
			t.Errorf("%s: %v", what, err)
		}
		s.Close()
	}
}

// number is how the length of a header reads that is no length.
func number(text string) (n uint64) {
	for i, c := range []byte(text[:8]) {
		n |= uint64(c) << (8 * i)
	}
	return n
}

// TestStoredQuantised refuses updates of weights that are stored quantised by their method, and
// accepts the method as the value of --quantization.
func TestStoredQuantised(t *testing.T) {
	s := open(t, func(c *config.Config) {
		c.Model.Path = filepath.Join("..", "..", "..", "testdata", "models", "gptq-g128-tiny")
		c.Model.SkipTokenizerInit, c.Model.Quantization = true, "gptq_marlin"
	})
	_, err := s.Init(t.Context(), false)
	var source *SourceError
	if !errors.As(err, &source) || !strings.Contains(err.Error(), "quant_method gptq") {
		t.Errorf("%v", err)
	}
}
