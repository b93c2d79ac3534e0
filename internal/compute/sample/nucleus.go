package sample

import (
	"cmp"
	"math"
	"slices"
)

// Weights are added up in buckets of 1/8 octave, from the most likely token down to the negligible
// ones.
const (
	stepsPerBucket = 8
	buckets        = -negligible/stepsPerBucket + 1
)

func bucketOf(y float64) int { return int(-y) / stepsPerBucket }

// nucleus reduces the candidates (the list if there is one, else all of the row) to the smallest
// set whose probability reaches p, and leaves it in the list (Holtzman et al. 2019). One pass adds
// up the weights by bucket, which tells the bucket in which p is reached; only its members are
// sorted.
func (s *Sampler) nucleus(row []float32, listed bool, c scale, p float64) {
	from := row
	if listed {
		from = s.logits
	}
	edge, above, target := s.reach(from, c, p)
	if !listed {
		// A bound in logits that is surely below the bucket's end; the exact test follows.
		depth := float64((edge+1)*stepsPerBucket) / c.k
		greatest := c.off / c.k
		s.collect(row, below(greatest-depth-1e-9*(math.Abs(greatest)+depth)))
	}

	s.edge = s.edge[:0]
	for i, v := range s.logits {
		if y := c.exponent(v); y > negligible && bucketOf(y) == edge {
			s.edge = append(s.edge, Choice{Token: s.ids[i], Logprob: v})
		}
	}
	slices.SortFunc(s.edge, mostLikelyFirst)
	lastLogit, lastID := negInf, int32(math.MaxInt32)
	for _, e := range s.edge {
		if above >= target {
			break
		}
		above += weightOf(c.exponent(e.Logprob))
		lastLogit, lastID = e.Logprob, e.Token
	}

	n := 0
	for i, v := range s.logits {
		id := s.ids[i]
		if v > lastLogit || v == lastLogit && id <= lastID {
			s.ids[n], s.logits[n] = id, v
			n++
		}
	}
	s.ids, s.logits = s.ids[:n], s.logits[:n]
}

// reach returns the bucket in which the weight of the tokens from the most likely down reaches p of
// the total, the weight of the buckets above it, and p of the total.
func (s *Sampler) reach(x []float32, c scale, p float64) (edge int, above, target float64) {
	clear(s.hist[:])
	for _, v := range x {
		y := float64(float64(v)*c.k) - c.off
		if y > negligible {
			s.hist[bucketOf(y)] += weightOf(y)
		}
	}
	var total float64
	last := 0
	for b, w := range s.hist {
		if w > 0 {
			total += w
			last = b
		}
	}
	target = p * total
	for b, w := range s.hist[:last] {
		if above+w >= target {
			return b, above, target
		}
		above += w
	}
	return last, above, target
}

func mostLikelyFirst(a, b Choice) int {
	if c := cmp.Compare(b.Logprob, a.Logprob); c != 0 {
		return c
	}
	return cmp.Compare(a.Token, b.Token)
}
