// Package queuebench measures the message queue between a driver and its ranks, between real
// processes: round trips and, interleaved with them in the same processes, those of a bare futex of
// the same shape; what waiting costs; and how fast large payloads go.
package queuebench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue/ring"
)

// Options say what is measured. Zero values take the defaults.
type Options struct {
	// Transport is "ring", the default, or "link".
	Transport string
	// Readers is how many processes receive what is sent, 2 by default.
	Readers int
	// Size and ReplySize are bytes sent to every reader and sent back by the first, at least 16; by
	// default 4096 and 1200, a step's plan and result.
	Size, ReplySize int
	// Rate is how many round trips a second the round-trip part makes, 0 for one after the other.
	Rate float64
	// Duration is for all parts together, 8 s by default: half for round trips, and as much for
	// those of the bare futex; an eighth for waiting, a quarter for waiting at 50 records a second,
	// an eighth for large payloads, and as much for those of the bare connections.
	Duration time.Duration
	// Seed determines the payloads.
	Seed uint64
	// Command is the program and the arguments that make it call Child with the arguments that
	// follow; by default this executable and "queue-reader".
	Command []string
}

const (
	largePayload = 16 << 20
	// largeTurn is how many large payloads of one kind are sent before the other's turn.
	largeTurn = 4
	pacedRate = 50
	// batch is how many round trips of one kind are made before the other's turn; the first few,
	// which begin with processes in the wrong place, do not count.
	batch  = 60
	warmup = 10
)

// setDefaults fills in and checks the options.
func (o *Options) setDefaults() error {
	if o.Transport == "" {
		o.Transport = "ring"
	}
	if o.Readers == 0 {
		o.Readers = 2
	}
	if o.Size == 0 {
		o.Size = 4096
	}
	if o.ReplySize == 0 {
		o.ReplySize = 1200
	}
	if o.Duration == 0 {
		o.Duration = 8 * time.Second
	}
	if len(o.Command) == 0 {
		program, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		o.Command = []string{program, "queue-reader"}
	}
	switch {
	case o.Readers < 1 || o.Readers > ring.MaxRanks:
		return fmt.Errorf("queue benchmark with %d readers, not 1 to %d", o.Readers, ring.MaxRanks)
	case o.Size < minSize || o.Size > largePayload || o.ReplySize < minSize ||
		o.ReplySize > largePayload:
		return fmt.Errorf("queue benchmark with records of %d and %d bytes, not %d to %d", o.Size,
			o.ReplySize, minSize, largePayload)
	case !(o.Rate >= 0) || o.Duration < 0:
		return fmt.Errorf("queue benchmark at %g records a second for %v", o.Rate, o.Duration)
	}
	return nil
}

// Quantiles of a duration in microseconds.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

// QuantilesOf sorts durations and returns their quantiles, 0 for none.
func QuantilesOf(d []time.Duration) Quantiles {
	if len(d) == 0 {
		return Quantiles{}
	}
	slices.Sort(d)
	at := func(q float64) float64 {
		return float64(d[min(int(q*float64(len(d))), len(d)-1)].Nanoseconds()) / 1e3
	}
	return Quantiles{at(0.5), at(0.99), at(0.999)}
}

// CPUShare is the processor time each process used, as a share of one core: the writer's first,
// then the readers'.
type CPUShare struct {
	// Idle is while nothing is sent, Paced50Hz at 50 round trips a second.
	Idle      []float64 `json:"idle"`
	Paced50Hz []float64 `json:"paced_50hz"`
}

