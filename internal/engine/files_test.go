package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"weak"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

const (
	weightsFile = "model.safetensors"
	modelFolder = "../../testdata/models/go-std-tiny"
)

// modelCopy is a copy of the built-in model's folder.
func modelCopy(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(dir, os.DirFS(modelFolder)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// otherWeights are those of another training: as many, of the same names and shapes.
func otherWeights(t *testing.T) []byte {
	t.Helper()
	b := trainedWeights(t)
	for i := 8 + int(binary.LittleEndian.Uint64(b)); i < len(b); i += 6 {
		b[i+1] ^= 0x80 // the sign of every third number
	}
	return b
}

func trainedWeights(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(modelFolder, weightsFile))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRemovedIsForgotten: nothing keeps an engine that was opened beside another one and has ended.
func TestRemovedIsForgotten(t *testing.T) {
	c := config.Default()
	c.Cache.MemoryBytes, c.Model.Path = 64<<20, modelFolder
	o, err := engine.NewOpener(t.Context(), engine.Options{Config: c})
	must(t, err)
	first, err := o.OpenFirst(t.Context())
	must(t, err)
	defer func() { must(t, first[0].Stop(context.Background())) }()
	added, err := o.Open(t.Context(), []int{1}, 2)
	must(t, err)
	must(t, added[0].Stop(t.Context()))
	o.Close(1)
	gone := weak.Make(added[0])
	added = nil
	for end := time.Now().Add(5 * time.Second); gone.Value() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is kept")
		}
		runtime.GC()
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The ways in which weights are replaced.
func byName(t *testing.T, dir string, weights []byte) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, "new"), weights, 0o600))
	must(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, weightsFile)))
}

func inPlace(t *testing.T, dir string, weights []byte) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, weightsFile), weights, 0o600))
}

// overwritten writes without cutting the file, as cp of a file of the same size may not.
func overwritten(t *testing.T, dir string, weights []byte) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, weightsFile), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(weights, 0)
	must(t, errors.Join(err, f.Close()))
}

// byLink has the name of the model's folder stand for another folder.
func byLink(t *testing.T, dir string, weights []byte) {
	t.Helper()
	must(t, os.Rename(dir, dir+".old"))
	must(t, os.CopyFS(dir+".new", os.DirFS(modelFolder)))
	must(t, os.WriteFile(filepath.Join(dir+".new", weightsFile), weights, 0o600))
	must(t, os.Symlink(filepath.Base(dir)+".new", dir))
}

// removed leaves nothing of the model.
func removed(t *testing.T, dir string, _ []byte) {
	t.Helper()
	must(t, os.RemoveAll(dir))
}

func onTwo(dir, policy string) func(*config.Config) {
	return func(c *config.Config) {
		c.Parallel.Backend, c.Parallel.TensorParallelSize, c.Parallel.CPUThreads = "mp", 2, 1
		c.Model.Path, c.Recovery.OnModelChange = dir, policy
	}
}

