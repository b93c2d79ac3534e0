package fleetbench

import "math"

// Growth is how a figure grows with the number of ranks: the straight line through its medians, and
// the power of the number of ranks with which the larger half of them grows. A power of 1 is linear
// growth.
type Growth struct {
	Kind   string `json:"kind"`
	Figure string `json:"figure"`
	// BaseUS and PerRankUS are the line's value for no ranks, and what each adds.
	BaseUS    float64 `json:"base_us"`
	PerRankUS float64 `json:"us_per_rank"`
	Power     float64 `json:"power"`
}

// growth fits every figure of every kind of which there are at least two sizes.
func growth(groups []Group) []Growth {
	var all []Growth
	for _, kind := range []string{Goroutines, Processes} {
		for _, name := range Figures() {
			var n, us []float64
			for i := range groups {
				if g := &groups[i]; g.Kind == kind {
					n, us = append(n, float64(g.Ranks)), append(us, g.Figure(name).P50)
				}
			}
			if len(n) < 2 {
				continue
			}
			g := Growth{Kind: kind, Figure: name}
			g.BaseUS, g.PerRankUS = line(n, us)
			half := min(len(n)/2, len(n)-2)
			_, g.Power = line(logs(n[half:]), logs(us[half:]))
			all = append(all, g)
		}
	}
	return all
}

// line is the straight line of least squares through points.
func line(x, y []float64) (at0, slope float64) {
	var mx, my float64
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(x))
	}
	var xx, xy float64
	for i := range x {
		xx, xy = xx+(x[i]-mx)*(x[i]-mx), xy+(x[i]-mx)*(y[i]-my)
	}
	slope = xy / xx
	return my - slope*mx, slope
}

func logs(x []float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = math.Log(v)
	}
	return out
}
