package status

import (
	"bytes"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"
)

var events = []struct {
	event Event
	want  string
}{
	{PhaseEnded{Name: "ray order", Took: 12 * time.Millisecond,
		Found: []slog.Attr{slog.String("ranks", "0:a 1:b")}},
		`level=INFO msg="ray order" ms=12 ranks="0:a 1:b"`},
	{Progress{Rank: 1, Phase: "load", Done: 5, Total: 10},
		`level=DEBUG msg=progress rank=1 phase=load done=5 total=10`},
	{HubLookup{Repo: "org/m", Hub: "https://hub.example"},
		`level=INFO msg="looking for org/m on https://hub.example"`},
	{GroupReady{Epoch: 1, Backend: "mp", Ranks: 2, WeightBytes: 7, Took: time.Second},
		`level=DEBUG msg="group is ready" epoch=1 backend=mp ranks=2 weight_bytes=7 ms=1000`},
	{GroupFailed{Epoch: 1, Rank: 1, Node: "n", PID: 7,
		Cause: "rank 1 on n (pid 7): signal: SIGKILL"},
		`level=ERROR msg="workers failed" cause="rank 1 on n (pid 7): signal: SIGKILL"`},
	{RankOutput{Rank: 1, Node: "n", PID: 7, Source: "last output", Line: "panic: x"},
		`level=ERROR msg="last output" rank=1 node=n pid=7 line="panic: x"`},
	{GroupStopped{Epoch: 2, Took: 30 * time.Millisecond},
		`level=DEBUG msg="group is stopped" epoch=2 ms=30`},
	{RankStalled{Rank: 1, Node: "localhost", PID: 7, Place: "TP1", For: 7 * time.Second,
		Phase: "collective, layer 3", Process: "stopped",
		Received: 5, Started: 5, Finished: 4, Sent: 5},
		`level=WARN msg="rank is stalled" rank=1 node=localhost pid=7 place=TP1 seconds=7.0 phase="collective, layer 3" process=stopped ` +
			`received=5 started=5 finished=4 sent=5 call=""`},
	{StepSlow{Step: 9, Requests: 2, Tokens: 700, Took: 6 * time.Second},
		`level=WARN msg="step was slow" step=9 requests=2 tokens=700 seconds=6.0`},
	{Preempted{Requests: 1, Running: 2, Waiting: 3},
		`level=DEBUG msg="requests preempted" requests=1 running=2 waiting=3`},
	{KVExchangeOpened{Role: "kv_both", EngineID: "e", Address: "10.0.0.1:7", Ranks: 2},
		`level=INFO msg="KV blocks are exchanged with other engines" role=kv_both engine_id=e address=10.0.0.1:7 ranks=2`},
	{KVFetched{Transfer: "t", Blocks: 3, Began: time.UnixMicro(9), Took: time.Second, ByMemory: 5,
		ByLink: 6},
		`level=DEBUG msg="KV blocks have come" transfer=t blocks=3 began=9 took=1s by_memory=5 by_link=6`},
	{KVFetched{Transfer: "t", Blocks: 3, Err: errors.New("no agent")},
		`level=WARN msg="KV blocks have not come: they are computed here" transfer=t blocks=3 error="no agent"`},
	{KVHandedOver{Transfer: "t", Blocks: 3, After: time.Second, Err: errors.New("late")},
		`level=WARN msg="KV blocks were not fetched: they are given up" transfer=t blocks=3 after=1s error=late`},
	{KVHandedOver{Transfer: "t", Blocks: 3, After: time.Second, Fetched: true},
		`level=DEBUG msg="KV blocks were fetched" transfer=t blocks=3 after=1s`},
	{GrammarCompiled{Took: time.Millisecond},
		`level=DEBUG msg="constraint compiled" cached=false took=1ms`},
	{Speculated{Steps: []Guess{{4, 3}, {0, 1}, {2, 3}}, Tokens: 9},
		`level=DEBUG msg="tokens guessed" tokens=9 steps=3 drafts=6 right=4`},
	{Paused{Mode: "keep"}, `level=INFO msg="generation is paused" mode=keep`},
	{Resumed{}, `level=INFO msg="generation goes on"`},
	{Slept{KVCache: true}, `level=INFO msg="ranks sleep" weights=false kv_cache=true`},
	{Slept{}, `level=INFO msg="ranks are awake" weights=false kv_cache=false`},
	{WeightsUpdated{Version: "7", Bytes: 3 << 20, Received: time.Second,
		Loaded: 2 * time.Millisecond, Swapped: time.Millisecond},
		`level=INFO msg="weights were updated" version=7 mb=3 received_ms=1000 loaded_ms=2 swapped_ms=1`},
	{WeightsTrouble{What: "no memory for an update yet", Cause: errors.New("x")},
		`level=WARN msg="no memory for an update yet" cause=x`},
	{Scaled{From: 1, Engines: 3, Took: time.Second},
		`level=INFO msg=scaled from=1 engines=3 ms=1000`},
	{LayoutChanged{Layout: "TP 2", Before: "TP 1", Took: time.Second},
		`level=INFO msg="changed the layout" layout="TP 2" before="TP 1" ms=1000`},
	{ExpertsMoved{Layers: 2, Moves: 5, Before: 0.5, After: 0.9, Took: time.Second},
		`level=INFO msg="moved experts" layers=2 moves=5 balancedness=0.90 before=0.50 ms=1000`},
	{ExpertsStay{Cause: errors.New("x")}, `level=WARN msg="experts are not moved" cause=x`},
	{EngineTrouble{Engine: 1, What: "a failed engine was not ended", Cause: errors.New("x")},
		`level=ERROR msg="a failed engine was not ended" engine=1 cause=x`},
	{EnginesLeft{Engines: 2}, `level=WARN msg="the other engines go on" engines=2`},
	{RelayoutFailed{Layout: "TP 2", Cause: "x"},
		`level=ERROR msg="the other layout did not start" layout="TP 2" cause=x`},
	{Shrunk{Layout: "TP 1", Ranks: 1, Wanted: 2, Missing: "1 bundle of {GPU: 1}"},
		`level=WARN msg="serving with fewer ranks" layout="TP 1" ranks=1 wanted=2 missing="1 bundle of {GPU: 1}"`},
	{Grown{Layout: "TP 2", Ranks: 2, Took: time.Second},
		`level=INFO msg="serving with all ranks again" layout="TP 2" ranks=2 ms=1000`},
	{Stopping{Running: 1}, `level=DEBUG msg="engine is stopping" running=1 waiting=0`},
}

// TestEvents holds that each event is one line, and what its details are.
func TestEvents(t *testing.T) {
	for _, c := range events {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug,
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}}))
		Tee(nil, LogTo(nil), LogTo(log)).Emit(c.event)
		if got := out.String(); got != c.want+"\n" {
			t.Errorf("%T is logged as\n%swanted\n%s", c.event, got, c.want)
		}
		_, message, attrs := c.event.Log()
		_, want, _ := strings.Cut(c.want, strings.TrimPrefix(strconv.Quote(message), `"`))
		if !strings.Contains(message, " ") {
			_, want, _ = strings.Cut(c.want, "msg="+message)
		}
		if got := Details(attrs); got != strings.TrimSpace(want) {
			t.Errorf("%T has the details %q, wanted %q", c.event, got, want)
		}
	}
}
