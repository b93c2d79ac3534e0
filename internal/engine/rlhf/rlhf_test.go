package rlhf

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/gpu"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// TestMain lets the test binary be its own worker process, as the program is, and a rank on the
// machine that stands for GPUs.
func TestMain(m *testing.M) {
	invited.Run(gpu.Devices(gpu.Libraries{}))
	os.Exit(m.Run())
}

// others are weights for the built-in model that make it another one: the first two layers change
// places, and the first feature of every embedding its sign.
func others(t testing.TB) []checkpoint.Tensor {
	t.Helper()
	c, err := checkpoint.Open(builtin.Folder())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	var list []checkpoint.Tensor
	for _, name := range c.Names() {
		x, err := c.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.Contains(name, ".layers.0."):
			x.Name = strings.Replace(name, ".layers.0.", ".layers.1.", 1)
		case strings.Contains(name, ".layers.1."):
			x.Name = strings.Replace(name, ".layers.1.", ".layers.0.", 1)
		case strings.Contains(name, "embed_tokens"):
			x.Data = bytes.Clone(x.Data)
			row := x.Shape[1] * x.DType.Size()
			for at := x.DType.Size() - 1; at < len(x.Data); at += row {
				x.Data[at] ^= 0x80
			}
		}
		list = append(list, x)
	}
	return list
}

