package adapters_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/adapters"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/gpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
	"github.com/eagleray/eagleray/internal/rank/model/lora/loratest"
)

// TestMain lets the test binary be its own worker process, as the program is.
func TestMain(m *testing.M) {
	invited.Run(gpu.Devices(gpu.Libraries{}))
	os.Exit(m.Run())
}

// server is engines of the built-in model with a control.
type server struct {
	*adapters.Control
	engines []*engine.Engine
	dir     string
}

func openWith(t testing.TB, o adapters.Options, change func(c *config.Config)) *server {
	t.Helper()
	c := config.Default()
	c.Cache.MemoryBytes, c.Parallel.CPUThreads = 16<<20, 1
	if change != nil {
		change(&c)
	}
	engines, _, err := engine.OpenAll(t.Context(), engine.Options{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	o.Engines, o.MaxRank = func() []*engine.Engine { return engines }, 8
	control, err := adapters.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, e := range engines {
			if err := e.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
		control.Close()
	})
	return &server{control, engines, t.TempDir()}
}

// folder writes an adapter of the built-in model, by a seed.
func (s *server) folder(t testing.TB, seed uint64) string {
	t.Helper()
	shapes, err := model.Adaptable(s.engines[0].Model())
	ok(t, err)
	if seed%2 == 0 { // not all modules
		shapes = slices.DeleteFunc(shapes, func(x lora.Shape) bool {
			return strings.Contains(x.Name, "layers.0.") || strings.HasSuffix(x.Name, "up_proj")
		})
	}
	dir := filepath.Join(s.dir, fmt.Sprint(seed))
	o := loratest.Options{Rank: 2 + int(seed), Seed: seed, Width: 0.2}
	ok(t, loratest.Write(dir, shapes, o))
	return dir
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// answer is all that is known of an output.
type answer struct {
	tokens   []int32
	logprobs []step.Logprobs
	cached   int
}

// ask has an engine answer with the adapter of a name, "" for none. at is called with the number of
// tokens so far.
func (s *server) ask(t testing.TB, e *engine.Engine, name string, most int32,
	at func(tokens int)) (a answer) {
	t.Helper()
	r := engine.NewRequest(e.Info().Tokenizer.Encode("<|im_start|>user\nWhat is a goroutine, and "+
		"what does it wait for?<|im_end|>\n<|im_start|>assistant\n", false), sample.Params{TopP: 1,
		RepetitionPenalty: 1, Temperature: 0.7, Seed: 11, Logprobs: 2,
		PromptLogprobs: sample.NoLogprobs, MaxTokens: most, MinTokens: most, EOS: e.Info().EOS,
		IgnoreEOS: true})
	if name != "" {
		id, release, err := s.Acquire(t.Context(), name)
		if err != nil {
			t.Error(err)
			return a
		}
		defer release()
		r.Adapter = id
	}
	stream, err := e.Submit(t.Context(), r)
	if err != nil {
		t.Error(err)
		return a
	}
	defer stream.Close()
	for {
		d, err := stream.Next(t.Context())
		if err == io.EOF {
			return a
		}
		if err != nil {
			t.Error(err)
			return a
		}
		a.tokens = append(a.tokens, d.Tokens...)
		a.cached = d.CachedTokens
		for _, l := range d.Logprobs {
			l.Slot, l.Top = 0, slices.Clone(l.Top)
			a.logprobs = append(a.logprobs, l)
		}
		if at != nil {
			at(len(a.tokens))
		}
	}
}

var names = []string{"", "one", "two"}

// answers are those of every engine without an adapter and with two, all at the same time.
func (s *server) answers(t testing.TB) map[string]answer {
	t.Helper()
	var mu sync.Mutex
	got := map[string]answer{}
	var all sync.WaitGroup
	for i, e := range s.engines {
		for _, name := range names {
			all.Go(func() {
				a := s.ask(t, e, name, 12, nil)
				a.cached = 0
				mu.Lock()
				defer mu.Unlock()
				got[fmt.Sprintf("%q of engine %d", name, i)] = a
			})
		}
	}
	all.Wait()
	return got
}

func equal(t testing.TB, what string, got map[string]answer, want map[string]answer) {
	t.Helper()
	for name, a := range got {
		head, _, _ := strings.Cut(name, " of")
		if !reflect.DeepEqual(a, want[head+" of engine 0"]) {
			t.Errorf("%s, %s: %v, want %v", what, name, a.tokens, want[head+" of engine 0"].tokens)
		}
	}
}

func (s *server) loadBoth(t testing.TB) {
	t.Helper()
	ok(t, s.Load(t.Context(), "one", s.folder(t, 1), false))
	ok(t, s.Load(t.Context(), "two", s.folder(t, 2), false))
}

// wanted are the answers of one rank.
func wanted(t testing.TB) map[string]answer {
	t.Helper()
	s := openWith(t, adapters.Options{}, nil)
	s.loadBoth(t)
	want := s.answers(t)
	var seen [][]int32
	for name, a := range want {
		for _, tokens := range seen {
			if slices.Equal(tokens, a.tokens) {
				t.Fatalf("the answer of %s is another one's", name)
			}
		}
		seen = append(seen, a.tokens)
	}
	return want
}

// TestLayouts has the same answers of any layout, also when ranks die, weights sleep or the layout
// changes, and without the adapters' files.
func TestLayouts(t *testing.T) {
	want := wanted(t)
	for i, l := range []struct {
		name            string
		transport       string
		tp, pp, pcp, dp int
	}{
		{"tp", "auto", 2, 1, 1, 1},
		{"links, stages and engines", "link", 1, 2, 1, 2},
		{"prefill", "auto", 1, 1, 2, 1},
		{"tp and stages", "auto", 2, 2, 1, 1},
	} {
		t.Run(l.name, func(t *testing.T) {
			if testing.Short() && i > 1 {
				t.Skip("more layouts, without -short")
			}
			s := openWith(t, adapters.Options{}, func(c *config.Config) {
				p := &c.Parallel
				p.Backend, p.TensorParallelSize, p.PipelineParallelSize = "mp", l.tp, l.pp
				p.PrefillContextParallelSize, p.DataParallelSize = l.pcp, l.dp
				c.Queue.Transport = l.transport
			})
			s.loadBoth(t)
			ok(t, os.RemoveAll(s.dir))
			equal(t, "loaded", s.answers(t), want)
			e := s.engines[len(s.engines)-1]
			for rank := range 2 {
				var once sync.Once
				got := s.ask(t, e, "one", 12, func(n int) {
					if n >= 2 {
						once.Do(func() {
							ok(t, syscall.Kill(e.Report()[rank].PID, syscall.SIGKILL))
						})
					}
				})
				got.cached = 0
				equal(t, fmt.Sprintf("rank %d was killed", rank),
					map[string]answer{`"one" of engine 0`: got}, want)
			}
			equal(t, "after it", s.answers(t), want)

			wanted := e.Wanted()
			for _, asleep := range []calls.Asleep{{Weights: true, KVCache: true}, {}} {
				wanted.Sleep(asleep)
				for _, e := range s.engines {
					ok(t, e.Equip(t.Context()))
				}
			}
			equal(t, "after a sleep", s.answers(t), want)
			if l.tp == 2 && l.pp == 1 {
				ok(t, e.Relayout(t.Context(), open.Sizes{TP: 1}))
				equal(t, "in another layout", s.answers(t), want)
			}
			ok(t, s.Unload(t.Context(), "one"))
			if _, _, err := s.Acquire(t.Context(), "one"); !errors.Is(err, adapters.ErrUnknown) {
				t.Errorf("an adapter that was unloaded: %v", err)
			}
			got := s.ask(t, e, "two", 12, nil)
			got.cached = 0
			equal(t, "beside one that is gone", map[string]answer{`"two" of engine 0`: got}, want)
		})
	}
}

// TestScaled: engines that are added while others serve have the adapters from their first request
// on, and so has one that takes the place of another.
func TestScaled(t *testing.T) {
	want := wanted(t)
	c := config.Default()
	c.Cache.MemoryBytes, c.Parallel.CPUThreads = 16<<20, 1
	router, _, err := replicas.Open(t.Context(), engine.Options{Config: c})
	ok(t, err)
	control, err := adapters.New(adapters.Options{Engines: router.Engines, MaxRank: 8})
	ok(t, err)
	t.Cleanup(func() {
		ok(t, router.Stop(context.Background()))
		control.Close()
	})
	s := &server{control, router.Engines(), t.TempDir()}
	s.loadBoth(t)
	for _, n := range []int{2, 1, 3} {
		ok(t, router.ScaleEngines(t.Context(), n, time.Minute))
		if s.engines = router.Engines(); len(s.engines) != n {
			t.Fatalf("%d engines, not %d", len(s.engines), n)
		}
		equal(t, fmt.Sprintf("%d engines", n), s.answers(t), want)
	}
}

// TestPrefixCache: an adapter's blocks are found by its own requests alone.
func TestPrefixCache(t *testing.T) {
	s := openWith(t, adapters.Options{}, nil)
	s.loadBoth(t)
	e := s.engines[0]
	for _, name := range names {
		first, again := s.ask(t, e, name, 3, nil), s.ask(t, e, name, 3, nil)
		if first.cached != 0 || again.cached == 0 || !slices.Equal(first.tokens, again.tokens) {
			t.Errorf("%q: %d tokens found at first, %d later; %v and %v", name, first.cached,
				again.cached, first.tokens, again.tokens)
		}
	}
	// The folder's next adapter of the name is another one.
	ok(t, s.Load(t.Context(), "two", s.folder(t, 1), true))
	if a := s.ask(t, e, "two", 3, nil); a.cached != 0 {
		t.Errorf("%d tokens were found of the adapter before", a.cached)
	}
}

// TestUnloadWaits: an adapter goes once its requests are done, and its name at once.
func TestUnloadWaits(t *testing.T) {
	s := openWith(t, adapters.Options{}, nil)
	s.loadBoth(t)
	e := s.engines[0]
	want := s.ask(t, e, "one", 24, nil)
	unloaded := make(chan error, 1)
	var once sync.Once
	got := s.ask(t, e, "one", 24, func(n int) {
		once.Do(func() {
			go func() { unloaded <- s.Unload(t.Context(), "one") }()
			for s.Serves("one") {
				time.Sleep(time.Millisecond)
			}
		})
		select {
		case err := <-unloaded:
			t.Errorf("unloaded after %d tokens: %v", n, err)
		default:
		}
	})
	if !slices.Equal(got.tokens, want.tokens) {
		t.Errorf("%v, want %v", got.tokens, want.tokens)
	}
	ok(t, <-unloaded)
	if err := s.Unload(t.Context(), "one"); !errors.Is(err, adapters.ErrUnknown) {
		t.Errorf("unloaded twice: %v", err)
	}
	if n := len(e.Wanted().Adapters()); n != 1 {
		t.Errorf("ranks are to have %d adapters", n)
	}
}

// TestRefuses: what cannot be loaded is named, and nothing of it stays.
func TestRefuses(t *testing.T) {
	s := openWith(t, adapters.Options{Most: 2}, nil)
	s.loadBoth(t)
	shapes, err := model.Adaptable(s.engines[0].Model())
	ok(t, err)
	write := func(name string, shapes []lora.Shape, o loratest.Options) string {
		dir := filepath.Join(s.dir, name)
		ok(t, loratest.Write(dir, shapes, o))
		return dir
	}
	wide := slices.Clone(shapes)
	wide[3].In++
	huge := loratest.Options{Rank: 2, Width: 1e300}
	for _, try := range []struct {
		name, dir, want string
	}{
		{"one", s.folder(t, 3), "loaded already"},
		{s.engines[0].Info().Names[0], s.folder(t, 3), "needs another name"},
		{"", s.folder(t, 3), "an adapter needs a name"},
		{"a\nb", s.folder(t, 3), `the name "a\nb" of an adapter`},
		{"x", s.folder(t, 3), "as many as --max-cpu-loras 2 allows"},
	} {
		err := s.Load(t.Context(), try.name, try.dir, false)
		if refused := (*adapters.Refused)(nil); !errors.As(err, &refused) ||
			!strings.Contains(err.Error(), try.want) {
			t.Errorf("%s: %v, want %q", try.name, err, try.want)
		}
	}
	ok(t, s.Unload(t.Context(), "two"))
	for want, dir := range map[string]string{
		"the model's has":         write("wide", wide, loratest.Options{Rank: 2, Width: 1}),
		"above --max-lora-rank 8": write("high", shapes, loratest.Options{Rank: 9, Width: 1}),
		"which is no weight":      write("huge", shapes, huge),
		"use_dora": write("dora", shapes, loratest.Options{Rank: 2, Width: 1,
			Config: map[string]any{"use_dora": true}}),
	} {
		err := s.Load(t.Context(), "x", dir, false)
		if refused := (*adapters.Refused)(nil); !errors.As(err, &refused) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
	if err := s.Load(t.Context(), "x", "/no/such", false); !errors.Is(err, adapters.ErrUnknown) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if list := s.List(); len(list) != 1 || list[0].Name != "one" || list[0].Rank != 3 {
		t.Errorf("%+v", list)
	}
	if n := len(s.engines[0].Wanted().Adapters()); n != 1 {
		t.Errorf("ranks are to have %d adapters", n)
	}
	ok(t, s.Load(t.Context(), "two", s.folder(t, 2), false))
}

// TestResolver: a request's name brings an adapter from a folder; where there is no place for one,
// that goes which has rested longest.
func TestResolver(t *testing.T) {
	dir := t.TempDir()
	resolve, may := adapters.InFolder(dir)
	s := openWith(t, adapters.Options{Most: 3, Resolve: resolve, May: may}, nil)
	s.dir = dir
	s.folder(t, 1)
	s.folder(t, 2)
	s.folder(t, 3)
	ok(t, s.Load(t.Context(), "kept", s.folder(t, 4), false))
	ok(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	for _, name := range []string{"9", "..", ".", "", "/" + dir + "/1",
		"../" + filepath.Base(dir), "empty"} {
		if s.Serves(name) {
			t.Errorf("%q is served", name)
		}
		if _, _, err := s.Acquire(t.Context(), name); !errors.Is(err, adapters.ErrUnknown) {
			t.Errorf("%q: %v", name, err)
		}
	}
	// Several at once load it once.
	var all sync.WaitGroup
	ids := make([]uint32, 8)
	for i := range ids {
		all.Go(func() {
			id, release, err := s.Acquire(t.Context(), "1")
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = id
			release()
			release()
		})
	}
	all.Wait()
	if slices.Min(ids) != slices.Max(ids) || ids[0] == 0 {
		t.Errorf("ids %v", ids)
	}
	both := s.engines[0].Info().Names[0] + ":1" // as Ray Serve has it
	if id, release, err := s.Acquire(t.Context(), both); err != nil || id != ids[0] {
		t.Errorf("%s: id %d, %v", both, id, err)
	} else {
		release()
	}
	_, release, err := s.Acquire(t.Context(), "2")
	ok(t, err)
	s.ask(t, s.engines[0], "3", 2, nil) // 1 goes: it rests
	loaded := func() (names []string) {
		for _, a := range s.List() {
			names = append(names, a.Name)
		}
		return names
	}
	if got := loaded(); !slices.Equal(got, []string{"2", "3", "kept"}) {
		t.Errorf("%v are loaded", got)
	}
	_, busy, err := s.Acquire(t.Context(), "3")
	ok(t, err)
	if _, _, err := s.Acquire(t.Context(), "1"); err == nil ||
		!strings.Contains(err.Error(), "--max-cpu-loras 3") {
		t.Errorf("with all in use: %v", err)
	}
	busy()
	release()
	s.ask(t, s.engines[0], "1", 2, nil)
	if got := loaded(); !slices.Equal(got, []string{"1", "3", "kept"}) {
		t.Errorf("%v are loaded", got)
	}
}

// TestLoadedBesideRequests: requests that run go on while an adapter is loaded.
func TestLoadedBesideRequests(t *testing.T) {
	s := openWith(t, adapters.Options{}, func(c *config.Config) {
		c.Parallel.Backend, c.Parallel.TensorParallelSize = "mp", 2
	})
	e := s.engines[0]
	want := s.ask(t, e, "", 64, nil)
	loading := make(chan error, 1)
	var once sync.Once
	got := s.ask(t, e, "", 64, func(int) {
		once.Do(func() {
			dir := s.folder(t, 1)
			go func() { loading <- s.Load(t.Context(), "one", dir, false) }()
		})
	})
	ok(t, <-loading)
	if !slices.Equal(got.tokens, want.tokens) {
		t.Errorf("%v, want %v", got.tokens, want.tokens)
	}
	if a := s.ask(t, e, "one", 8, nil); slices.Equal(a.tokens, want.tokens[:8]) {
		t.Error("the adapter changes nothing")
	}
}

// TestUnloadFrees: the driver has no memory of an adapter that was unloaded, nor of one that was
// replaced.
func TestUnloadFrees(t *testing.T) {
	s := openWith(t, adapters.Options{}, nil)
	mapped := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		ok(t, err)
		return strings.Count(string(maps), "eagleray-weights-")
	}
	before := mapped()
	for range 3 {
		ok(t, s.Load(t.Context(), "a", s.folder(t, 1), false))
		ok(t, s.Load(t.Context(), "a", s.folder(t, 2), true))
		ok(t, s.Unload(t.Context(), "a"))
	}
	// What was replaced goes by itself.
	for end := time.Now().Add(5 * time.Second); mapped() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d pieces of memory are mapped, %d were", mapped(), before)
		}
	}
}

// TestLoadedBesideCalls: what the ranks are told beside a load, such as of an update, loses nothing
// of it.
func TestLoadedBesideCalls(t *testing.T) {
	s := openWith(t, adapters.Options{}, nil)
	ctx, end := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	defer calling.Wait()
	defer end()
	calling.Go(func() {
		for ctx.Err() == nil {
			if err := s.engines[0].TrimAdapters(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	dir := s.folder(t, 1)
	for range 20 {
		ok(t, s.Load(t.Context(), "a", dir, false))
		ok(t, s.Unload(t.Context(), "a"))
	}
}

// TestRemovedMeanwhile: an engine that is removed while an adapter is loaded, or unloaded, is no
// error.
func TestRemovedMeanwhile(t *testing.T) {
	s := openWith(t, adapters.Options{}, func(c *config.Config) {
		c.Parallel.DataParallelSize = 2
	})
	ok(t, s.engines[1].Stop(t.Context()))
	ok(t, s.Load(t.Context(), "a", s.folder(t, 1), false))
	ok(t, s.Unload(t.Context(), "a"))
	ok(t, s.engines[0].Stop(t.Context()))
	if err := s.Load(t.Context(), "b", s.folder(t, 1), false); !errors.Is(err, engine.ErrStopped) {
		t.Errorf("loaded into engines that have all ended: %v", err)
	}
}

// TestOffload has servers store blocks in one folder that have loaded adapters in another order: a
// prompt comes back with the adapter that has computed it, whatever its number.
func TestOffload(t *testing.T) {
	dir := t.TempDir()
	open := func() *server {
		return openWith(t, adapters.Options{}, func(c *config.Config) {
			c.Cache.Offloading.GiB, c.Cache.Offloading.Dir = 0.1, dir
			c.LoRA.Enable = true
		})
	}
	first, second := open(), open()
	var want [3]answer
	for seed := range uint64(2) {
		ok(t, first.Load(t.Context(), fmt.Sprint(seed), first.folder(t, seed), false))
		ok(t, second.Load(t.Context(), fmt.Sprint(1-seed), first.folder(t, 1-seed), false))
	}
	names := []string{"0", "1", ""}
	for i, name := range names {
		want[i] = first.ask(t, first.engines[0], name, 20, nil)
	}
	stored := func() int {
		list, err := filepath.Glob(filepath.Join(dir, "*.kv"))
		ok(t, err)
		return len(list)
	}
	for n := stored(); n < 3 || n%3 > 0; n = stored() {
		time.Sleep(time.Millisecond)
	}
	for i, name := range names {
		before := second.engines[0].Totals().ExternalHits
		got := second.ask(t, second.engines[0], name, 20, nil)
		if !reflect.DeepEqual(got.tokens, want[i].tokens) ||
			!reflect.DeepEqual(got.logprobs, want[i].logprobs) {
			t.Errorf("adapter %q: %v, want %v", name, got, want[i])
		}
		if second.engines[0].Totals().ExternalHits == before {
			t.Errorf("adapter %q: nothing came from files", name)
		}
	}
}

// TestCUDA has two ranks on CUDA devices load an adapter between requests: answers with it and
// without are those of one rank.
func TestCUDA(t *testing.T) {
	t.Setenv(queue.CUDADriverVariable, "machine")
	var want []answer
	for _, ranks := range []int{2, 1} {
		if testing.Short() && want != nil {
			break
		}
		s := openWith(t, adapters.Options{Most: 2}, func(c *config.Config) {
			p := &c.Parallel
			p.Device, p.Backend, p.TensorParallelSize = config.CUDA, "mp", ranks
			c.Cache.MemoryBytes, c.Model.MaxModelLen = 8<<20, 128
			c.LoRA.Enable, c.LoRA.MaxRank = true, 8
		})
		e := s.engines[0]
		none := func(int) {}
		got := []answer{s.ask(t, e, "", 6, none)}
		ok(t, s.Load(t.Context(), "a", s.folder(t, 3), false))
		got = append(got, s.ask(t, e, "a", 6, none), s.ask(t, e, "", 6, none))
		if reflect.DeepEqual(got[0].tokens, got[1].tokens) ||
			!reflect.DeepEqual(got[0].tokens, got[2].tokens) {
			t.Errorf("%d ranks: %v, with an adapter %v, without %v", ranks, got[0].tokens,
				got[1].tokens, got[2].tokens)
		}
		if want == nil {
			want = got
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%d ranks answer otherwise than %d", ranks, 3-ranks)
		}
	}
}