// Report is the result of Run.
type Report struct {
	Transport string `json:"transport"`
	Readers   int    `json:"readers"`
	Size      int    `json:"size"`
	ReplySize int    `json:"reply_size"`
	// RoundTrips is how many of each kind were measured.
	RoundTrips int `json:"round_trips"`
	// RoundTrip is from before a record is sent to all readers until the first one's reply is here;
	// Floor the same without the queue. For the ring it is bare futexes: one word that wakes all
	// readers, one that the first replies with; for the link bare TLS connections, and bytes of the
	// same lengths.
	RoundTrip Quantiles `json:"round_trip_us"`
	Floor     Quantiles `json:"floor_us"`
	RatioP50  float64   `json:"ratio_p50"`
	// PacedRoundTrip and PacedFloor are those at 50 a second, with all processes asleep in between.
	PacedRoundTrip Quantiles `json:"paced_round_trip_us"`
	PacedFloor     Quantiles `json:"paced_floor_us"`
	CPUShare       CPUShare  `json:"cpu_share"`
	// LargeGBPerS is 10^9 bytes of 16 MiB payloads a second until all readers have received the
	// last one, the median of turns. LargeFloorGBPerS is the same over the bare TLS connections,
	// the turns in between, written to all readers at the same time; 0 for the ring, which has no
	// such floor.
	LargeGBPerS      float64 `json:"large_gb_per_s"`
	LargeFloorGBPerS float64 `json:"large_floor_gb_per_s,omitempty"`
}

// Run measures. It starts the readers' processes and ends them.
func Run(o Options) (Report, error) {
	if err := o.setDefaults(); err != nil {
		return Report{}, fmt.Errorf("queuebench: %w", err)
	}
	// The caller of Recv should be locked to its thread: see package ring.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b, err := start(o)
	if err != nil {
		return Report{}, fmt.Errorf("queuebench: %w", err)
	}
	report, err := b.measure()
	if err := errors.Join(err, b.stop()); err != nil {
		return Report{}, fmt.Errorf("queuebench: %w", err)
	}
	return report, nil
}

func (b *bench) measure() (Report, error) {
	r := Report{Transport: b.Transport, Readers: b.Readers, Size: b.Size, ReplySize: b.ReplySize}
	rng := rand.New(rand.NewPCG(b.Seed, 0))
	for i := range b.record {
		b.record[i] = byte(rng.Uint32())
	}
	if err := b.large(&r, rng); err != nil { // first: it touches all memory
		return r, err
	}
	if err := b.roundTrips(&r); err != nil {
		return r, err
	}
	used := make([]time.Duration, 1+b.Readers)
	wall, err := b.usage(used, func() error {
		time.Sleep(b.Duration / 8)
		return nil
	})
	if err != nil {
		return r, err
	}
	r.CPUShare.Idle = shares(used, wall)
	return r, b.paced(&r)
}

func (b *bench) large(r *Report, rng *rand.Rand) error {
	payload := make([]byte, largePayload)
	for i := 0; i < len(payload); i += 64 {
		payload[i] = byte(rng.Uint32())
	}
	payload[0] = opSink
	send := func() error { return b.end.Send(payload, time.Time{}) }
	if err := errors.Join(send(), b.all(opMark, nil)); err != nil { // the readers' buffers grow
		return err
	}
	bare, hasFloor := b.floor.(stream)
	if hasFloor {
		if _, err := b.push(bare, payload, 1); err != nil { // so do the floor's
			return err
		}
	}
	var queue, floor []time.Duration
	spent := time.Duration(0)
	for spent < b.Duration/8 || len(queue) == 0 {
		began := time.Now()
		for range largeTurn {
			if err := send(); err != nil {
				return err
			}
		}
		if err := b.all(opMark, nil); err != nil {
			return err
		}
		queue = append(queue, time.Since(began))
		spent += queue[len(queue)-1]
		if !hasFloor {
			continue
		}
		took, err := b.push(bare, payload, largeTurn)
		if err != nil {
			return err
		}
		floor = append(floor, took)
	}
	r.LargeGBPerS, r.LargeFloorGBPerS = gigabytes(queue), gigabytes(floor)
	return nil
}

// push sends n payloads over the floor.
func (b *bench) push(bare stream, payload []byte, n int) (time.Duration, error) {
	if err := b.order(opStream, uint64(n)); err != nil {
		return 0, err
	}
	return bare.push(payload, n)
}

// gigabytes is 10^9 bytes a second of the median of turns, 0 for none.
func gigabytes(turns []time.Duration) float64 {
	if len(turns) == 0 {
		return 0
	}
	return largeTurn * largePayload / (QuantilesOf(turns).P50 * 1e3)
}

