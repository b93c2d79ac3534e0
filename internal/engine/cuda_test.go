package engine_test

import (
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/worker"
)

// measured are GPUs of which one figure is known, which tells them apart.
type measured struct{ worker.GPUs }

func (measured) Meter(ordinal int) worker.Meter {
	return func(g *status.GPU) { g.Know(status.GPUPower, uint64(1000*(1+ordinal))) }
}

// TestCUDAMeasured: what ranks measure of their GPUs is on /metrics while the engine is idle.
func TestCUDAMeasured(t *testing.T) {
	t.Setenv(queue.CUDADriverVariable, "machine")
	_, m := openMeasured(t, func(c *config.Config) {
		p := &c.Parallel
		p.Device, p.Backend, p.CPUThreads, p.TensorParallelSize = config.CUDA, "mp", 1, 2
		c.Cache.MemoryBytes = 8 << 20
		c.Model.MaxModelLen = 256
	})
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		shown := httptest.NewRecorder()
		m.Handler().ServeHTTP(shown, httptest.NewRequest("GET", "/metrics", nil))
		var got []string
		for line := range strings.Lines(shown.Body.String()) {
			if strings.HasPrefix(line, "eagleray:gpu_") {
				got = append(got, line[strings.LastIndexByte(line, ',')+1:])
			}
		}
		if slices.Equal(got, []string{"rank=\"0\"} 1\n", "rank=\"1\"} 2\n"}) {
			return
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("shown: %q", got)
		}
	}
}

// onCUDA has ranks compute on a CUDA device that a machine for PTX stands for, with its options.
func onCUDA(t *testing.T, options string, change func(*config.Config)) *engine.Engine {
	t.Helper()
	return onWatchedCUDA(t, options, nil, change)
}

func onWatchedCUDA(t *testing.T, options string, events status.Listener,
	change func(*config.Config)) *engine.Engine {
	t.Helper()
	t.Setenv(queue.CUDADriverVariable, "machine,"+options)
	e, _ := openWith(t, func(c *config.Config) {
		p := &c.Parallel
		p.Device, p.Backend, p.CPUThreads = config.CUDA, "mp", 1
		c.Cache.MemoryBytes = 8 << 20
		c.Model.MaxModelLen = 256
		change(c)
	}, events)
	return e
}

// TestCUDA asks the built-in model on CUDA devices, in layouts of several ranks too: the answers
// are the CPU's, and all bits those of one rank, with log-probabilities, penalties, constraints and
// draws.
func TestCUDA(t *testing.T) {
	var want []received
	for _, c := range []struct{ tp, pp int }{{1, 1}, {2, 1}, {1, 2}} {
		if testing.Short() && c.pp > 1 {
			continue
		}
		t.Run(fmt.Sprintf("tp %d, pp %d", c.tp, c.pp), func(t *testing.T) {
			e := onCUDA(t, "", func(o *config.Config) {
				o.Parallel.TensorParallelSize, o.Parallel.PipelineParallelSize = c.tp, c.pp
			})
			a, err := ask(t.Context(), e, greedy(e, "What does os.Open do?", 20))
			if err != nil || a.text != "Open opens the named file for reading." {
				t.Fatalf("%q, %v", a.text, err)
			}
			list := sampled(e, 2)
			for _, r := range list {
				r.Params.MaxTokens, r.Params.MinTokens = 6, 5
			}
			got := receiveAll(t, e, list, func(int) {})
			if want == nil {
				want = got
			}
			same(t, "layout", got, want)
		})
	}
}

// summed says by what the ranks of an engine sum.
func summed(e *engine.Engine) string {
	_, way, _ := strings.Cut(e.Info().Ranks[0].Kernels, "sums of ranks ")
	return way
}

