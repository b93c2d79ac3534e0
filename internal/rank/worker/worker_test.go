package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// tiny is the built-in model with a small cache.
func tiny() queue.Init {
	return queue.Init{Layout: layout.Layout{TP: 1}, LoadFormat: "auto", DType: "float32",
		Threads: 1, Blocks: 32, BlockSize: 16, MaxSeqs: 4, MaxModelLen: 128}
}

// drive is the driver of a rank that runs in the test.
type drive struct {
	t    *testing.T
	hub  queue.Hub
	done chan error
}

// launch runs a rank at the other end of a pipe. wrap, when not nil, changes the rank's port.
func launch(t *testing.T, wrap func(queue.Port) queue.Port) *drive {
	t.Helper()
	hub, ports := queue.Pipes(1)
	port := ports[0]
	if wrap != nil {
		port = wrap(port)
	}
	d := &drive{t, hub, make(chan error, 1)}
	go func() { d.done <- Run(port, Options{Rank: 0, DriversClock: true}) }()
	t.Cleanup(func() { hub.Close() })
	return d
}

// ready runs a rank until it is ready.
func ready(t *testing.T, wrap func(queue.Port) queue.Port) *drive {
	t.Helper()
	d := launch(t, wrap)
	d.tell(queue.KindInit, tiny())
	var r queue.Ready
	if err := json.Unmarshal(d.want(queue.KindReady), &r); err != nil || r.Rank != 0 ||
		r.PID != os.Getpid() || r.Threads != 1 || r.WeightBytes == 0 || r.ISA == "" {
		t.Fatalf("ready: %+v, %v", r, err)
	}
	return d
}

func soon() time.Time { return time.Now().Add(time.Minute) }

func (d *drive) send(record []byte) {
	d.t.Helper()
	if err := d.hub.Send(record, soon()); err != nil {
		d.t.Fatal(err)
	}
}

func (d *drive) tell(kind queue.Kind, v any) {
	d.t.Helper()
	record, err := queue.AppendJSON(nil, kind, v)
	if err != nil {
		d.t.Fatal(err)
	}
	d.send(record)
}

// want receives a record of one kind, passing over progress, and returns a copy of its body.
func (d *drive) want(kind queue.Kind) []byte {
	d.t.Helper()
	for {
		_, record, err := d.hub.Recv(soon())
		if err != nil {
			d.t.Fatal(err)
		}
		got, body, err := queue.Split(record)
		if err != nil {
			d.t.Fatal(err)
		}
		if got == queue.KindProgress && kind != got {
			continue
		}
		if got != kind {
			d.t.Fatalf("record of kind %d, not %d: %q", got, kind, body)
		}
		return slices.Clone(body)
	}
}

// ends waits for the end of the rank.
func (d *drive) ends() error {
	d.t.Helper()
	select {
	case err := <-d.done:
		return err
	case <-time.After(time.Minute):
		d.t.Fatal("the rank goes on")
		return nil
	}
}

// fails wants the rank's account of a failure, and the same error from Run.
func (d *drive) fails() queue.Failure {
	d.t.Helper()
	var f queue.Failure
	if err := json.Unmarshal(d.want(queue.KindFailure), &f); err != nil {
		d.t.Fatal(err)
	}
	if err := d.ends(); err == nil || err.Error() != f.Message {
		d.t.Errorf("Run returns %v, the driver is told %q", err, f.Message)
	}
	if f.Rank != 0 || f.PID != os.Getpid() || f.Type == "" {
		d.t.Errorf("failure %+v", f)
	}
	return f
}

func (d *drive) call(c queue.Call) queue.Reply {
	d.t.Helper()
	d.send(queue.AppendCall(nil, &c))
	r, err := queue.ParseReply(d.want(queue.KindReply))
	if err != nil || r.ID != c.ID || r.Rank != 0 {
		d.t.Fatalf("reply %+v, %v", r, err)
	}
	return r
}

// prompt is a plan that computes a prompt in slot 0 and samples its first token.
func prompt(id uint64, tokens ...int32) *step.Plan {
	return &step.Plan{ID: id, Free: []uint32{0},
		New: []step.NewRequest{{PromptLen: uint32(len(tokens)), Tokens: tokens,
			Params: sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
				PromptLogprobs: sample.NoLogprobs, MaxTokens: 10, EOS: -1}}},
		Rows:   []step.Row{{Count: uint32(len(tokens)), Blocks: 1, Sample: true}},
		Blocks: []uint32{2}}
}