func (b *bench) roundTrips(r *Report) error {
	var queue, floor []time.Duration
	pause := time.Duration(0)
	if b.Rate > 0 {
		pause = time.Duration(float64(time.Second) / b.Rate)
	}
	for began := time.Now(); time.Since(began) < b.Duration/2 || len(queue) == 0; {
		d, err := repeat(batch, pause, b.roundTrip)
		if err != nil {
			return err
		}
		queue = append(queue, d[warmup:]...)
		if d, err = b.floorTrips(batch, pause); err != nil {
			return err
		}
		floor = append(floor, d[warmup:]...)
	}
	r.RoundTrips = len(queue)
	r.RoundTrip, r.Floor = QuantilesOf(queue), QuantilesOf(floor)
	r.RatioP50 = r.RoundTrip.P50 / r.Floor.P50
	return nil
}

// paced measures at pacedRate, and by turns the bare futex, whose processor time does not count.
func (b *bench) paced(r *Report) error {
	const pause = time.Second / pacedRate
	n := min(10, max(1, int(b.Duration/8/pause)))
	var queue, floor []time.Duration
	used, wall := make([]time.Duration, 1+b.Readers), time.Duration(0)
	for began := time.Now(); time.Since(began) < b.Duration/4 || len(queue) == 0; {
		d, err := b.floorTrips(n, pause)
		if err != nil {
			return err
		}
		floor = append(floor, d...)
		took, err := b.usage(used, func() error {
			d, err := repeat(n, pause, b.roundTrip)
			queue = append(queue, d...)
			return err
		})
		if err != nil {
			return err
		}
		wall += took
	}
	r.PacedRoundTrip, r.PacedFloor = QuantilesOf(queue), QuantilesOf(floor)
	r.CPUShare.Paced50Hz = shares(used, wall)
	return nil
}

func (b *bench) floorTrips(n int, pause time.Duration) ([]time.Duration, error) {
	if err := b.order(opFloor, b.floor.made()+uint64(n)); err != nil {
		return nil, err
	}
	return repeat(n, pause, b.floor.trip)
}

// repeat makes n round trips, as long as pause between the beginnings of two.
func repeat(
	n int, pause time.Duration, trip func() (time.Duration, error),
) ([]time.Duration, error) {
	times := make([]time.Duration, 0, n)
	for next := time.Now().Add(pause); len(times) < n; next = next.Add(pause) {
		if pause > 0 {
			time.Sleep(time.Until(next))
		}
		d, err := trip()
		if err != nil {
			return nil, err
		}
		times = append(times, d)
	}
	return times, nil
}

// usage adds the processor time that each process uses during f to used, and returns how long that
// was.
func (b *bench) usage(used []time.Duration, f func() error) (time.Duration, error) {
	began := time.Now()
	before, err := b.processorTimes()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := b.processorTimes()
	if err != nil {
		return 0, err
	}
	for i := range used {
		used[i] += after[i] - before[i]
	}
	return time.Since(began), nil
}

func shares(used []time.Duration, wall time.Duration) []float64 {
	s := make([]float64, len(used))
	for i := range s {
		s[i] = float64(used[i]) / float64(wall)
	}
	return s
}

// Floor measures round trips of a bare futex with one other process for o.Duration: what the
// measurements of others stand beside.
func Floor(o Options) (Quantiles, error) {
	o.Readers = 1
	if err := o.setDefaults(); err != nil {
		return Quantiles{}, fmt.Errorf("queuebench: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b, err := start(o)
	if err != nil {
		return Quantiles{}, fmt.Errorf("queuebench: %w", err)
	}
	var trips []time.Duration
	for began := time.Now(); err == nil && time.Since(began) < o.Duration; {
		var d []time.Duration
		if d, err = b.floorTrips(batch, 0); err == nil {
			trips = append(trips, d[warmup:]...)
		}
	}
	if err := errors.Join(err, b.stop()); err != nil {
		return Quantiles{}, fmt.Errorf("queuebench: %w", err)
	}
	return QuantilesOf(trips), nil
}
