package constrainbench

import (
	"fmt"
	"io"
	"math"
)

// Plot draws, as SVG, how long masks take: the duration, on a logarithmic scale, of the fastest
// share of them, with the far end of the shares stretched.
func Plot(w io.Writer, r *Report) error {
	const width, height, left, top = 760, 420, 70, 40
	// The share q is at -log10(1-q): each nine has the same room.
	x := func(q float64) float64 {
		return left + width*math.Min(-math.Log10(math.Max(1-q, 1e-3)), 3)/3
	}
	y := func(us float64) float64 {
		return top + height*(1-(math.Log10(math.Max(us, .1))+1)/6) // 0.1 µs to 100 ms
	}
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" `+
		`font-size="12">`, left+width+30, top+height+50)
	p(`<rect width="100%%" height="100%%" fill="white"/>`)
	p(`<text x="%d" y="22" font-size="15">Time of a mask over %d tokens, %d schemas, %d masks</text>`,
		left, r.Vocab, r.Compiled, r.Warm.Count)
	for e := -1; e <= 5; e++ {
		at := y(math.Pow10(e))
		p(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`, left, at, left+width, at)
		p(`<text x="%d" y="%.1f" text-anchor="end">%g µs</text>`, left-8, at+4, math.Pow10(e))
	}
	for _, q := range []float64{0, .5, .9, .99, .999} {
		p(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#ddd"/>`, x(q), top, x(q), top+height)
		p(`<text x="%.1f" y="%d" text-anchor="middle">%g %%</text>`, x(q), top+height+20, 100*q)
	}
	for i, c := range []struct {
		name, colour string
		us           []float64
		q            Quantiles
	}{{"cold", "#d62728", r.Curves.Cold, r.Cold}, {"warm", "#1f77b4", r.Curves.Warm, r.Warm}} {
		if len(c.us) == 0 {
			continue
		}
		_, _ = fmt.Fprintf(w, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, c.colour)
		for k, us := range c.us {
			_, _ = fmt.Fprintf(w, "%.1f,%.1f ", x(float64(k)/float64(len(c.us)-1)), y(us))
		}
		p(`"/>`)
		p(`<text x="%d" y="%d" fill="%s">%s: p50 %.1f, p99 %.1f, max %.0f µs</text>`, left+12,
			top+20+18*i, c.colour, c.name, c.q.P50, c.q.P99, c.q.Max)
	}
	_, err := fmt.Fprintln(w, `</svg>`)
	return err
}