// TestCUDAPeers asks two ranks, each a process, that sum over the memory of their devices, or by
// NCCL, and has either of them killed under requests, or NCCL fail: the answers are the same,
// and those of ranks that sum through their hosts.
func TestCUDAPeers(t *testing.T) {
	folder := shallow(t, builtin.Name)
	open := func(options string) *engine.Engine {
		return onCUDA(t, options, func(c *config.Config) {
			c.Model.Path, c.Parallel.TensorParallelSize = folder, 2
		})
	}
	requests := func(e *engine.Engine) []*engine.Request {
		list := sampled(e, 2)
		for _, r := range list {
			r.Params.MaxTokens, r.Params.MinTokens = 10, 8
		}
		return list
	}
	host := open("apart")
	if way := summed(host); !strings.HasPrefix(way, "through the host: rank 0: ") {
		t.Errorf("apart, sums are %q", way)
	}
	want := receiveAll(t, host, requests(host), func(int) {})
	for options, way := range map[string]string{"": "over peer memory",
		"apart,nccl": "by NCCL 2.27.3: rank 0: memory of rank 1: "} {
		e := open(options)
		same(t, way, receiveAll(t, e, requests(e), func(int) {}), want)
		for rank := range 2 {
			if testing.Short() && rank == 0 {
				continue
			}
			before := pids(e)
			same(t, fmt.Sprintf("rank %d killed", rank), killed(t, e, requests(e), rank, 4), want)
			for r, pid := range pids(e) {
				if (pid == before[r]) != (r != rank) {
					t.Errorf("rank %d was killed: rank %d was process %d, and is %d", rank, r,
						before[r], pid)
				}
			}
			if got := summed(e); !strings.HasPrefix(got, way) {
				t.Errorf("sums are %q", got)
			}
		}
	}
	made := filepath.Join(t.TempDir(), "failed")
	e := open("apart,nccl,fail=ncclAllGather:6:60:" + made)
	same(t, "NCCL fails", receiveAll(t, e, requests(e), func(int) {}), want)
	if matches, _ := filepath.Glob(made); len(matches) != 1 {
		t.Error("NCCL did not fail")
	}
}

// TestCUDAFaults has the driver fail under requests, as a GPU does: with an illegal address, lost,
// without an answer. The group is made anew, and nothing is lost or different.
func TestCUDAFaults(t *testing.T) {
	question := func(e *engine.Engine) *engine.Request {
		return greedy(e, "What does os.Open do?", 20)
	}
	for name, fault := range map[string]string{
		"illegal address":     fmt.Sprintf("cuLaunchKernel:%d:900", driver.IllegalAddress),
		"unspecified failure": fmt.Sprintf("cuStreamSynchronize:%d:60", driver.LaunchFailed),
		"lost":                fmt.Sprintf("cuGraphLaunch:%d:5", driver.Unknown),
		"hang":                "cuLaunchKernel:hang:900",
	} {
		if testing.Short() && name != "illegal address" && name != "hang" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			made := filepath.Join(t.TempDir(), "failed")
			e := onCUDA(t, "fail="+fault+":"+made, func(c *config.Config) {
				c.Queue.StepTimeout = 3 * time.Second
			})
			for range 2 {
				a, err := ask(t.Context(), e, question(e))
				if err != nil || a.text != "Open opens the named file for reading." {
					t.Fatalf("%q, %v", a.text, err)
				}
			}
			if matches, _ := filepath.Glob(made); len(matches) != 1 {
				t.Error("the driver did not fail")
			}
		})
	}
}

