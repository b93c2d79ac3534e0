package queue

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/status"
)

func soon() time.Time { return time.Now().Add(time.Minute) }

// TestPipe sends records of many sizes both ways at once and wants each whole and in order.
func TestPipe(t *testing.T) {
	hub, ports := Pipes(1)
	port := ports[0]
	defer hub.Close()
	var wg sync.WaitGroup
	send := func(seed uint64, f func([]byte) error) {
		rng := rand.New(rand.NewPCG(seed, 1))
		buf := make([]byte, 300<<10)
		for range 500 {
			b := buf[:size(rng)]
			fill(b, rng)
			if err := f(b); err != nil {
				t.Error(err)
				return
			}
			clear(b) // Send must not keep the caller's memory
		}
	}
	recv := func(seed uint64, f func() ([]byte, error)) {
		rng := rand.New(rand.NewPCG(seed, 1))
		want := make([]byte, 300<<10)
		for n := range 500 {
			w := want[:size(rng)]
			fill(w, rng)
			got, err := f()
			if err != nil || !bytes.Equal(got, w) {
				t.Errorf("record %d of %d bytes differs, %v", n, len(w), err)
				return
			}
		}
	}
	wg.Go(func() { send(1, func(b []byte) error { return hub.Send(b, soon()) }) })
	wg.Go(func() { recv(1, func() ([]byte, error) { return port.Recv(soon()) }) })
	wg.Go(func() { send(2, func(b []byte) error { return port.Send(b, soon()) }) })
	wg.Go(func() {
		recv(2, func() ([]byte, error) {
			_, b, err := hub.Recv(soon())
			return b, err
		})
	})
	wg.Wait()
}

func size(rng *rand.Rand) int {
	if rng.IntN(20) == 0 {
		return rng.IntN(300 << 10)
	}
	return rng.IntN(3000)
}

func fill(b []byte, rng *rand.Rand) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

// TestPipeEnds ends waits by deadline, interrupt and close; what was sent before a close is still
// received.
func TestPipeEnds(t *testing.T) {
	hub, ports := Pipes(1)
	port := ports[0]
	if _, _, err := hub.Recv(time.Now().Add(5 * time.Millisecond)); !errors.Is(err, ErrTimeout) {
		t.Errorf("Recv past its deadline: %v", err)
	}
	for i := 0; ; i++ {
		err := hub.Send([]byte("x"), time.Now().Add(5*time.Millisecond))
		if errors.Is(err, ErrTimeout) {
			break
		}
		if err != nil || i > 100 {
			t.Fatalf("Send to a rank that does not read: %v", err)
		}
	}
	hub.Interrupt()
	if _, _, err := hub.Recv(soon()); !errors.Is(err, ErrInterrupted) {
		t.Errorf("interrupted Recv: %v", err)
	}
	if err := port.Send([]byte("last"), soon()); err != nil {
		t.Fatal(err)
	}
	port.Status().Set(status.Forward, 3)
	if s, _ := hub.Status(0); s.Phase != status.Forward || s.Detail != 3 {
		t.Errorf("status %+v", s)
	}
	hub.Drop(0)
	if _, b, err := hub.Recv(soon()); err != nil || string(b) != "last" {
		t.Errorf("received %q, %v", b, err)
	}
	if _, _, err := hub.Recv(soon()); !errors.Is(err, ErrClosed) {
		t.Errorf("Recv from a closed pipe: %v", err)
	}
	if err := port.Send(nil, soon()); !errors.Is(err, ErrClosed) {
		t.Errorf("Send to a closed pipe: %v", err)
	}
	if err := hub.Close(); err != nil {
		t.Error(err)
	}
}