func (d *drive) plan(p *step.Plan) { d.send(step.AppendPlan([]byte{byte(queue.KindPlan)}, p)) }

func (d *drive) result() (r step.Result) {
	d.t.Helper()
	if err := step.DecodeResult(d.want(queue.KindResult), &r); err != nil {
		d.t.Fatal(err)
	}
	return r
}

// TestServes runs plans and calls in the order they come and ends when it is asked to.
func TestServes(t *testing.T) {
	d := ready(t, nil)
	var first int32
	for id := uint64(1); id < 20; id++ {
		d.plan(prompt(id, 7, 8, 9))
		d.send(queue.AppendCall(nil, &queue.Call{ID: 100 + id, Method: calls.Echo.Name,
			Args: []byte{byte(id)}}))
		r := d.result()
		if id == 1 {
			first = r.Token[0]
		}
		if r.Plan != id || !slices.Equal(r.Slot, []uint32{0}) || !slices.Equal(r.Token,
			[]int32{first}) {
			t.Fatalf("result %+v", r)
		}
		c, err := queue.ParseReply(d.want(queue.KindReply))
		if err != nil || c.ID != 100+id || !bytes.Equal(c.Value, []byte{byte(id)}) ||
			c.Failure != "" {
			t.Fatalf("reply %+v, %v", c, err)
		}
	}
	for until := soon(); ; time.Sleep(time.Millisecond) {
		s, _ := d.hub.Status(0)
		if s.Phase == status.Idle && s.Received == 19 && s.Started == 19 && s.Finished == 19 &&
			s.Call == 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("idle rank says %+v", s)
		}
	}
	if r := d.call(queue.Call{ID: 1, Method: "check_health"}); r.Failure != "" ||
		len(r.Value) != 0 {
		t.Errorf("health %+v", r)
	}
	var info queue.Ready
	if r := d.call(queue.Call{ID: 2, Method: "rank_info"}); json.Unmarshal(r.Value, &info) != nil ||
		info.PID != os.Getpid() || info.WeightBytes == 0 {
		t.Errorf("info %+v", r)
	}
	d.send([]byte{byte(queue.KindShutdown)})
	if err := d.ends(); err != nil {
		t.Error(err)
	}
}

// TestCallFails answers a call it cannot do, and goes on.
func TestCallFails(t *testing.T) {
	d := ready(t, nil)
	for i, c := range []struct {
		call queue.Call
		want string
	}{
		{queue.Call{Method: "make_tea"}, `unknown method "make_tea"`},
		{queue.Call{Method: ""}, `unknown method ""`},
		{queue.Call{Method: calls.Echo.Name, Timeout: time.Second,
			Sent: time.Now().Add(-2 * time.Second).UnixNano(), Args: []byte("x")},
			"its time was over"},
	} {
		c.call.ID = uint64(i + 1)
		r := d.call(c.call)
		if !strings.Contains(r.Failure, c.want) || r.Type == "" || len(r.Value) != 0 {
			t.Errorf("%+v: %+v", c.call, r)
		}
		if r := d.call(queue.Call{ID: 100, Method: calls.Echo.Name, Timeout: time.Hour,
			Sent: time.Now().UnixNano(), Args: []byte("on")}); r.Failure != "" ||
			string(r.Value) != "on" {
			t.Errorf("after %+v: %+v", c.call, r)
		}
	}
	d.plan(prompt(1, 5))
	d.result()
}

// TestInitFails starts ranks that cannot: each tells why, and in which phase.
func TestInitFails(t *testing.T) {
	with := func(change func(*queue.Init)) []byte {
		i := tiny()
		change(&i)
		record, err := queue.AppendJSON(nil, queue.KindInit, i)
		if err != nil {
			t.Fatal(err)
		}
		return record
	}
	for name, c := range map[string]struct {
		record []byte
		phase  status.Phase
		want   string
	}{
		"empty record": {nil, status.Init, "empty record"},
		"a plan first": {step.AppendPlan([]byte{byte(queue.KindPlan)}, prompt(1, 5)), status.Init,
			"first record has kind 2"},
		"no JSON": {[]byte{byte(queue.KindInit), '{'}, status.Init, "decode configuration"},
		"other JSON": {append([]byte{byte(queue.KindInit)}, `{"threads":"many"}`...), status.Init,
			"decode configuration"},
		"no such type": {with(func(i *queue.Init) { i.DType = "int3" }), status.Load, "int3"},
		"no such ISA":  {with(func(i *queue.Init) { i.ISA = "z80" }), status.Load, "z80"},
		"no folder": {with(func(i *queue.Init) { i.ModelDir = "/no/such/model" }), status.Load,
			"/no/such/model"},
		"empty folder": {with(func(i *queue.Init) { i.ModelDir = t.TempDir() }), status.Load,
			"config.json"},
		"no way":   {with(func(i *queue.Init) { i.Layout.TP = 2 }), status.Load, "rank 0 of 2"},
		"no cache": {with(func(i *queue.Init) { i.Blocks = -1 }), status.Load, "-1"},
	} {
		t.Run(name, func(t *testing.T) {
			d := launch(t, nil)
			d.send(c.record)
			f := d.fails()
			if f.Phase != c.phase.String() || f.Step != 0 || !strings.Contains(f.Message, c.want) {
				t.Errorf("failure %+v, not in %v with %q", f, c.phase, c.want)
			}
		})
	}
}

