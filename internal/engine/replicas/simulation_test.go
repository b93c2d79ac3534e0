package replicas

import (
	"math/rand/v2"
	"testing"
)

// workload is a closed loop: so many clients, each of whose prompts begins with one of so many
// prefixes and goes on with a suffix of its own.
type workload struct {
	engines, clients, prefixes, each int
	prefix, suffix, output           int
}

// run shares the requests out by choose among engines that compute one token per unit of time,
// divided evenly among their requests, and never forget a prefix. It returns which share of the
// prefixes was cached, how long all took, and which share of that time an engine had nothing to do.
func (w workload) run(seed uint64, pick func([]candidate, int) int) (hits, took, idle float64) {
	type job struct {
		left         float64
		engine, work int
	}
	rng := rand.New(rand.NewPCG(seed, 5))
	order := rng.Perm(w.prefixes * w.each)
	engines, cached := make([]candidate, w.engines), make([]map[int]bool, w.engines)
	for i := range cached {
		cached[i] = map[int]bool{}
	}
	var jobs []job
	turn, next := 0, 0
	for next < len(order) || len(jobs) > 0 {
		for ; next < len(order) && len(jobs) < w.clients; next++ {
			prefix := order[next] % w.prefixes
			for i := range engines {
				engines[i].work = w.suffix + w.output
				if !cached[i][prefix] {
					engines[i].work += w.prefix
				}
			}
			i := pick(engines, turn)
			turn = i + 1
			e := &engines[i]
			if cached[i][prefix] {
				hits++
			}
			cached[i][prefix] = true
			e.load += e.work
			e.sequences++
			jobs = append(jobs, job{float64(e.work), i, e.work})
		}
		first := 0.0
		for _, j := range jobs {
			if until := j.left * float64(engines[j.engine].sequences); first == 0 || until < first {
				first = until
			}
		}
		took += first
		for i := range engines {
			if engines[i].sequences == 0 {
				idle += first
			}
		}
		var left []job
		shares := make([]float64, len(engines))
		for i := range shares {
			shares[i] = first / float64(max(1, engines[i].sequences))
		}
		for _, j := range jobs {
			if j.left -= shares[j.engine]; j.left > 1e-6 {
				left = append(left, j)
				continue
			}
			engines[j.engine].load -= j.work
			engines[j.engine].sequences--
		}
		jobs = left
	}
	return hits / float64(len(order)), took, idle / took / float64(w.engines)
}

// TestPrefixesAndLoad: the choice keeps nearly all hits that one engine would have, leaves no
// engine idle, not even when all prompts begin alike, and is done sooner than taking turns.
func TestPrefixesAndLoad(t *testing.T) {
	turns := func(list []candidate, turn int) int { return turn % len(list) }
	for name, c := range map[string]struct {
		workload
		hits, faster float64 // at least: of those of one engine; than in turns
	}{
		"forty prefixes":     {workload{2, 32, 40, 40, 512, 64, 32}, 0.985, 1.05},
		"four engines":       {workload{4, 64, 40, 40, 512, 64, 32}, 0.98, 1.2},
		"long prefixes":      {workload{2, 16, 20, 40, 1500, 64, 32}, 0.98, 1.1},
		"few clients":        {workload{2, 8, 40, 40, 512, 64, 32}, 0.95, 1.03},
		"one prefix for all": {workload{2, 32, 1, 400, 512, 64, 32}, 0.99, 0.99},
		"nothing in common":  {workload{2, 32, 400, 1, 512, 64, 32}, 0, 0.99},
	} {
		best := 1 - 1/float64(c.each)
		var hits, took, inTurn, idle float64
		const rounds = 5
		for seed := range uint64(rounds) {
			h, s, i := c.run(seed, choose)
			_, r, _ := c.run(seed, turns)
			hits, took, inTurn, idle = hits+h/rounds, took+s, inTurn+r, idle+i/rounds
		}
		t.Logf("%s: hits %.1f%% of %.1f%%, %.2f times as fast as in turns, idle %.1f%%", name,
			100*hits, 100*best, inTurn/took, 100*idle)
		if hits < c.hits*best || inTurn/took < c.faster || idle > 0.02 {
			t.Errorf("%s: less than %.1f%% of the hits, %.2f times as fast, or idle", name,
				100*c.hits, c.faster)
		}
	}
}