func killAll(t *testing.T, e *engine.Engine) {
	t.Helper()
	for _, r := range e.Report() {
		if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}

// healthSays waits until the engine's health has all the words, or until it is well if there are
// none.
func healthSays(t *testing.T, e *engine.Engine, words ...string) {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := e.Healthy(t.Context())
		missing := ""
		if len(words) == 0 && err != nil {
			missing = "being well"
		}
		for _, w := range words {
			if err == nil || !strings.Contains(err.Error(), w) {
				missing = w
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("health says %v, without %q", err, missing)
		}
	}
}

// TestModelReplaced replaces the model on disk in each of the ways that leave the old files whole,
// and kills one rank, then all: ranks that are started load what the others have, not what is
// there.
func TestModelReplaced(t *testing.T) {
	var want []received
	for name, replace := range map[string]func(*testing.T, string, []byte){"name": byName,
		"link":    byLink,
		"removed": removed} {
		t.Run(name, func(t *testing.T) {
			dir := modelCopy(t)
			told := make(chan status.ModelChanged, 10)
			e, _ := openWith(t, onTwo(dir, "keep"), func(event status.Event) {
				if c, ok := event.(status.ModelChanged); ok {
					told <- c
				}
			})
			list := sampled(e, 3)
			if want == nil {
				want = receiveAll(t, e, list, func(int) {})
			}
			replace(t, dir, otherWeights(t))
			same(t, "replaced", receiveAll(t, e, list, func(int) {}), want)
			for rank := range 2 {
				if testing.Short() && rank == 0 {
					continue // all are killed below
				}
				same(t, fmt.Sprintf("rank %d killed", rank), killed(t, e, list, rank, 5), want)
			}
			var once sync.Once
			got := receiveAll(t, e, list, func(tokens int) {
				if tokens > 5 {
					once.Do(func() { killAll(t, e) })
				}
			})
			same(t, "all killed", got, want)
			if len(told) != 1 {
				t.Fatalf("%d times told of the change", len(told))
			}
			c := <-told
			if filepath.Dir(c.File) != dir || c.Identity == "" ||
				(c.Now == "") != (name == "removed") {
				t.Errorf("told of %+v", c)
			}
		})
	}
}

// TestModelTouched gives the files other times and another name and back: nothing follows.
func TestModelTouched(t *testing.T) {
	dir := modelCopy(t)
	e, _ := openWith(t, onTwo(dir, "refuse"), func(event status.Event) {
		if c, ok := event.(status.ModelChanged); ok {
			t.Errorf("%+v", c)
		}
	})
	list := sampled(e, 2)
	want := receiveAll(t, e, list, func(int) {})
	path := filepath.Join(dir, weightsFile)
	must(t, os.Rename(path, path+".x"))
	must(t, os.Rename(path+".x", path))
	must(t, os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)))
	same(t, "touched", receiveAll(t, e, list, func(int) {}), want)
	byName(t, dir, trainedWeights(t))
	same(t, "killed", killed(t, e, list, 1, 5), want)
}