// file writes tensors as a safetensors file, and its name.
func file(t testing.TB, dir string, list []checkpoint.Tensor) string {
	t.Helper()
	header, at := map[string]any{}, 0
	var data []byte
	for _, x := range list {
		header[x.Name] = map[string]any{"dtype": x.DType.String(), "shape": x.Shape,
			"data_offsets": []int{at, at + len(x.Data)}}
		at += len(x.Data)
		data = append(data, x.Data...)
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	all := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	name := filepath.Join(dir, "model.safetensors")
	if err := os.WriteFile(name, append(append(all, text...), data...), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// folder is a model folder of the tensors.
func folder(t testing.TB, list []checkpoint.Tensor) string {
	t.Helper()
	dir, f := t.TempDir(), builtin.Folder()
	for _, name := range f.Names() {
		if name == "model.safetensors" {
			continue
		}
		raw, err := f.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file(t, dir, list)
	return dir
}

// server is engines with a control.
type server struct {
	*Control
	engines []*engine.Engine
}

func open(t testing.TB, change func(c *config.Config)) *server {
	t.Helper()
	c := config.Default()
	c.Cache.MemoryBytes = 16 << 20
	c.Parallel.CPUThreads = 1
	if change != nil {
		change(&c)
	}
	engines, _, err := engine.OpenAll(t.Context(), engine.Options{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	control, err := New(Options{Engines: func() []*engine.Engine { return engines },
		Layout: c.Parallel.Layout(), Host: "127.0.0.1", Allowed: []string{os.TempDir()},
		Predicts: c.Speculative.Method == config.MTP})
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
	return &server{control, engines}
}

// layouts are those that the tests go through, the first ones in each run.
func layouts(t *testing.T, f func(t *testing.T, change func(c *config.Config))) {
	for i, c := range []struct {
		name               string
		backend, transport string
		tp, pp, pcp, dp    int
	}{
		{"uni", "uni", "auto", 1, 1, 1, 1},
		{"tp", "mp", "auto", 2, 1, 1, 1},
		{"links and engines", "mp", "link", 2, 1, 1, 2},
		{"stages", "mp", "auto", 1, 2, 1, 1},
		{"prefill", "mp", "auto", 1, 1, 2, 1},
		{"tp and stages", "mp", "link", 2, 2, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && i > 2 {
				t.Skip("more layouts, without -short")
			}
			f(t, func(o *config.Config) {
				p := &o.Parallel
				p.Backend, p.TensorParallelSize, p.PipelineParallelSize = c.backend, c.tp, c.pp
				p.PrefillContextParallelSize, p.DataParallelSize = c.pcp, c.dp
				o.Queue.Transport = c.transport
			})
		})
	}
}

// answer is all that is known of an output.
type answer struct {
	tokens   []int32
	logprobs []step.Logprobs
	finish   sample.Finish
}

func request(e *engine.Engine, question string, most int32) *engine.Request {
	text := "<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n"
	return engine.NewRequest(e.Info().Tokenizer.Encode(text, false), sample.Params{TopP: 1,
		RepetitionPenalty: 1, Temperature: 0.7, Seed: 11, Logprobs: 2,
		PromptLogprobs: sample.NoLogprobs, MaxTokens: most, MinTokens: most, EOS: e.Info().EOS,
		IgnoreEOS: true})
}

// read reads a stream to its end; at is called with the number of tokens so far.
func read(t testing.TB, s engine.Stream, at func(tokens int)) (a answer) {
	t.Helper()
	each(t, s, func(d engine.Delta) {
		a.tokens = append(a.tokens, d.Tokens...)
		for _, l := range d.Logprobs {
			l.Slot, l.Top = 0, slices.Clone(l.Top) // the slot is no part of the answer
			a.logprobs = append(a.logprobs, l)
		}
		a.finish = d.Finish
		if at != nil {
			at(len(a.tokens))
		}
	})
	return a
}

// each reads a stream to its end.
func each(t testing.TB, s engine.Stream, f func(d engine.Delta)) {
	t.Helper()
	defer s.Close()
	for {
		d, err := s.Next(t.Context())
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		f(d)
	}
}

func submit(t testing.TB, e *engine.Engine, r *engine.Request) engine.Stream {
	t.Helper()
	s, err := e.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const asked = 3

// answers are those of every engine to some questions.
func answers(t testing.TB, s *server) (list [][]answer) { return answersOf(t, s, asked, 12) }

// answersOf are those of a number of requests, of so many tokens.
func answersOf(t testing.TB, s *server, requests int, tokens int32) (list [][]answer) {
	t.Helper()
	for _, e := range s.engines {
		var own []answer
		for i := range requests {
			r := request(e, fmt.Sprintf("What is %d?", i), tokens)
			own = append(own, read(t, submit(t, e, r), nil))
		}
		list = append(list, own)
	}
	return list
}

// references are the answers of one rank with the built-in weights and with those of others, which
// are those of any layout.
var references struct {
	once        sync.Once
	own, others []answer
}

func ownAnswers(t testing.TB) []answer {
	t.Helper()
	references.once.Do(func() {
		dir := folder(t, others(t))
		references.own = answers(t, open(t, nil))[0]
		references.others = answers(t, open(t, func(c *config.Config) { c.Model.Path = dir }))[0]
	})
	return references.own
}

func otherAnswers(t testing.TB) []answer {
	t.Helper()
	ownAnswers(t)
	return references.others
}

// equal compares the answers of each engine with those of one that has always had the weights.
func equal(t testing.TB, what string, got [][]answer, want []answer) {
	t.Helper()
	for i, own := range got {
		if !reflect.DeepEqual(own, want) {
			t.Errorf("%s: engine %d answers\n%v, want\n%v", what, i, own, want)
		}
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// update brings weights by a file.
func (s *server) update(t testing.TB, path string) {
	t.Helper()
	ok(t, s.Start(t.Context()))
	ok(t, s.Update(t.Context(), Source{Path: path}))
	ok(t, s.Finish(t.Context(), ""))
}

// TestUpdate goes from the built-in weights to others and back, with requests in flight in each
// mode of a pause: answers are those of a server that was started with the weights, to the bit.
func TestUpdate(t *testing.T) {
	list := others(t)
	dir := folder(t, list)
	want := map[bool][]answer{
		false: ownAnswers(t),
		true:  otherAnswers(t),
	}
	if reflect.DeepEqual(want[false], want[true]) {
		t.Fatal("the other weights make no difference")
	}
	own, err := checkpoint.Open(builtin.Folder())
	ok(t, err)
	defer own.Close()
	var before []checkpoint.Tensor
	for _, name := range own.Names() {
		x, err := own.Tensor(name)
		ok(t, err)
		before = append(before, x)
	}
	back := file(t, t.TempDir(), before)
	layouts(t, func(t *testing.T, change func(*config.Config)) {
		s := open(t, change)
		_, err := s.Init(t.Context(), true)
		ok(t, err)
		equal(t, "before", answers(t, s), want[false])
		updated := false
		modes := append(state.Modes(), "")
		if testing.Short() && len(s.engines) > 1 {
			modes = modes[:2] // the others are those of one engine
		}
		for _, mode := range modes {
			e := s.engines[0]
			most := int32(60)
			if mode == state.Abort {
				most = 1000 // the end must not come first, however late the pause is
			}
			var reading sync.WaitGroup
			var in answer
			begun, once := make(chan struct{}), sync.Once{}
			stream := submit(t, e, request(e, "How many are in flight?", most))
			reading.Go(func() {
				in = read(t, stream, func(n int) {
					if n >= 3 {
						once.Do(func() { close(begun) })
					}
				})
			})
			<-begun
			if mode != "" {
				ok(t, s.Pause(t.Context(), mode, true))
			}
			var held engine.Stream
			if mode != "" {
				held = submit(t, e, request(e, "What is 1?", 12))
				if err := e.Healthy(t.Context()); !errors.Is(err, engine.ErrPaused) {
					t.Errorf("health while paused: %v", err)
				}
			}
			updated = !updated
			path := back
			if updated {
				path = dir
			}
			s.update(t, path)
			if mode != "" {
				ok(t, s.Resume(t.Context()))
				if a := read(t, held, nil); !reflect.DeepEqual(a, want[updated][1]) {
					t.Errorf("%s: a request that was held: %v, want %v", mode, a, want[updated][1])
				}
			}
			reading.Wait()
			switch n := int32(len(in.tokens)); {
			case mode == state.Abort && (in.finish != sample.FinishAbort || n == 0 || n == most):
				t.Errorf("abort: %d tokens, %v", n, in.finish)
			case mode != state.Abort && (in.finish != sample.FinishLength || n != most):
				t.Errorf("%s: %d tokens, %v", mode, n, in.finish)
			}
			equal(t, fmt.Sprintf("after %q", mode), answers(t, s), want[updated])
		}
		if v := s.Version(); v != fmt.Sprint(len(modes)) {
			t.Errorf("version %q", v)
		}
	})
}

// TestRecovery kills a rank after an update: the one in its place has the weights of the update,
// not of the files, also when these are gone.
func TestRecovery(t *testing.T) {
	list := others(t)
	want := otherAnswers(t)
	s := open(t, func(c *config.Config) {
		c.Parallel.Backend, c.Parallel.TensorParallelSize = "mp", 2
	})
	_, err := s.Init(t.Context(), true)
	ok(t, err)
	path := file(t, t.TempDir(), list)
	s.update(t, path)
	ok(t, os.Remove(path))
	for rank := range 2 {
		e := s.engines[0]
		stream := submit(t, e, request(e, "What is 1?", 12))
		var once sync.Once
		got := read(t, stream, func(n int) {
			if n >= 2 {
				once.Do(func() { ok(t, syscall.Kill(e.Report()[rank].PID, syscall.SIGKILL)) })
			}
		})
		if !reflect.DeepEqual(got, want[1]) {
			t.Errorf("rank %d was killed: %v, want %v", rank, got, want[1])
		}
		equal(t, "after it", answers(t, s), want)
	}
}

// TestSleep has both levels of sleep, before and after an update, and a rank that dies asleep.
func TestSleep(t *testing.T) {
	list := others(t)
	dir := folder(t, list)
	own := ownAnswers(t)
	want := otherAnswers(t)
	s := open(t, func(c *config.Config) {
		c.Parallel.Backend, c.Parallel.TensorParallelSize = "mp", 2
	})
	ctx := t.Context()
	ok(t, s.Sleep(ctx, 2, state.Abort))
	if !s.Sleeping() || !s.Paused() {
		t.Error("it does not sleep")
	}
	var order *state.WrongOrder
	if err := s.Resume(ctx); !errors.As(err, &order) {
		t.Errorf("resumed asleep: %v", err)
	}
	ok(t, syscall.Kill(s.engines[0].Report()[1].PID, syscall.SIGKILL))
	ok(t, s.Wake(ctx, []string{state.Weights}))
	_, err := s.Init(ctx, false)
	ok(t, err)
	s.update(t, dir)
	ok(t, s.Wake(ctx, nil))
	equal(t, "updated half asleep", answers(t, s), want)
	for level := range 3 {
		ok(t, s.Sleep(ctx, level, state.Wait))
		ok(t, s.Wake(ctx, nil))
		equal(t, fmt.Sprintf("after level %d", level), answers(t, s), want)
	}
	if reflect.DeepEqual(own, want) {
		t.Error("the update makes no difference")
	}
}

// TestSleepGivenUp: when a sleep is given up before all engines have finished what they let finish,
// an engine that had finished goes on with the requests that have come meanwhile.
func TestSleepGivenUp(t *testing.T) {
	s := open(t, func(c *config.Config) { c.Parallel.DataParallelSize = 2 })
	long := submit(t, s.engines[0], request(s.engines[0], "What?", 1000))
	defer long.Close()
	if _, err := long.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	slept := make(chan error, 1)
	go func() { slept <- s.Sleep(ctx, 1, state.Wait) }()
	for !s.wanted.Paused() {
		time.Sleep(time.Millisecond)
	}
	held := submit(t, s.engines[1], request(s.engines[1], "What?", 3))
	time.Sleep(50 * time.Millisecond) // the engine has let it in, and idles
	giveUp()
	if err := <-slept; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := held.Next(within); err != nil {
		t.Errorf("it waits although nothing is paused (%v): %v", s.Paused(), err)
	}
}

// TestSleepAfterPause: requests that a pause lets finish do so after a sleep between.
func TestSleepAfterPause(t *testing.T) {
	s := open(t, nil)
	long := submit(t, s.engines[0], request(s.engines[0], "What?", 500))
	if _, err := long.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	paused := make(chan error, 1)
	go func() { paused <- s.Pause(t.Context(), state.Wait, true) }()
	for !s.Paused() {
		time.Sleep(time.Millisecond)
	}
	ok(t, s.Sleep(t.Context(), 1, state.Keep))
	ok(t, s.Wake(t.Context(), nil))
	select {
	case err := <-paused:
		ok(t, err)
	case <-time.After(10 * time.Second):
		t.Error("what was let finish is held after the sleep")
		ok(t, s.Resume(t.Context()))
	}
	if a := read(t, long, nil); a.finish != sample.FinishLength {
		t.Errorf("it ended by %v", a.finish)
	}
}

// TestSleepOfCodes: a cache of codes comes back empty, and an update changes what is in it.
func TestSleepOfCodes(t *testing.T) {
	dir := folder(t, others(t))
	for _, dtype := range []string{"int8", "fp8_e4m3"} {
		s := open(t, func(c *config.Config) {
			c.Parallel.Backend, c.Parallel.TensorParallelSize = "mp", 2
			c.Cache.DType = dtype
		})
		own := answers(t, s)[0]
		for level := range 3 {
			ok(t, s.Sleep(t.Context(), level, state.Wait))
			ok(t, s.Wake(t.Context(), nil))
			if level < 2 {
				equal(t, fmt.Sprintf("%s, after level %d", dtype, level), answers(t, s), own)
			}
		}
		_, err := s.Init(t.Context(), false)
		ok(t, err)
		s.update(t, dir)
		updated := answers(t, s)[0]
		ok(t, s.Sleep(t.Context(), 1, state.Wait))
		ok(t, s.Wake(t.Context(), nil))
		equal(t, dtype+", updated", answers(t, s), updated)
		if reflect.DeepEqual(own, updated) {
			t.Errorf("%s: the update makes no difference", dtype)
		}
	}
}

// memory is what a process holds resident, in bytes.
func memory(t testing.TB, pid int) (bytes int64) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	ok(t, err)
	var size, resident int64
	if _, err := fmt.Sscan(string(raw), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// TestSleepFreesMemory: a rank without its weights and its cache is smaller by both.
func TestSleepFreesMemory(t *testing.T) {
	s := open(t, func(c *config.Config) {
		c.Parallel.Backend = "mp"
		c.Cache.MemoryBytes = 64 << 20
	})
	e := s.engines[0]
	prompt := slices.Repeat([]int32{5, 6, 7}, 600)
	read(t, submit(t, e, engine.NewRequest(prompt, request(e, "", 20).Params)), nil)
	pid, weight := e.Report()[0].PID, e.Info().WeightBytes
	before := memory(t, pid)
	_, err := s.Init(t.Context(), true)
	ok(t, err)
	awake := memory(t, pid)
	if awake < before+weight/2 {
		t.Errorf("%d bytes, %d before room for an update of %d was found", awake, before, weight)
	}
	ok(t, s.Sleep(t.Context(), 1, state.Wait))
	first := memory(t, pid)
	ok(t, s.Sleep(t.Context(), 2, state.Wait))
	second := memory(t, pid)
	if first >= awake || second > first-weight/2 {
		t.Errorf("%d bytes awake, %d and %d asleep, of which %d are weights", awake, first, second,
			weight)
	}
	ok(t, s.Wake(t.Context(), nil))
}

// pieces are tensors as they are announced, cut in parts along a dimension: 0 or 1 of matrices, -1
// for whole ones.
func pieces(list []checkpoint.Tensor, cut int) (all []weights.Piece, data [][]byte) {
	for _, x := range list {
		if cut < 0 || len(x.Shape) != 2 {
			all = append(all, weights.Piece{Name: x.Name, DType: x.DType, Shape: x.Shape})
			data = append(data, x.Data)
			continue
		}
		size, half := x.DType.Size(), x.Shape[cut]/2
		for part := range 2 {
			p := weights.Piece{Name: x.Name, DType: x.DType, Shape: slices.Clone(x.Shape),
				Offset: []int{0, 0}}
			p.Shape[cut], p.Offset[cut] = half, part*half
			if part == 1 {
				p.Shape[cut] = x.Shape[cut] - half
			}
			var raw []byte
			for row := range p.Shape[0] {
				at := ((row+p.Offset[0])*x.Shape[1] + p.Offset[1]) * size
				raw = append(raw, x.Data[at:at+p.Shape[1]*size]...)
			}
			all, data = append(all, p), append(data, raw)
		}
	}
	return all, data
}

// dial connects to a session, over its unix socket or over TLS.
func dial(t testing.TB, s Session, secure bool) net.Conn {
	t.Helper()
	var c net.Conn
	var err error
	if secure {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(s.Certificate)) {
			t.Fatal("no certificate")
		}
		c, err = tls.Dial("tcp", s.TCP, &tls.Config{RootCAs: roots, ServerName: "eagleray-weights"})
	} else {
		c, err = net.Dial("unix", "@"+s.Unix)
	}
	ok(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// bring sends tensors over a connection; damage may change what is sent.
func bring(c net.Conn, token string, data [][]byte, damage func(i int, crc *uint32) bool) {
	fmt.Fprintf(c, "%s%s s\n", greeting, token)
	for i, d := range data {
		crc := crc32.ChecksumIEEE(d)
		if damage != nil && damage(i, &crc) {
			c.Close()
			return
		}
		if _, err := c.Write(binary.LittleEndian.AppendUint32(d[:len(d):len(d)], crc)); err != nil {
			return
		}
	}
}

// TestStreams brings weights over a unix socket, over TLS, whole and in parts, in several calls,
// and as memory that is handed over. What a framework's state has beside them comes along.
func TestStreams(t *testing.T) {
	list := others(t)
	want := otherAnswers(t)
	beside := func(name string, shape ...int) checkpoint.Tensor {
		size := checkpoint.F32.Size()
		for _, n := range shape {
			size *= n
		}
		return checkpoint.Tensor{Name: name, DType: checkpoint.F32, Shape: shape,
			Data: bytes.Repeat([]byte{0xff}, size)}
	}
	list = append([]checkpoint.Tensor{beside("model.rotary_emb.inv_freq", 16),
		beside("lm_head.weight", 2048, 256)}, list...)
	for name, c := range map[string]struct {
		secure, memory bool
		cut, calls     int
	}{"unix": {false, false, -1, 1}, "tls": {true, false, -1, 1}, "rows": {false, false, 0, 2},
		"columns": {true, false, 1, 3}, "memory": {false, true, -1, 2},
		"columns in memory": {false, true, 1, 1}} {
		t.Run(name, func(t *testing.T) {
			s := open(t, nil)
			session, err := s.Init(t.Context(), true)
			ok(t, err)
			all, data := pieces(list, c.cut)
			ok(t, s.Start(t.Context()))
			for k := range c.calls {
				lo, hi := len(all)*k/c.calls, len(all)*(k+1)/c.calls
				conn := dial(t, session, c.secure)
				if c.memory {
					hand(t, conn, session.Token, all[lo:hi], data[lo:hi], true)
				} else {
					go bring(conn, session.Token, data[lo:hi], nil)
				}
				ok(t, s.Update(t.Context(), Source{Stream: "s", Pieces: all[lo:hi]}))
			}
			ok(t, s.Finish(t.Context(), "step-7"))
			equal(t, name, answers(t, s), want)
			if v := s.Info(); v.Version != "step-7" || v.Updates != 1 {
				t.Errorf("%+v", v)
			}
		})
	}
}

// hand hands memory over that holds the pieces.
func hand(t testing.TB, c net.Conn, token string, all []weights.Piece, data [][]byte, seal bool) {
	t.Helper()
	fd, err := unix.MemfdCreate("weights", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	ok(t, err)
	defer unix.Close(fd)
	at := int64(0)
	for i, d := range data {
		crc := crc32.ChecksumIEEE(d)
		all[i].Position, all[i].CRC = at, &crc
		for part := d; len(part) > 0; {
			n, err := unix.Pwrite(fd, part, at)
			ok(t, err)
			part, at = part[n:], at+int64(n)
		}
	}
	if seal {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		ok(t, err)
	}
	_, _, err = c.(*net.UnixConn).WriteMsgUnix(fmt.Appendf(nil, "%s%s s\n", greeting, token),
		unix.UnixRights(fd), nil)
	ok(t, err)
}

const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// TestBrokenUpdates: whatever breaks, the answers are those from before, and the next update
// succeeds.
func TestBrokenUpdates(t *testing.T) {
	list := others(t)
	dir := folder(t, list)
	want := ownAnswers(t)
	after := otherAnswers(t)
	s := open(t, nil)
	all, data := pieces(list, -1)
	changed := func(f func(p []weights.Piece) []weights.Piece) []weights.Piece {
		return f(slices.Clone(all))
	}
	// changedAt are the bytes with another number somewhere in a tensor.
	changedAt := func(name string, element int, number uint16) [][]byte {
		list := slices.Clone(data)
		i := slices.IndexFunc(all, func(p weights.Piece) bool { return p.Name == name })
		list[i] = slices.Clone(list[i])
		binary.LittleEndian.PutUint16(list[i][2*element:], number)
		return list
	}
	broken := func(name string, element int, number uint16) func(*testing.T, Session) {
		return func(t *testing.T, session Session) {
			go bring(dial(t, session, false), session.Token, changedAt(name, element, number), nil)
		}
	}
	handed := slices.Clone(all)
	for name, c := range map[string]struct {
		pieces []weights.Piece
		bring  func(t *testing.T, session Session)
		want   string
	}{
		"a wrong checksum": {all, func(t *testing.T, session Session) {
			go bring(dial(t, session, false), session.Token, data, func(i int, crc *uint32) bool {
				if i == len(data)-1 {
					*crc++
				}
				return false
			})
		}, "wrong checksum"},
		"a connection that is cut": {all, func(t *testing.T, session Session) {
			go bring(dial(t, session, true), session.Token, data, func(i int, _ *uint32) bool {
				return i == len(data)/2
			})
		}, "EOF"},
		"memory that can be written to": {all, func(t *testing.T, session Session) {
			hand(t, dial(t, session, false), session.Token, slices.Clone(all), data, false)
		}, "not sealed"},
		"positions outside": {changed(func(p []weights.Piece) []weights.Piece {
			p[3].Position = 1 << 50
			return p
		}), func(t *testing.T, session Session) {
			hand(t, dial(t, session, false), session.Token, slices.Clone(all), data, true)
		}, "outside"},
		"another shape": {changed(func(p []weights.Piece) []weights.Piece {
			p[0].Shape = []int{1 << 40, 1 << 40}
			return p
		}), nil, "has shape [1099511627776 1099511627776], the model's"},
		"other names": {changed(func(p []weights.Piece) []weights.Piece {
			for i := range p {
				p[i].Name = "x." + p[i].Name
			}
			return p
		}), nil, fmt.Sprintf("differ from the model's in %d tensors: ", len(all))},
		"a shape of what does not count": {append([]weights.Piece{{Name: "lm_head.weight",
			DType: checkpoint.F32, Shape: []int{1 << 40, 1 << 40}}}, all...), nil,
			`"lm_head.weight" has shape [1099511627776 1099511627776]`},
		"a type of what does not count": {append([]weights.Piece{{Name: "lm_head.weight",
			Shape: []int{2}}}, all...), nil, `"lm_head.weight" has type`},
		"a tensor twice": {append(slices.Clone(all), all[0]), nil, "comes twice"},
		"a tensor that is missing": {all[1:], func(t *testing.T, session Session) {
			go bring(dial(t, session, false), session.Token, data[1:], nil)
		}, fmt.Sprintf("%q is missing", all[0].Name)},
		"NaN in a matrix": {all, broken("model.layers.1.mlp.up_proj.weight", 5, 0x7fc0),
			`tensor "model.layers.1.mlp.up_proj.weight": element [0, 5] is NaN in bf16`},
		"infinity in a norm": {all, broken("model.layers.0.input_layernorm.weight", 2, 0xff80),
			`tensor "model.layers.0.input_layernorm.weight": element [2] is -Inf`},
		"infinity in the embedding, in shared memory": {handed, func(t *testing.T,
			session Session) {
			hand(t, dial(t, session, false), session.Token, handed,
				changedAt("model.embed_tokens.weight", 3, 0x7f80), true)
		}, `tensor "model.embed_tokens.weight": element [0, 3] is +Inf`},
	} {
		t.Run(name, func(t *testing.T) {
			session, err := s.Init(t.Context(), true)
			ok(t, err)
			ok(t, s.Start(t.Context()))
			if c.bring != nil {
				c.bring(t, session)
			}
			err = s.Update(t.Context(), Source{Stream: "s", Pieces: c.pieces})
			if err == nil {
				err = s.Finish(t.Context(), "")
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			var m *weights.MismatchError
			if errors.As(err, &m) && (len(m.First) > 10 || m.Count < len(m.First)) {
				t.Errorf("%d differences are listed of %d", len(m.First), m.Count)
			}
			var order *state.WrongOrder
			for what, err := range map[string]error{"finish": s.Finish(t.Context(), ""),
				"update": s.Update(t.Context(), Source{Stream: "s", Pieces: c.pieces})} {
				if !errors.As(err, &order) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s goes on, or does not say why not: %v", what, err)
				}
			}
			equal(t, name, answers(t, s), want)
			if s.Version() != "0" {
				t.Errorf("version %s", s.Version())
			}
		})
	}
	s.update(t, dir)
	equal(t, "in the end", answers(t, s), after)
	if err := s.Finish(t.Context(), ""); err == nil || !strings.Contains(err.Error(),
		"the last one was finished") {
		t.Errorf("finished twice: %v", err)
	}
}

// TestStrangers: without the token nothing is taken, and what waits for an update is bounded.
func TestStrangers(t *testing.T) {
	s := open(t, nil)
	session, err := s.Init(t.Context(), true)
	ok(t, err)
	for _, line := range []string{"GET / HTTP/1.1\r\n", greeting + "wrong s\n",
		greeting + session.Token + "\n", strings.Repeat("x", 2*maxLine)} {
		c := dial(t, session, false)
		if _, err := io.WriteString(c, line); err != nil {
			t.Fatal(err)
		}
		ok(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		if n, err := c.Read(make([]byte, 1)); err == nil || n > 0 {
			t.Errorf("%q is answered", line)
		}
	}
	for i := range 3 * maxStreams {
		c := dial(t, session, false)
		fmt.Fprintf(c, "%s%s s%d\n", greeting, session.Token, i)
	}
	s.Control.receiver.mu.Lock()
	n := len(s.Control.receiver.streams)
	s.Control.receiver.mu.Unlock()
	if n > maxStreams {
		t.Errorf("%d streams wait", n)
	}
}