// TestPipes broadcasts to several ranks, of which one reads nothing, one leaves and one is dropped,
// and takes what each sent.
func TestPipes(t *testing.T) {
	hub, ports := Pipes(4)
	defer hub.Close()
	send := func() error { return hub.Send([]byte("plan"), time.Now().Add(5*time.Millisecond)) }
	ports[1].Close()
	hub.Drop(2)
	for i := range 3 * pipeDepth {
		if err := send(); err != nil {
			t.Fatal(err)
		}
		for _, rank := range []int{0, 3} {
			if b, err := ports[rank].Recv(soon()); err != nil || string(b) != "plan" {
				t.Fatalf("rank %d receives %q, %v", rank, b, err)
			}
			want := fmt.Sprint(rank, i)
			if err := ports[rank].Send([]byte(want), soon()); err != nil {
				t.Fatal(err)
			}
			if r, b, err := hub.Recv(soon()); err != nil || r != rank || string(b) != want {
				t.Fatalf("received %q of rank %d, %v, not %q of rank %d", b, r, err, want, rank)
			}
		}
	}
	if _, err := ports[2].Recv(soon()); !errors.Is(err, ErrClosed) {
		t.Errorf("dropped rank: %v", err)
	}
	var err error
	for range 2 * pipeDepth {
		if err = send(); err != nil {
			break
		}
		if _, err := ports[0].Recv(soon()); err != nil {
			t.Fatal(err)
		}
	}
	var slow *SlowError
	if !errors.As(err, &slow) || !slices.Equal(slow.Ranks, []int{3}) ||
		!errors.Is(err, ErrTimeout) {
		t.Errorf("rank 3 does not read: %v", err)
	}
	ports[3].Close()
	if err := send(); err != nil {
		t.Errorf("with one rank left: %v", err)
	}
	ports[0].Close()
	if err := send(); !errors.Is(err, ErrClosed) {
		t.Errorf("Send with no rank left: %v", err)
	}
	if _, _, err := hub.Recv(soon()); !errors.Is(err, ErrClosed) {
		t.Errorf("Recv with no rank left: %v", err)
	}
}

// TestPipeAllocates nothing in the steady state, deadlines included.
func TestPipeAllocates(t *testing.T) {
	hub, ports := Pipes(1)
	port := ports[0]
	defer hub.Close()
	record := make([]byte, 4096)
	until := soon()
	trip := func() {
		if hub.Send(record, until) != nil {
			t.Fatal("send")
		}
		b, _ := port.Recv(time.Time{})
		if port.Send(b[:1200], time.Time{}) != nil {
			t.Fatal("reply")
		}
		hub.Recv(until)
	}
	for range 20 {
		trip()
	}
	if n := testing.AllocsPerRun(100, trip); n > 0 {
		t.Errorf("%v allocations per round trip", n)
	}
}

func TestCallsAndReplies(t *testing.T) {
	for i, c := range []Call{
		{ID: 1, Method: "check_health", Args: []byte{}},
		{ID: 1 << 63, Step: 7, Timeout: 3 * time.Second, Sent: 1 << 60, Method: "",
			Args: bytes.Repeat([]byte{7}, 70000)},
	} {
		kind, body, err := Split(AppendCall(nil, &c))
		if err != nil || kind != KindCall {
			t.Fatal(kind, err)
		}
		if got, err := ParseCall(body); err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("call %d: %+v, %v", i, got, err)
		}
	}
	for i, r := range []Reply{
		{ID: 1, Value: []byte{}},
		{ID: 1 << 63, Rank: 3, Type: "*errors.errorString", Failure: "boom", Value: []byte("x")},
	} {
		kind, body, err := Split(AppendReply(nil, &r))
		if err != nil || kind != KindReply {
			t.Fatal(kind, err)
		}
		if got, err := ParseReply(body); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("reply %d: %+v, %v", i, got, err)
		}
	}
}

// FuzzMessages holds the parsers to their bounds: what they accept, they account for to the last
// byte.
func FuzzMessages(f *testing.F) {
	f.Add(AppendCall(nil, &Call{ID: 1, Method: "check_health", Args: []byte("args")}))
	f.Add(AppendReply(nil, &Reply{ID: 1, Type: "t", Failure: "failure", Value: []byte("value")}))
	f.Fuzz(func(t *testing.T, record []byte) {
		_, body, err := Split(record)
		if err != nil {
			return
		}
		if c, err := ParseCall(body); err == nil && !bytes.Equal(AppendCall(nil, &c)[1:], body) {
			t.Error("call is not what was parsed")
		}
		if r, err := ParseReply(body); err == nil && !bytes.Equal(AppendReply(nil, &r)[1:], body) {
			t.Error("reply is not what was parsed")
		}
	})
}

// BenchmarkPipe is a round trip of 4 KB there and 1.2 KB back between goroutines.
func BenchmarkPipe(b *testing.B) {
	hub, ports := Pipes(1)
	port := ports[0]
	defer hub.Close()
	go func() {
		reply := make([]byte, 1200)
		for {
			if _, err := port.Recv(time.Time{}); err != nil {
				return
			}
			port.Send(reply, time.Time{})
		}
	}()
	out := make([]byte, 4096)
	until := time.Now().Add(time.Hour)
	b.ReportAllocs()
	for b.Loop() {
		hub.Send(out, until)
		hub.Recv(until)
	}
}
