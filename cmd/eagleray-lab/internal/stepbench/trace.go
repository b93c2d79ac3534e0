package stepbench

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
)

// traceEvent is one of Chrome's trace event format, which Perfetto reads too.
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
type traceEvent struct {
	Name  string `json:"name"`
	Phase string `json:"ph"`
	// TS and Dur are microseconds since the first event.
	TS  float64        `json:"ts"`
	Dur float64        `json:"dur,omitempty"`
	PID int            `json:"pid"`
	TID int            `json:"tid"`
	ID  uint64         `json:"id,omitempty"`
	Cat string         `json:"cat,omitempty"`
	BP  string         `json:"bp,omitempty"`
	Arg map[string]any `json:"args,omitempty"`
}

// Tracks of a trace: the step loop is thread 0, rank r is thread r + 1.
const (
	driverTrack = 0
	firstRank   = 1
)

// Trace is the measured steps as a trace: what the step loop did for each plan, what every
// rank did, and the ways of plans and results between them.
func Trace(r *Report) ([]byte, error) {
	origin := r.Driver[0].Began.UnixNano()
	us := func(ns int64) float64 { return float64(ns-origin) / 1e3 }
	name := func(track int, s string) traceEvent {
		return traceEvent{Name: "thread_name", Phase: "M", TID: track,
			Arg: map[string]any{"name": s}}
	}
	events := []traceEvent{name(driverTrack, "driver: step loop")}
	slice := func(track int, what string, plan uint64, from, to int64) {
		events = append(events, traceEvent{Name: fmt.Sprintf("%s %d", what, plan), Phase: "X",
			TS: us(from), Dur: float64(to-from) / 1e3, TID: track, Cat: what,
			Arg: map[string]any{"plan": plan}})
	}
	// Arrows go from within a slice to the one that begins at their end.
	arrow := func(what string, id uint64, from int, at int64, to int, then int64) {
		events = append(events,
			traceEvent{Name: what, Phase: "s", TS: us(at), TID: from, ID: id, Cat: what},
			traceEvent{Name: what, Phase: "f", BP: "e", TS: us(then), TID: to, ID: id, Cat: what})
	}
	driver := map[uint64]*engine.StepTimes{}
	for i := range r.Driver {
		d := &r.Driver[i]
		driver[d.Plan] = d
		slice(driverTrack, "plan", d.Plan, d.Began.UnixNano(), d.Made.UnixNano())
		slice(driverTrack, "send", d.Plan, d.Made.UnixNano(), d.Sent.UnixNano())
		slice(driverTrack, "apply", d.Plan, d.Arrived.UnixNano(), d.Applied.UnixNano())
	}
	received := r.Ranks
	for rank, list := range r.computed() {
		track := firstRank + rank
		events = append(events, name(track, r.rankName(rank)))
		for i := range list {
			x := &list[i]
			d := driver[x.Plan]
			if d == nil {
				continue // before the first measured step
			}
			slice(track, "receive", x.Plan, x.Received, received[rank][i].Started)
			if handed := received[rank][i].Started; x.Started > handed {
				slice(track, "wait for stage", x.Plan, handed, x.Started)
			}
			slice(track, "execute", x.Plan, x.Started, x.Executed)
			id := x.Plan*uint64(len(r.Ranks)) + uint64(rank)
			arrow("plan", id, driverTrack, d.Made.UnixNano(), track, x.Received)
			if rank == r.Output {
				slice(track, "answer", x.Plan, x.Executed, x.Answered)
				arrow("result", x.Plan, track, x.Executed, driverTrack, d.Arrived.UnixNano())
			}
		}
	}
	return json.Marshal(map[string]any{"traceEvents": events, "displayTimeUnit": "ns"})
}

// rankName is a rank with its stage, if there are several.
func (r *Report) rankName(rank int) string {
	if r.Layout.PP < 2 {
		return fmt.Sprintf("rank %d", rank)
	}
	return fmt.Sprintf("rank %d, stage %d", rank, r.Layout.Place(rank).PP)
}

// Ahead is by how much, in the median of the measured steps, a plan was sent before the output rank
// had the tokens of the plan before it; negative for after.
func (r *Report) Ahead() time.Duration {
	executed := map[uint64]int64{}
	for _, x := range r.Ranks[r.Output] {
		executed[x.Plan] = x.Executed
	}
	var ahead []time.Duration
	for _, d := range r.Driver {
		if at, ok := executed[d.Plan-1]; ok {
			ahead = append(ahead, time.Duration(at-d.Sent.UnixNano()))
		}
	}
	if len(ahead) == 0 {
		return 0
	}
	slices.Sort(ahead)
	return ahead[len(ahead)/2]
}