// TestUnwantedLoad ends a load soon after the driver, who is told how far it is, has gone.
func TestUnwantedLoad(t *testing.T) {
	gone := errors.New("nobody listens")
	var bytes [2]int64
	for i, told := range []error{nil, gone} {
		r := &rank{init: tiny(), status: new(status.Rank)}
		here := place{share: machine.Share{Threads: 1}}
		err := r.load(here, func(queue.Progress) error { return told })
		bytes[i] = r.weightBytes
		r.close()
		if !errors.Is(err, told) {
			t.Fatal(err)
		}
	}
	if bytes[1] >= bytes[0]/2 {
		t.Errorf("loaded %d of %d bytes for a driver that is gone", bytes[1], bytes[0])
	}
}

// TestBadRecords ends a rank that gets what it cannot understand: driver and rank do not speak of
// the same state any more.
func TestBadRecords(t *testing.T) {
	for name, c := range map[string]struct {
		record []byte
		step   uint64
		want   string
	}{
		"empty":        {nil, 0, "empty record"},
		"unknown kind": {[]byte{200, 1, 2}, 0, "record of unknown kind 200"},
		"second init": {append([]byte{byte(queue.KindInit)}, `{}`...), 0,
			"record of unknown kind 1"},
		"short plan": {[]byte{byte(queue.KindPlan), 1, 2, 3}, 0, "plan"},
		"short call": {[]byte{byte(queue.KindCall), 1, 2, 3}, 0, "call of 3 bytes"},
		"no such slot": {step.AppendPlan([]byte{byte(queue.KindPlan)}, &step.Plan{ID: 6,
			Free: []uint32{99}}), 6, "slot 99 of 4"},
		"strange tokens": {step.AppendPlan([]byte{byte(queue.KindPlan)}, prompt(7, -5)), 7,
			"token -5 is outside"},
	} {
		t.Run(name, func(t *testing.T) {
			d := ready(t, nil)
			d.plan(prompt(5, 5, 6))
			d.result()
			d.send(c.record)
			if f := d.fails(); f.Step != c.step || !strings.Contains(f.Message, c.want) ||
				f.Stack != "" {
				t.Errorf("failure %+v, not at step %d with %q", f, c.step, c.want)
			}
		})
	}
}

// fragile is a port that panics, as a fault of the rank's own would.
type fragile struct {
	queue.Port
	received int
}

func (p *fragile) Recv(until time.Time) ([]byte, error) {
	p.received++
	if p.received == 3 {
		var none []int
		_ = none[p.received]
	}
	return p.Port.Recv(until)
}

func (p *fragile) Send(record []byte, until time.Time) error {
	var r step.Result
	if record[0] == byte(queue.KindResult) && step.DecodeResult(record[1:], &r) == nil &&
		r.Plan == 9 {
		panic(errors.New("out of cheese"))
	}
	return p.Port.Send(record, until)
}

// TestPanics turns a panic into an account with the place where it happened.
func TestPanics(t *testing.T) {
	d := ready(t, func(p queue.Port) queue.Port { return &fragile{Port: p} })
	d.plan(prompt(9, 5))
	f := d.fails()
	if f.Type != "panic" || f.Phase != "send" || f.Step != 9 ||
		f.Message != "panic: out of cheese" || !strings.Contains(f.Stack, "fragile).Send") {
		t.Errorf("in a plan: %+v", f)
	}
	d = ready(t, func(p queue.Port) queue.Port { return &fragile{Port: p} })
	d.plan(prompt(8, 5))
	d.result()
	if f := d.fails(); f.Type != "panic" || f.Step != 0 || !strings.Contains(f.Message,
		"index out of range") || !strings.Contains(f.Stack, "fragile).Recv") {
		t.Errorf("between plans: %+v", f)
	}
}

