package queuebench

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/eagleray/eagleray/internal/link/step"
)

// RPCReport is the result of RunRPC.
type RPCReport struct {
	Transport string `json:"transport"`
	Readers   int    `json:"readers"`
	// Running is the number of decoding requests in each step.
	Running int `json:"running"`
	Steps   int `json:"steps"`
	// StepRoundTrip is from before a plan is encoded until the result of the first reader is
	// decoded.
	StepRoundTrip Quantiles `json:"step_round_trip_us"`
	Floor         Quantiles `json:"floor_us"`
	RatioP50      float64   `json:"ratio_p50"`
	// CodecUS is the time of encoding and decoding a plan and its result once, CodecAllocs the
	// allocations.
	CodecUS     float64 `json:"codec_us"`
	CodecAllocs float64 `json:"codec_allocs"`
	// Bytes are the lengths of a plan and a result.
	Bytes struct {
		Plan   int `json:"plan"`
		Result int `json:"result"`
	} `json:"bytes"`
}

// RunRPC measures steps of running decoding requests: a real plan to all readers, its result from
// the first. Size, ReplySize and Rate of the options have no meaning here.
func RunRPC(o Options, running int) (RPCReport, error) {
	if running < 1 || running > 1<<16 {
		return RPCReport{}, fmt.Errorf("queuebench: %d running requests, not 1 to %d", running,
			1<<16)
	}
	s := newSteps(running)
	o.Size = max(minSize, len(s.encode(1)))
	if err := o.setDefaults(); err != nil {
		return RPCReport{}, fmt.Errorf("queuebench: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b, err := start(o)
	if err != nil {
		return RPCReport{}, fmt.Errorf("queuebench: %w", err)
	}
	r := RPCReport{Transport: o.Transport, Readers: o.Readers, Running: running}
	if err := errors.Join(b.steps(&r, s), b.stop()); err != nil {
		return RPCReport{}, fmt.Errorf("queuebench: %w", err)
	}
	r.measureCodec(s)
	return r, nil
}

// steps are the records of a driver that decodes the same requests for ever.
type steps struct {
	plan   step.Plan
	result step.Result
	out    []byte
}

func newSteps(running int) *steps { return &steps{plan: SteadyPlan(running)} }

// SteadyPlan is a step of running decoding requests: each has one token to compute, and each
// sixteenth a new block.
func SteadyPlan(running int) step.Plan {
	var p step.Plan
	for i := range uint32(running) {
		row := step.Row{Slot: i, Start: 1000 + i, Count: 1, Last: int32(i), Source: step.FromPlan,
			Sample: true}
		if i%16 == 0 {
			row.Blocks = 1
			p.Blocks = append(p.Blocks, 5000+i)
		}
		p.Rows = append(p.Rows, row)
	}
	return p
}

// encode writes the plan of a number behind the order that readers know.
func (s *steps) encode(id uint64) []byte {
	s.plan.ID = id
	s.out = append(s.out[:0], opStep)
	s.out = append(s.out, make([]byte, minSize-1)...)
	s.out = step.AppendPlan(s.out, &s.plan)
	return s.out
}

// trip runs one step.
func (b *bench) step(s *steps) (time.Duration, error) {
	b.trips++
	began := time.Now()
	if err := b.end.Send(s.encode(b.trips), time.Time{}); err != nil {
		return 0, err
	}
	rank, reply, err := b.end.Recv(time.Time{})
	if err != nil {
		return 0, err
	}
	if err := step.DecodeResult(reply, &s.result); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if rank != 0 || s.result.Plan != b.trips || len(s.result.Token) != len(s.plan.Rows) {
		return 0, fmt.Errorf("result of plan %d with %d tokens from reader %d to plan %d",
			s.result.Plan, len(s.result.Token), rank, b.trips)
	}
	return took, nil
}

func (b *bench) steps(r *RPCReport, s *steps) error {
	var trips, floor []time.Duration
	for began := time.Now(); time.Since(began) < b.Duration || len(trips) == 0; {
		d, err := repeat(batch, 0, func() (time.Duration, error) { return b.step(s) })
		if err != nil {
			return err
		}
		trips = append(trips, d[warmup:]...)
		if d, err = b.floorTrips(batch, 0); err != nil {
			return err
		}
		floor = append(floor, d[warmup:]...)
	}
	r.Steps = len(trips)
	r.StepRoundTrip, r.Floor = QuantilesOf(trips), QuantilesOf(floor)
	r.RatioP50 = r.StepRoundTrip.P50 / r.Floor.P50
	return nil
}

// measureCodec times the four codec runs of a step without the queue.
func (r *RPCReport) measureCodec(s *steps) {
	var reader stepReader
	plan := s.encode(1)
	result, err := reader.answer(plan[minSize:])
	if err != nil {
		return // the steps before would have failed
	}
	r.Bytes.Plan, r.Bytes.Result = len(plan)-minSize, len(result)
	const rounds = 2000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	for i := range uint64(rounds) {
		result, _ = reader.answer(s.encode(i)[minSize:])
		_ = step.DecodeResult(result, &s.result)
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	r.CodecUS = float64(took.Nanoseconds()) / rounds / 1e3
	r.CodecAllocs = float64((after.Mallocs - before.Mallocs) / rounds)
}

// stepReader is a rank that computes nothing: it decodes the plan and answers with a token for each
// request.
type stepReader struct {
	plan   step.Plan
	result step.Result
	out    []byte
}

// answer returns the encoded result of an encoded plan, valid until the next call.
func (r *stepReader) answer(plan []byte) ([]byte, error) {
	if err := step.DecodePlan(plan, &r.plan); err != nil {
		return nil, err
	}
	// Every plan has the same rows: the result differs in its number only, and no time goes into
	// sampling.
	if r.result.Plan == 0 {
		for i := range r.plan.Rows {
			r.result.Append(r.plan.Rows[i].Slot, r.plan.Rows[i].Last)
		}
	}
	r.result.Plan = r.plan.ID
	r.out = step.AppendResult(r.out[:0], &r.result)
	return r.out, nil
}
