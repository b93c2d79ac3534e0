package stepbench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

func TestMain(m *testing.M) {
	invited.Run(nil)
	os.Exit(m.Run())
}

// TestRun measures a few steps with both loops: asynchronous scheduling sends each plan before it
// knows the result of the one before, the reference after it has applied it.
func TestRun(t *testing.T) {
	for _, async := range []bool{true, false} {
		for _, backend := range []string{"uni", "mp"} {
			t.Run(fmt.Sprintf("%s/%v", backend, async), func(t *testing.T) {
				c := config.Default()
				c.Parallel.Backend, c.Schedule.Async = backend, async
				o := Options{Config: c, Running: 3, Steps: 100, StepTime: 50 * time.Microsecond}
				r, err := Run(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				if r.Steps != 100 || len(r.Driver) != 100 || r.StepUS.P50 <= 0 ||
					r.HostUS.P50 <= 0 || r.HostUS.P50 > r.HostUS.P99 || r.GapUS.P50 <= 0 ||
					r.CPUUSPerToken <= 0 {
					t.Errorf("%+v", r)
				}
				// Nothing is allocated for a step or a token; the runtime may, and slow readers.
				if r.AllocsPerToken > 0.1 {
					t.Errorf("%v allocations per token", r.AllocsPerToken)
				}
				ordered(t, r, async)
				drawn(t, r, async)
			})
		}
	}
}

// ordered checks that every plan went its way, and that each was sent before the result of the one
// before was there, or after that was applied.
func ordered(t *testing.T, r *Report, async bool) {
	t.Helper()
	rank := map[uint64]int{}
	for i, x := range r.Ranks[0] {
		rank[x.Plan] = i
	}
	for i, d := range r.Driver {
		at, ok := rank[d.Plan]
		if !ok {
			t.Fatalf("the rank knows nothing of plan %d", d.Plan)
		}
		x := r.Ranks[0][at]
		if busy := time.Duration(x.Executed - x.Started); busy < 50*time.Microsecond {
			t.Errorf("plan %d keeps the rank busy for %v", d.Plan, busy)
		}
		last := int64(0)
		for j, moment := range []int64{d.Began.UnixNano(), d.Made.UnixNano(), x.Received, x.Started,
			x.Executed, d.Arrived.UnixNano(), d.Applied.UnixNano()} {
			if moment < last {
				t.Errorf("plan %d: moment %d is %d ns before the one before", d.Plan, j,
					last-moment)
			}
			last = moment
		}
		if i == 0 {
			continue
		}
		before := r.Driver[i-1]
		if ahead := d.Sent.Before(before.Arrived); ahead != async {
			t.Errorf("plan %d was sent before the result of plan %d: %v", d.Plan, before.Plan,
				ahead)
		}
		if !async && d.Began.Before(before.Applied) {
			t.Errorf("plan %d was begun before the result of plan %d was applied", d.Plan,
				before.Plan)
		}
	}
}

// drawn checks the trace and the picture of a run.
func drawn(t *testing.T, r *Report, async bool) {
	t.Helper()
	raw, err := Trace(r)
	if err != nil {
		t.Fatal(err)
	}
	var trace struct{ TraceEvents []traceEvent }
	if err := json.Unmarshal(raw, &trace); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, e := range trace.TraceEvents {
		seen[e.Phase+e.Cat]++
		if e.TS < 0 || e.Dur < 0 {
			t.Errorf("%+v", e)
		}
	}
	for _, kind := range []string{"Xplan", "Xsend", "Xapply", "Xreceive", "Xexecute", "Xanswer",
		"splan", "fplan", "sresult", "fresult"} {
		if seen[kind] != r.Steps {
			t.Errorf("%d events %s in a trace of %d steps", seen[kind], kind, r.Steps)
		}
	}
	if ahead := r.Ahead(); ahead >= 0 && !async {
		t.Errorf("plans are sent %v before the tokens of those before them", ahead)
	}
	if raw, err = Picture(r); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(bytes.NewReader(raw))
	elements := map[string]int{}
	for {
		x, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := x.(xml.StartElement); ok {
			elements[start.Name.Local]++
		}
	}
	if elements["rect"] < 5*drawnSteps || elements["path"] == 0 || elements["text"] == 0 {
		t.Errorf("the picture has %v", elements)
	}
}

// TestStages measures two stages: each begins with a plan when the one before it is done with it,
// and several plans are on their way at a time. The trace and the picture have a row for each.
func TestStages(t *testing.T) {
	c := config.Default()
	c.Parallel.Backend, c.Parallel.PipelineParallelSize = "uni", 2
	const busy = 50 * time.Microsecond
	r, err := Run(t.Context(), Options{Config: c, Running: 6, Steps: 60, StepTime: busy})
	if err != nil {
		t.Fatal(err)
	}
	ranks, overlap := r.computed(), 0
	first := map[uint64]calls.StepTimes{}
	for _, x := range ranks[0] {
		first[x.Plan] = x
	}
	for _, x := range ranks[1] {
		before, ok := first[x.Plan]
		if !ok || x.Started < before.Started+int64(busy) || x.Executed < x.Started+int64(busy) {
			t.Errorf("plan %d: stage 0 %+v, stage 1 %+v", x.Plan, before, x)
		}
		if next, ok := first[x.Plan+1]; ok && next.Started < x.Executed {
			overlap++
		}
	}
	if overlap < r.Steps/2 {
		t.Errorf("stage 0 was ahead in %d of %d plans", overlap, r.Steps)
	}
	for _, draw := range []func(*Report) ([]byte, error){Trace, Picture} {
		drawing, err := draw(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range []string{"rank 0, stage 0", "rank 1, stage 1"} {
			if !strings.Contains(string(drawing), row) {
				t.Errorf("%s has no row", row)
			}
		}
	}
}
