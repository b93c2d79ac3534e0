package fleetbench

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/ops/plot"
)

// The measures of a picture, in pixels: a panel for each kind of ranks, one above the other.
const (
	plotWidth, panelHeight  = 760, 380
	leftMargin, rightMargin = 74, 100
	topMargin, bottomMargin = 46, 44
)

// colours are those of the figures.
var colours = map[string]string{"start": plot.Blue, "broadcast": plot.Orange,
	"collect": plot.Green, "rpc": plot.Pink, "step": plot.Sky, "death": plot.Vermillion}

// axis maps values on a logarithmic scale to pixels.
type axis struct{ lo, hi, from, to float64 }

func (a axis) at(v float64) float64 {
	return a.from + (math.Log(v)-math.Log(a.lo))/(math.Log(a.hi)-math.Log(a.lo))*(a.to-a.from)
}

// Plot draws the medians of a report over the number of ranks, both logarithmic, as SVG.
func Plot(r *Report) []byte {
	var kinds []string
	for _, kind := range []string{Goroutines, Processes} {
		if len(curve(r, kind, "start")) > 0 {
			kinds = append(kinds, kind)
		}
	}
	p := plot.New(plotWidth, panelHeight*len(kinds))
	for i, kind := range kinds {
		panelTop := float64(i * panelHeight)
		title := "Ranks that are processes of one host"
		if kind == Goroutines {
			title = fmt.Sprintf("Ranks that are goroutines, %.0f µs away", r.LatencyUS)
		}
		p.Text(plot.Text{At: plot.Point{X: leftMargin, Y: panelTop + 26}, Size: 15, Bold: true,
			Text: title})
		x, y := scales(r, panelTop)
		grid(p, r, x, y)
		curves(p, r, kind, x, y)
	}
	return p.SVG()
}

// point is a median in microseconds.
type point struct{ ranks, us float64 }

func curve(r *Report, kind, figure string) []point {
	var points []point
	for i := range r.Groups {
		if g := &r.Groups[i]; g.Kind == kind {
			points = append(points, point{float64(g.Ranks), max(g.Figure(figure).P50, 0.1)})
		}
	}
	return points
}

// scales are the axes that hold all figures, to the next power of ten, of a panel that begins at
// top.
func scales(r *Report, top float64) (x, y axis) {
	x = axis{lo: math.Inf(1), from: leftMargin, to: plotWidth - rightMargin}
	y = axis{lo: math.Inf(1), from: top + panelHeight - bottomMargin,
		to: top + topMargin}
	for _, kind := range []string{Goroutines, Processes} {
		for _, figure := range Figures() {
			for _, p := range curve(r, kind, figure) {
				x.lo, x.hi = min(x.lo, p.ranks), max(x.hi, p.ranks)
				y.lo, y.hi = min(y.lo, p.us), max(y.hi, p.us)
			}
		}
	}
	y.lo = math.Pow(10, math.Floor(math.Log10(y.lo)))
	y.hi = math.Pow(10, math.Ceil(math.Log10(y.hi)))
	if y.hi == y.lo {
		y.hi *= 10
	}
	if x.hi == x.lo {
		x.lo, x.hi = x.lo/2, x.hi*2
	}
	return x, y
}

func grid(p *plot.Picture, r *Report, x, y axis) {
	line := plot.Stroke{Colour: plot.Grid}
	for v := y.lo; v < y.hi*1.01; v *= 10 {
		p.Line(line, plot.Point{X: x.from, Y: y.at(v)}, plot.Point{X: x.to, Y: y.at(v)})
		p.Text(plot.Text{At: plot.Point{X: x.from - 8, Y: y.at(v) + 4}, Anchor: "end",
			Colour: plot.Muted, Text: duration(v)})
	}
	drawn := map[int]bool{}
	for i := range r.Groups {
		if n := r.Groups[i].Ranks; !drawn[n] {
			drawn[n] = true
			at := x.at(float64(n))
			p.Line(line, plot.Point{X: at, Y: y.from}, plot.Point{X: at, Y: y.to})
			p.Text(plot.Text{At: plot.Point{X: at, Y: y.from + 18}, Anchor: "middle",
				Colour: plot.Muted, Text: fmt.Sprint(n)})
		}
	}
	p.Text(plot.Text{At: plot.Point{X: (x.from + x.to) / 2, Y: y.from + 36}, Anchor: "middle",
		Colour: plot.Muted, Text: "ranks"})
}

// duration spells microseconds that are a power of ten.
func duration(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.0f s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.0f ms", us/1e3)
	}
	return fmt.Sprintf("%g µs", math.Round(us*10)/10)
}

// curves draws a line for each figure, with its name at its end. Names that would overlap move
// apart.
func curves(p *plot.Picture, r *Report, kind string, x, y axis) {
	const nameHeight = 14
	type name struct {
		figure string
		x, y   float64
	}
	var names []name
	for _, figure := range Figures() {
		var line []plot.Point
		for _, at := range curve(r, kind, figure) {
			line = append(line, plot.Point{X: x.at(at.ranks), Y: y.at(at.us)})
		}
		p.Line(plot.Stroke{Colour: colours[figure], Width: 2}, line...)
		for _, at := range line {
			p.Dot(at, colours[figure])
		}
		last := line[len(line)-1]
		n := name{figure, last.X + 10, last.Y + 4}
		at := len(names)
		for at > 0 && names[at-1].y > n.y {
			at--
		}
		names = append(names[:at], append([]name{n}, names[at:]...)...)
	}
	for i := range names {
		if i > 0 {
			names[i].y = max(names[i].y, names[i-1].y+nameHeight)
		}
	}
	// Those that have moved below the panel push the others up.
	for i, lowest := len(names)-1, y.from; i >= 0; i, lowest = i-1, names[i].y-nameHeight {
		names[i].y = min(names[i].y, lowest)
	}
	for _, n := range names {
		p.Text(plot.Text{At: plot.Point{X: n.x, Y: n.y}, Colour: colours[n.figure], Bold: true,
			Text: n.figure})
	}
}
