package model_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/link/collective/shm"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// visited is places, of so many ranks each, whose devices share the experts of a mixture, of which
// some have copies. They exchange in a way.
type visited struct {
	places, size int
	way          string
	eager        bool
	redundant    int
	dtype        compute.DType
}

func (l visited) String() string {
	return fmt.Sprintf("%d places of %d, %s, eager %v, %d copies, %v", l.places, l.size, l.way,
		l.eager, l.redundant, l.dtype)
}

// subgroups are the ranks' ways to each other, by the number of their group and theirs in it.
func subgroups(t *testing.T, groups, size int) (all [][]*shm.Group) {
	t.Helper()
	for range groups {
		all = append(all, together(t, size))
	}
	return all
}

// eachPlace runs the ranks of all places with a device each.
func eachPlace(t *testing.T, f fixture, l visited, drv *double.Driver,
	run func(place, rank int, s *shard, d *cuda.Device)) {
	t.Helper()
	across, within := subgroups(t, l.size, l.places), subgroups(t, l.places, l.size)
	var ranks sync.WaitGroup
	for i := range l.places * l.size {
		place, r := i/l.size, i%l.size
		d := openCUDAIn(t, l.dtype, drv, l.eager)
		dp, tp := across[r][place], within[place][r]
		g := layers.Group{Rank: r, Size: l.size, Comm: layers.OnHost{Group: tp}}
		g.DP = &layers.RowGroup{Rank: place, Size: l.places, Comm: layers.OnHost{Group: dp}}
		places := d.NewPlaces(place, l.places, layers.OnHost{Group: dp}, dp)
		comms := []*cuda.Comm{places}
		g.DP.Visits = places
		if l.size > 1 {
			peers := d.NewComm(r, l.size, g.Comm, tp)
			g.Comm, comms = peers, append(comms, peers)
		}
		g.Experts = &layers.ExpertGroup{Share: i, Shares: l.places * l.size,
			Redundant: l.redundant}
		s := loadOnIn(t, l.dtype, d, f, g)
		ranks.Go(func() {
			for _, c := range comms {
				if l.way == byHosts {
					break // nothing is connected
				}
				if err := c.Connect(t.Context().Done()); err != nil ||
					!strings.HasPrefix(c.Way(), l.way) {
					t.Errorf("place %d, rank %d: %v, %s", place, r, err, c.Way())
					return
				}
				defer c.Leave()
			}
			run(place, r, s, d)
			if err := s.model.Finish(); err != nil {
				t.Errorf("place %d, rank %d: %v", place, r, err)
			}
		})
	}
	ranks.Wait()
}

// The sequences that each place goes on with at a time, and their tokens.
const (
	placeSequences = 7
	placeTokens    = 46
)

// placesStep is the batch of each place, and what its rows' logits are on one rank.
type placesStep struct {
	batches []*compute.Batch
	want    [][][]float32
}

// decodingRows are how many sequences go on in two places, step after step: few rows, filled up to
// the larger one's, or too few for that, and none.
var decodingRows = [][2]int{{7, 5}, {5, 7}, {6, 6}, {7, 5}, {7, 5}, {3, 0}, {3, 0}, {3, 0}, {4, 0},
	{0, 3}, {1, 7}, {1, 7}, {1, 7}, {1, 6}}

