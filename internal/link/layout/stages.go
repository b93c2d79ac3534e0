package layout

import "math"

// Stages are the stages of a pipeline, as the first layers of all of them but the first; nil is one
// stage.
type Stages []int

// Range is the layers of a stage in a model of so many: from to to-1.
func (s Stages) Range(stage, layers int) (from, to int) {
	to = layers
	if stage > 0 {
		from = s[stage-1]
	}
	if stage < len(s) {
		to = s[stage]
	}
	return from, to
}

// Counts is how many layers each stage has, in a model of so many.
func (s Stages) Counts(layers int) []int {
	counts := make([]int, len(s)+1)
	for i := range counts {
		from, to := s.Range(i, layers)
		counts[i] = to - from
	}
	return counts
}

// Split is the stages that have so many layers each.
func Split(counts []int) Stages {
	s := make(Stages, 0, len(counts))
	first := 0
	for _, n := range counts[:len(counts)-1] {
		first += n
		s = append(s, first)
	}
	return s
}

// Balance divides layers among so many stages, of which each has one at least: 1 ≤ stages ≤
// len(bytes). bytes are those of the weights of each layer; what stands before the first layer
// belongs to that one's, what follows the last layer to the last one's. The largest stage is as
// small as it can be, since every step waits for it; among the divisions with such a one, the sum
// of the squares is the least.
func Balance(bytes []int64, stages int) Stages {
	_, largest := divide(bytes, stages, func(sum float64) float64 { return sum }, math.Max)
	s, _ := divide(bytes, stages, func(sum float64) float64 {
		if sum > largest {
			return math.Inf(1)
		}
		return sum * sum
	}, func(a, b float64) float64 { return a + b })
	return s
}

// divide finds the stages of the least cost: that of a stage follows from its bytes, join makes one
// cost of those of neighbours. Of equal divisions it takes the one whose last stages are longest.
func divide(bytes []int64, stages int, cost func(sum float64) float64,
	join func(a, b float64) float64) (Stages, float64) {
	n := len(bytes)
	// best[k][i] is the cost of the first i layers in k+1 stages, cut[k][i] where the last of those
	// begins.
	best, cut := make([][]float64, stages), make([][]int, stages)
	for k := range best {
		best[k], cut[k] = make([]float64, n+1), make([]int, n+1)
		for i := k + 1; i <= n; i++ {
			best[k][i] = math.Inf(1)
			sum := 0.0
			for from := i - 1; from >= k; from-- {
				sum += float64(bytes[from])
				c := cost(sum)
				if k > 0 {
					c = join(best[k-1][from], c)
				} else if from > 0 {
					continue
				}
				if c <= best[k][i] {
					best[k][i], cut[k][i] = c, from
				}
			}
		}
	}
	s := make(Stages, stages-1)
	end := n
	for k := stages - 1; k > 0; k-- {
		end = cut[k][end]
		s[k-1] = end
	}
	return s, best[stages-1][n]
}