// TestDriverGone ends a rank in good order whenever the driver goes away.
func TestDriverGone(t *testing.T) {
	d := launch(t, nil)
	d.hub.Close()
	if err := d.ends(); err != nil {
		t.Errorf("before the configuration: %v", err)
	}
	d = launch(t, nil)
	d.send([]byte{byte(queue.KindShutdown)})
	if err := d.ends(); err != nil {
		t.Errorf("shutdown before the configuration: %v", err)
	}
	d = launch(t, nil)
	d.tell(queue.KindInit, tiny())
	d.hub.Close()
	if err := d.ends(); err != nil {
		t.Errorf("while it loads: %v", err)
	}
	d = ready(t, nil)
	d.hub.Close()
	if err := d.ends(); err != nil {
		t.Errorf("while idle: %v", err)
	}
	for range 10 {
		d = ready(t, nil)
		for id := uint64(1); id < 6; id++ { // it is in one of them
			d.plan(prompt(id, 5, 6, 7, 8))
			d.send(queue.AppendCall(nil, &queue.Call{ID: id, Method: calls.Echo.Name,
				Args: make([]byte, 1000)}))
		}
		d.hub.Close()
		if err := d.ends(); err != nil {
			t.Errorf("at work: %v", err)
		}
	}
}

// TestNoReader lets replies pile up until the rank must wait, and then take them all: nothing is
// lost.
func TestNoReader(t *testing.T) {
	d := ready(t, nil)
	const n = 200
	go func() {
		for id := range uint64(n) {
			if err := d.hub.Send(queue.AppendCall(nil, &queue.Call{ID: id, Method: calls.Echo.Name,
				Args: []byte{byte(id)}}), soon()); err != nil {
				t.Error(err)
			}
		}
	}()
	time.Sleep(20 * time.Millisecond)
	for id := range uint64(n) {
		r, err := queue.ParseReply(d.want(queue.KindReply))
		if err != nil || r.ID != id || !bytes.Equal(r.Value, []byte{byte(id)}) {
			t.Fatalf("reply %d: %+v, %v", id, r, err)
		}
	}
}

// TestMethods holds the calls to what they are told: the arguments are the queue's memory, no
// method keeps them.
func TestMethods(t *testing.T) {
	hub, ports := queue.Pipes(1)
	port := ports[0]
	defer hub.Close()
	w := &worker{port: port, status: port.Status(), methods: methods()}
	broken := errors.New("out of cheese")
	w.methods["breaks"] = func(*worker, []byte) ([]byte, error) { return []byte("ignored"), broken }
	body := queue.AppendCall(nil, &queue.Call{ID: 1, Method: calls.Echo.Name,
		Args: []byte("abc")})[1:]
	if err := w.call(body); err != nil {
		t.Fatal(err)
	}
	clear(body)
	_, record, err := hub.Recv(soon())
	if err != nil {
		t.Fatal(err)
	}
	if r, err := queue.ParseReply(record[1:]); err != nil || string(r.Value) != "abc" {
		t.Errorf("reply %+v, %v", r, err)
	}
	if err := w.call(queue.AppendCall(nil, &queue.Call{ID: 2, Method: "breaks"})[1:]); err != nil {
		t.Fatal(err)
	}
	_, record, err = hub.Recv(soon())
	if err != nil {
		t.Fatal(err)
	}
	if r, err := queue.ParseReply(record[1:]); err != nil || r.Failure != "out of cheese" ||
		r.Type != fmt.Sprintf("%T", broken) || len(r.Value) != 0 {
		t.Errorf("reply %+v, %v", r, err)
	}
	// A rank whose clock may not be the driver's counts from when it takes a call up.
	if err := w.call(queue.AppendCall(nil, &queue.Call{ID: 3, Method: calls.Echo.Name,
		Timeout: time.Hour, Sent: 1})[1:]); err != nil {
		t.Fatal(err)
	}
	_, record, err = hub.Recv(soon())
	if err != nil {
		t.Fatal(err)
	}
	if r, err := queue.ParseReply(record[1:]); err != nil || r.Failure != "" {
		t.Errorf("reply %+v, %v", r, err)
	}
	if s := w.status.Snapshot(); s.Call != 0 {
		t.Errorf("after the calls: %+v", s)
	}
}