// TestModelRefused replaces the model under a server that refuses other files: once a rank is lost
// nothing is answered, health says which file it is and what can be done, and when it is put back
// the requests go on to what they would have been.
func TestModelRefused(t *testing.T) {
	dir := modelCopy(t)
	e := openEngine(t, onTwo(dir, "refuse"))
	list := sampled(e, 2)
	want := receiveAll(t, e, list, func(int) {})
	byName(t, dir, otherWeights(t))
	before := pids(e)
	var once sync.Once
	got := receiveAll(t, e, list, func(tokens int) {
		if tokens < 5 {
			return
		}
		once.Do(func() {
			if err := syscall.Kill(before[0], syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			healthSays(t, e, filepath.Join(dir, weightsFile), "identity", "--on-model-change")
			byName(t, dir, trainedWeights(t))
		})
	})
	same(t, "put back", got, want)
	if now := pids(e); now[1] != before[1] || now[0] == before[0] {
		t.Errorf("ranks %v, before %v: the sound one stays", now, before)
	}
}

// TestModelAdopted replaces the model under a server that adopts other files: once a rank is lost
// all ranks load them. Answers that had begun fail, those that had not are the new model's; so is
// all that follows, on engines that lost nothing, too.
func TestModelAdopted(t *testing.T) {
	dir := modelCopy(t)
	fresh := modelCopy(t)
	inPlace(t, fresh, otherWeights(t))
	alone := openEngine(t, onTwo(fresh, "keep"))
	list := sampled(alone, 3)
	for _, r := range list { // none ends before the ranks do
		r.Params.MinTokens, r.Params.MaxTokens, r.Constraint = 100, 100, constrain.Spec{}
	}
	want := receiveAll(t, alone, list, func(int) {})

	adopted := make(chan status.ModelAdopted, 10)
	c := config.Default()
	c.Cache.MemoryBytes = 64 << 20
	onTwo(dir, "adopt")(&c)
	c.Parallel.DataParallelSize, c.Schedule.MaxNumSeqs = 2, 2
	engines, _, err := engine.OpenAll(t.Context(), engine.Options{Config: c,
		LeftAlone: 200 * time.Millisecond, Events: func(e status.Event) {
			event, _ := status.Source(e)
			if a, ok := event.(status.ModelAdopted); ok {
				adopted <- a
			}
		}})
	must(t, err)
	t.Cleanup(func() {
		for _, e := range engines {
			if err := e.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	was := engines[0].Info().Identity()
	byName(t, dir, otherWeights(t))
	var once sync.Once
	got := receiveAll(t, engines[0], list, func(tokens int) {
		if tokens > 5 {
			once.Do(func() {
				if err := syscall.Kill(engines[0].Report()[1].PID, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			})
		}
	})
	for i := range 2 { // that many run at a time
		if !errors.Is(got[i].err, engine.ErrReplaced) || len(got[i].tokens) == 0 {
			t.Errorf("request %d had begun, and ended with %v after %d tokens", i, got[i].err,
				len(got[i].tokens))
		}
	}
	same(t, "had not begun", got[2:], want[2:])
	for i, e := range engines {
		same(t, fmt.Sprintf("engine %d", i), receiveAll(t, e, list, func(int) {}), want)
	}
	if len(adopted) != 1 {
		t.Fatalf("adopted %d times", len(adopted))
	}
	if a := <-adopted; a.Before != was || a.Identity == was ||
		a.Identity != engines[1].Info().Identity() {
		t.Errorf("%+v; before %s, now %s", a, was, engines[1].Info().Identity())
	}

	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600))
	killAll(t, engines[0])
	healthSays(t, engines[0], "config.json", "only weights are adopted")
}

// TestModelOverwritten overwrites the weights in place under ranks that look embeddings up in them:
// no token comes of it. The server answers again, and right, once the file has its content back;
// with adopt it goes on with the new one.
func TestModelOverwritten(t *testing.T) {
	var want []received // of any layout
	for name, c := range map[string]struct {
		write  func(*testing.T, string, []byte)
		change func(*config.Config)
	}{
		"cut and written": {inPlace, func(*config.Config) {}},
		"written over":    {overwritten, func(*config.Config) {}},
		"in one process": {inPlace, func(c *config.Config) {
			c.Parallel.Backend,
				c.Parallel.TensorParallelSize = "uni", 1
		}},
		"written over, stages": {overwritten,
			func(c *config.Config) {
				c.Parallel.TensorParallelSize,
					c.Parallel.PipelineParallelSize = 1, 2
			}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := modelCopy(t)
			e := openEngine(t, func(o *config.Config) {
				onTwo(dir, "keep")(o)
				c.change(o)
			})
			list := sampled(e, 2)
			if want == nil {
				want = receiveAll(t, e, list, func(int) {})
			}
			var once sync.Once
			got := receiveAll(t, e, list, func(tokens int) {
				if tokens < 5 {
					return
				}
				once.Do(func() {
					c.write(t, dir, otherWeights(t))
					healthSays(t, e, filepath.Join(dir, weightsFile), "overwritten in place",
						"identity")
					c.write(t, dir, trainedWeights(t))
				})
			})
			same(t, "written back", got, want)
			c.write(t, dir, otherWeights(t))
			healthSays(t, e, "overwritten in place") // before any request
			byName(t, dir, trainedWeights(t))
			healthSays(t, e) // nothing
			same(t, "replaced by what it was", receiveAll(t, e, list, func(int) {}), want)
		})
	}
}

// TestModelRelaid replaces the model, and has other ranks divide it: they load what was loaded.
func TestModelRelaid(t *testing.T) {
	dir := modelCopy(t)
	e := openEngine(t, onTwo(dir, "keep"))
	list := sampled(e, 2)
	want := receiveAll(t, e, list, func(int) {})
	byName(t, dir, otherWeights(t))
	must(t, e.Relayout(t.Context(), open.Sizes{TP: 1}))
	same(t, "one rank", receiveAll(t, e, list, func(int) {}), want)
	if e.Report()[0].Rank != 0 || len(e.Report()) != 1 || want[0].finish == sample.FinishError {
		t.Errorf("%+v", e.Report())
	}
}