// placesSteps are steps of sequences that begin alike in all places, which go on from them in
// pieces of any length, and then a row at a time.
func placesSteps(t *testing.T, one *shard, places int) (steps []placesStep) {
	base := [][]int32{prompt(placeTokens), prompt(placeTokens), prompt(placeTokens)}
	var want [][][]float32
	for q, ids := range base {
		for i := range ids {
			ids[i] = (ids[i]*31 + int32(q)) % int32(one.vocab)
		}
		want = append(want, one.forward(t, 0, piece{tokens: ids}))
	}
	done := make([][placeSequences]int, places)
	step := func(rows func(place, q int) int) {
		y := placesStep{}
		var counts []int32
		for p := range places {
			var pieces []piece
			var logits [][]float32
			for q := range placeSequences {
				from, n := done[p][q], rows(p, q)
				if n == 0 {
					continue
				}
				done[p][q] += n
				pieces = append(pieces, piece{q, from, base[(p+q)%3][from : from+n]})
				logits = append(logits, want[(p+q)%3][from:from+n]...)
			}
			b := new(compute.Batch)
			if len(pieces) > 0 {
				b = batch(pieces...)
			}
			y.batches, y.want = append(y.batches, b), append(y.want, logits)
			counts = append(counts, int32(b.Rows()))
		}
		for _, b := range y.batches {
			b.Split.Places, b.Turn = counts, int32(len(steps))
		}
		steps = append(steps, y)
	}
	r := rand.New(rand.NewPCG(3, 4))
	step(func(p, q int) int { return 1 + (p+3*q)%5 })
	for range 4 {
		idle := r.IntN(2 * places)
		step(func(p, _ int) int {
			if p == idle {
				return 0
			}
			return []int{0, 0, 1, 4, 6}[r.IntN(5)]
		})
	}
	for i, rows := range decodingRows {
		step(func(p, q int) int {
			if p >= 2 {
				p = (p + i/5) % 2
			}
			if q < rows[p] {
				return 1
			}
			return 0
		})
	}
	return steps
}

// TestCUDAPlaces computes sequences in places that share the experts of a mixture, with different
// numbers of rows in each step, and none: their logits have the bits of one rank, and experts count
// the same rows.
func TestCUDAPlaces(t *testing.T) {
	int4 := shipped("qwen3moe-tiny")
	int4.quantization = "int4"
	qwen, deepseek := shipped("qwen3moe-tiny"), shipped("deepseek-v3-tiny")
	checked := &double.Driver{Threads: 2, Check: true}
	if testing.Short() {
		checked = onMachine
	}
	for i, c := range []struct {
		fixture
		visited
	}{
		{qwen, visited{2, 1, overPeers, false, 0, compute.BFloat16}},
		{deepseek, visited{2, 2, overPeers, false, 2, compute.BFloat16}},
		{qwen, visited{2, 1, byNCCL, false, 2, compute.BFloat16}},
		{qwen, visited{2, 1, byHosts, false, 0, compute.Float32}},
		{shipped("gpt-oss-mxfp4-tiny"), visited{2, 1, overPeers, true, 1, compute.BFloat16}},
		{int4, visited{4, 1, overPeers, false, 4, compute.BFloat16}},
		{qwen, visited{4, 2, overPeers, false, 0, compute.BFloat16}},
		{qwen, visited{3, 1, overPeers, false, 1, compute.BFloat16}},
		{qwen, visited{3, 1, byNCCL, false, 1, compute.BFloat16}},
		{deepseek, visited{2, 2, byNCCL, false, 0, compute.BFloat16}},
		{deepseek, visited{2, 2, byHosts, false, 0, compute.Float16}},
		{qwen, visited{2, 1, overPeers, false, 0, compute.Float32}},
	} {
		if testing.Short() && i > 0 {
			break
		}
		c.fixture = c.shallow()
		t.Run(fmt.Sprintf("%s %s by %v", c.dir, c.quantization, c.visited), func(t *testing.T) {
			one := loadOnIn(t, c.dtype, openCUDAIn(t, c.dtype, onMachine, true), c.fixture,
				layers.Group{Size: 1})
			steps := placesSteps(t, one, c.places)
			drv := checked
			if c.way == byNCCL {
				drv = apart
			}
			var mu sync.Mutex
			loads := map[int]int64{}
			eachPlace(t, c.fixture, c.visited, drv,
				func(place, r int, s *shard, d *cuda.Device) {
					for i, y := range steps {
						s.compute(t, fmt.Sprintf("place %d, step %d", place, i), r,
							y.batches[place], y.want[place])
					}
					graphs := !c.eager && c.way != byHosts
					if n := d.Replays(); graphs != (n > 0) {
						t.Errorf("place %d, rank %d: %d steps were graphs'", place, r, n)
					}
					if r > 0 {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					for _, l := range s.model.ExpertLoads() {
						for _, n := range l.Rows {
							loads[l.Layer] += n
						}
					}
				})
			rows := int64(0)
			for _, y := range steps {
				for _, want := range y.want {
					rows += int64(len(want))
				}
			}
			for layer, sum := range loads {
				if sum == 0 || sum%rows != 0 {
					t.Errorf("layer %d: experts counted %d rows of %d", layer, sum, rows)
				}
			}
		})
	}
}
