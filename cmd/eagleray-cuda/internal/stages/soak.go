package stages

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/sys/half"
)

// soaking is what random batches are made of.
type soaking struct {
	sequences, context, rows int
}

// grown is how much of the device's memory may be missing in the end, of what was free after the
// largest batch.
const grown = 64 << 20

// soak computes random batches for a while: new prompts, parts of prompts and rows that go on,
// while the host collects garbage hard. The device's memory stays flat, and every logit is a
// number.
func (r *run) soak(ctx context.Context) (err error) {
	shape, k := measured()[0], soaking{sequences: 64, context: 1024, rows: 2048}
	if r.tiny() {
		shape, k = tinyShape(64), soaking{sequences: 4, context: 64, rows: 24}
	}
	cfg, err := shape.config()
	if err != nil {
		return err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	s, err := r.session(&shape, cfg, r.Seed, k.sequences, k.context)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	random := rand.New(rand.NewPCG(r.Seed, 2))
	// The largest batch comes first: afterwards nothing grows.
	if err := s.soakLargest(&shape, k); err != nil {
		return err
	}
	before, err := s.free()
	if err != nil {
		return err
	}
	lengths := make([]int, k.sequences)
	var times []float64
	for end := time.Now().Add(r.Soak); time.Now().Before(end) || len(times) == 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		start := time.Now()
		if err := s.soakStep(&shape, k, lengths, random); err != nil {
			return fmt.Errorf("after %d batches: %w", len(times), err)
		}
		times = append(times, milliseconds(time.Since(start)))
	}
	after, err := s.free()
	if err != nil {
		return err
	}
	r.report(Row{Name: "device memory lost", Unit: "MiB", Listed: true,
		Ours:   figure((float64(before) - float64(after)) / (1 << 20)),
		Floor:  figure(0),
		Failed: before > after+grown})
	row := Row{Name: "batches", Note: fmt.Sprint(len(times))}
	if !r.tiny() {
		slices.Sort(times)
		row.Note += fmt.Sprintf("; median %.2f ms, 99 of 100 within %.2f ms", median(times),
			times[len(times)*99/100])
	}
	r.report(row)
	r.summary = fmt.Sprintf("%d random batches", len(times))
	return nil
}

// free is how many bytes of the device's memory are free when it is idle.
func (s *session) free() (uint64, error) {
	if err := s.wait(); err != nil {
		return 0, err
	}
	s.device.DropSpare()
	free, _, err := s.watched.MemInfo()
	return free, err
}

// soakLargest computes as many rows of as many sequences as any batch has.
func (s *session) soakLargest(shape *Shape, k soaking) error {
	var pieces []piece
	left := k.rows
	for q := 0; q < k.sequences && left > 0; q++ {
		n := min(max(1, left-(k.sequences-1-q)), k.context)
		pieces = append(pieces, piece{sequence: q, tokens: tokens(n, shape.Vocabulary, q)})
		left -= n
	}
	return s.soakBatch(pieces)
}

// soakStep is a random batch. lengths are how many positions sequences have.
func (s *session) soakStep(shape *Shape, k soaking, lengths []int, random *rand.Rand) error {
	var pieces []piece
	left := k.rows
	for _, q := range random.Perm(k.sequences)[:1+random.IntN(k.sequences)] {
		if lengths[q] == k.context || random.IntN(50) == 0 {
			lengths[q] = 0 // another request has its place
		}
		n := 1
		if lengths[q] == 0 || random.IntN(8) == 0 {
			n = 1 + random.IntN(k.rows/4)
		}
		n = min(n, k.context-lengths[q], left)
		if n == 0 {
			break
		}
		pieces = append(pieces, piece{sequence: q, start: lengths[q],
			tokens: tokens(n, shape.Vocabulary, random.IntN(1000))})
		lengths[q] += n
		left -= n
	}
	return s.soakBatch(pieces)
}

// soakBatch computes a batch and the logits of each piece's last row.
func (s *session) soakBatch(pieces []piece) error {
	b := s.batch(pieces...)
	var rows []int32
	at := 0
	for _, p := range pieces {
		at += len(p.tokens)
		rows = append(rows, int32(at-1))
	}
	t, err := s.enqueue(b, rows)
	if err != nil {
		return err
	}
	finite := half.AllFinite(t.Floats())
	if err := s.model.Failed(); err != nil {
		return err
	}
	if !finite {
		return fmt.Errorf("a logit of %d rows is infinite or not a number", len(rows))
	}
	return nil
}
