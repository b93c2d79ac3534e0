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

// How deep below the most likely token a nucleus is sought first, and then each time further, in
// steps of 1/64 octave: about four and two units of the logarithm.
const (
	firstDepth = 384
	nextDepth  = 192
)

func bucketOf(y float64) int { return int(-y) / stepsPerBucket }

// nucleus reduces the candidates (the list if there is one, else all of the row) to the smallest
// set whose probability reaches p, and leaves it in the list (Holtzman et al. 2019). The weights of
// the list are added up by bucket, which tells the bucket in which p is reached; only its members
// are sorted.
//
// Where there is no list, one is made of the tokens above a depth that is lowered until they reach p,
// or until those below cannot matter: n tokens that are less likely than (1-p)/n each do not have
// the probability 1-p together.
func (s *Sampler) nucleus(row []float32, listed bool, greatest float32, c scale, p float64) {
	total := -1.0
	if !listed {
		_, total = s.sums(row, greatest, c)
		most := -float64(negligible)
		if least := (1 - p) * total / float64(len(row)); least > 0 {
			most = min(most, 1-math.Log2(least)*64)
		}
		for depth, sum := float64(firstDepth), 0.0; ; depth += nextDepth {
			depth = min(depth, most)
			s.collect(row, below(float64(greatest)-depth/c.k))
			if depth == most {
				break
			}
			if _, sum = s.sums(s.logits, greatest, c); sum > p*total*(1+1e-5) {
				break
			}
		}
	}
	edge, above, target := s.reach(s.logits, c, p, total)

	s.edge = s.edge[:0]
	high := -float64(edge * stepsPerBucket)
	low := max(high-stepsPerBucket, negligible)
	for i, v := range s.logits {
		if y := c.exponent(v); y > low && (y <= high || edge == 0) {
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
		id, kept := s.ids[i], 0
		s.ids[n], s.logits[n] = id, v
		if v > lastLogit { // compiled to no branch: which tokens are kept cannot be predicted
			kept = 1
		}
		if v == lastLogit && id <= lastID {
			kept = 1
		}
		n += kept
	}
	s.ids, s.logits = s.ids[:n], s.logits[:n]
}

// reach returns the bucket in which the weight of the tokens from the most likely down reaches p of
// the total, the weight of the buckets above it, and p of the total. A negative total is that of x.
func (s *Sampler) reach(x []float32, c scale, p, total float64) (edge int, above,
	target float64) {
	clear(s.hist[:])
	for _, v := range x {
		y := float64(float64(v)*c.k) - c.off
		if y > negligible {
			s.hist[bucketOf(y)] += weightOf(y)
		}
	}
	sum, last := 0.0, 0
	for b, w := range s.hist {
		if w > 0 {
			sum += w
			last = b
		}
	}
	if total < 0 {
		total = sum
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
