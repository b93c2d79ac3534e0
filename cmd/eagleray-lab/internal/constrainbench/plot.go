package constrainbench

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/ops/plot"
)

// Plot draws, as SVG, how long masks take: the duration, on a logarithmic scale, of the fastest
// share of them, with the far end of the shares stretched.
func Plot(r *Report) []byte {
	const width, height, left, top = 760, 420, 70, 40
	// The share q is at -log10(1-q): each nine has the same room.
	x := func(q float64) float64 {
		return left + width*math.Min(-math.Log10(math.Max(1-q, 1e-3)), 3)/3
	}
	y := func(us float64) float64 {
		return top + height*(1-(math.Log10(math.Max(us, .1))+1)/6) // 0.1 µs to 100 ms
	}
	p := plot.New(left+width+30, top+height+50)
	p.Text(plot.Text{At: plot.Point{X: left, Y: 22}, Size: 15,
		Text: fmt.Sprintf("Time of a mask over %d tokens, %d schemas, %d masks", r.Vocab,
			r.Compiled, r.Warm.Count)})
	for e := -1; e <= 5; e++ {
		at := y(math.Pow10(e))
		p.Line(plot.Stroke{Colour: plot.Grid}, plot.Point{X: left, Y: at},
			plot.Point{X: left + width, Y: at})
		p.Text(plot.Text{At: plot.Point{X: left - 8, Y: at + 4}, Anchor: "end",
			Text: fmt.Sprintf("%g µs", math.Pow10(e))})
	}
	for _, q := range []float64{0, .5, .9, .99, .999} {
		p.Line(plot.Stroke{Colour: plot.Grid}, plot.Point{X: x(q), Y: top},
			plot.Point{X: x(q), Y: top + height})
		p.Text(plot.Text{At: plot.Point{X: x(q), Y: top + height + 20}, Anchor: "middle",
			Text: fmt.Sprintf("%g %%", 100*q)})
	}
	for i, c := range []struct {
		name, colour string
		us           []float64
		q            Quantiles
	}{{"cold", plot.Vermillion, r.Curves.Cold, r.Cold}, {"warm", plot.Blue, r.Curves.Warm,
		r.Warm}} {
		if len(c.us) == 0 {
			continue
		}
		curve := make([]plot.Point, len(c.us))
		for k, us := range c.us {
			curve[k] = plot.Point{X: x(float64(k) / float64(len(c.us)-1)), Y: y(us)}
		}
		p.Line(plot.Stroke{Colour: c.colour, Width: 2}, curve...)
		p.Text(plot.Text{At: plot.Point{X: left + 12, Y: float64(top + 20 + 18*i)},
			Colour: c.colour,
			Text: fmt.Sprintf("%s: p50 %.1f, p99 %.1f, max %.0f µs", c.name, c.q.P50, c.q.P99,
				c.q.Max)})
	}
	return p.SVG()
}