// TestCUDARefusesToStart wants the driver's reason, and what to do, where a start fails.
func TestCUDARefusesToStart(t *testing.T) {
	for fault, reason := range map[string]string{
		fmt.Sprintf("cuModuleLoadDataEx:%d:1", driver.UnsupportedPTXVersion): "(222)",
		fmt.Sprintf("cuModuleLoadDataEx:%d:1", driver.NoBinaryForGPU):        "(209)",
		fmt.Sprintf("cuDevicePrimaryCtxRetain:%d:1", driver.OutOfMemory):     "(2)",
		fmt.Sprintf("cuMemAlloc_v2:%d:20", driver.OutOfMemory):               "(2)",
	} {
		made := filepath.Join(t.TempDir(), "failed")
		t.Setenv(queue.CUDADriverVariable, "machine,fail="+fault+":"+made)
		c := config.Default()
		c.Parallel.Device, c.Cache.MemoryBytes = config.CUDA, 8<<20
		c.Recovery.OnFailure = "exit"
		e, _, err := engine.Open(t.Context(), engine.Options{Config: c})
		if err == nil {
			_ = e.Stop(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", fault, err)
		}
	}
}

// TestCUDAWeightsCache has ranks store quantised weights, which a second start uses: the answers
// are the same.
func TestCUDAWeightsCache(t *testing.T) {
	folder, dir := shallow(t, builtin.Name), t.TempDir()
	var said []received
	for _, stored := range []bool{true, false} {
		events := make(chan status.WeightsCache, 16)
		e := onWatchedCUDA(t, "", func(e status.Event) {
			if c, ok := e.(status.WeightsCache); ok {
				events <- c
			}
		}, func(c *config.Config) {
			c.Parallel.TensorParallelSize = 2
			c.Model.Path, c.Model.WeightsCache = folder, dir
			c.Model.Quantization = "int8"
		})
		list := sampled(e, 1)
		for _, r := range list {
			r.Params.MaxTokens, r.Params.MinTokens = 6, 5
		}
		got := receiveAll(t, e, list, func(int) {})
		for range 2 {
			c := <-events
			if c.Failure != "" || c.Bytes == 0 || c.Stored != stored || c.Found == stored {
				t.Errorf("%+v", c)
			}
		}
		if said == nil {
			said = got
		}
		same(t, "weights of an earlier start", got, said)
	}
}

// TestCUDADTypes has ranks keep a byte of each number of the cache, or compute in float32: the
// answer is right.
func TestCUDADTypes(t *testing.T) {
	if testing.Short() {
		t.Skip("TestCUDACacheTypes and TestCUDA of the models")
	}
	for name, change := range map[string]func(*config.Config){
		"cache int8":     func(c *config.Config) { c.Cache.DType = "int8" },
		"cache fp8_e4m3": func(c *config.Config) { c.Cache.DType = "fp8_e4m3" },
		"float32": func(c *config.Config) {
			c.Model.DType, c.Parallel.TensorParallelSize = "float32", 2
		},
	} {
		e := onCUDA(t, "", change)
		a, err := ask(t.Context(), e, greedy(e, "What does os.Open do?", 20))
		if err != nil || a.text != "Open opens the named file for reading." {
			t.Errorf("%s: %q, %v", name, a.text, err)
		}
		t.Logf("%s: %s", name, e.Info().Ranks[0].Kernels)
	}
}

// TestCUDAOffload has two ranks store blocks in files, from which another engine has them: answers
// are the same.
func TestCUDAOffload(t *testing.T) {
	folder, dir := shallow(t, builtin.Name), filepath.Join(t.TempDir(), "kv")
	var want []received
	for i := range 2 {
		e := onCUDA(t, "", func(c *config.Config) {
			c.Model.Path, c.Parallel.TensorParallelSize = folder, 2
			c.Cache.Offloading.GiB, c.Cache.Offloading.Dir = 0.1, dir
		})
		list := prefixed(e, 1)
		for _, r := range list {
			r.Params.MaxTokens, r.Params.MinTokens = 6, 5
		}
		got := receiveAll(t, e, list, func(int) {})
		if want == nil {
			want = got
			awaitFiles(t, dir, 4)
		}
		same(t, "blocks of files", got, want)
		if hits := e.Totals().ExternalHits; (hits > 48) != (i > 0) {
			t.Errorf("engine %d: %d tokens came from files", i, hits)
		}
	}
}

// TestCUDADraft has a draft model, the model itself, guess on the model's CUDA device: the answer
// has the bits that it has without, in half the steps.
func TestCUDADraft(t *testing.T) {
	run := func(draft bool) ([]received, guessed) {
		var all guessed
		e := onWatchedCUDA(t, "", all.see, func(c *config.Config) {
			c.Schedule.Async = false
			if !draft {
				return
			}
			if err := c.Speculative.Set(fmt.Sprintf(
				`{"model":%q,"num_speculative_tokens":4}`, builtin.Name)); err != nil {
				t.Fatal(err)
			}
		})
		r := greedy(e, "What does os.Open do?", 20)
		r.Params.Logprobs = 2
		got := receiveAll(t, e, []*engine.Request{r}, func(int) {})
		return got, all
	}
	want, _ := run(false)
	got, all := run(true)
	same(t, "guesses", got, want)
	if all.right < 2*all.steps {
		t.Errorf("%+v", all)
	}
}

// guessed sums what was told of requests that ended: their steps from the first guess, and the
// tokens guessed, and right.
type guessed struct{ steps, tokens, right int }

func (g *guessed) see(e status.Event) {
	s, ok := e.(status.Speculated)
	if !ok {
		return
	}
	for _, one := range s.Steps {
		g.steps++
		g.tokens += int(one.Drafts)
		g.right += int(one.Tokens) - 1
	}
}

// TestCUDALibrary has cuBLASLt compute products of prompts: by its algorithms that add as kernels
// do all bits are the kernels', by others log-probabilities differ, where that is asked for.
func TestCUDALibrary(t *testing.T) {
	folder := shallow(t, "llama-tiny")
	run := func(options string, fast bool, tp int) []received {
		e := onCUDA(t, options, func(c *config.Config) {
			c.Model.Path = folder
			c.Model.Tokenizer = filepath.Join(shipped, "go-std-tiny")
			c.Parallel.CUDAFast, c.Parallel.TensorParallelSize = fast, tp
		})
		prompt := make([]int32, 100)
		for i := range prompt {
			prompt[i] = int32(5 + i*7%90)
		}
		p := params(e, 4)
		p.EOS, p.Logprobs, p.PromptLogprobs = -1, 2, 1
		return receiveAll(t, e, []*engine.Request{engine.NewRequest(prompt, p)}, func(int) {})
	}
	want := run("", false, 1)
	same(t, "cuBLASLt", run("cublaslt", false, 2), want)
	fast := run("cublaslt=own", true, 1)
	if fast[0].err != nil || fmt.Sprint(fast) == fmt.Sprint(want) {
		t.Errorf("with --cuda-fast %v", fast)
	}
}

// TestCUDAPredictor has the layer of a checkpoint that predicts a token more guess on the model's
// CUDA device, or a head of EAGLE-3, also of a model that keeps states: answers are those without
// guesses, to the bits of each log-probability, and some guesses are right.
func TestCUDAPredictor(t *testing.T) {
	names := []string{"qwen3next-tiny", "llama-tiny", "deepseek-v3-tiny", "glm4moe-tiny"}
	if testing.Short() {
		names = names[:1] // heads are computed in the models' tests, too
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			dir, how := guessing(t, name)
			run := func(how config.Speculative, requests, tp, pcp, pp int) ([]received, guessed) {
				var all guessed
				e := onWatchedCUDA(t, "", all.see, func(c *config.Config) {
					c.Model.Path, c.Model.Tokenizer = dir, filepath.Join(shipped, "go-std-tiny")
					c.Speculative = how
					p := &c.Parallel
					p.TensorParallelSize, p.PrefillContextParallelSize = tp, pcp
					p.PipelineParallelSize = pp
				})
				got := receiveAll(t, e, guessable(e, requests, 24), func(int) {})
				return got, all
			}
			want, _ := run(config.Speculative{}, 2, 1, 1, 1)
			got, one := run(how, 2, 1, 1, 1)
			same(t, how.Method, got, want)
			if one.tokens == 0 || name == "qwen3next-tiny" && one.right == 0 {
				t.Errorf("%+v", one)
			}
			for _, c := range [][3]int{{2, 1, 1}, {1, 2, 1}, {1, 1, 2}} {
				if name != "llama-tiny" {
					break
				}
				n := 2
				if c[2] > 1 { // several would take turns on their way
					n = 1
					_, one = run(how, n, 1, 1, 1)
				}
				got, all := run(how, n, c[0], c[1], c[2])
				same(t, how.Method, got, want[:n])
				if all.tokens != one.tokens || all.right != one.right {
					t.Errorf("TP %d, PCP %d, PP %d: %+v, not %+v", c[0], c[1], c[2], all, one)
				}
			}
		})
	}
}
