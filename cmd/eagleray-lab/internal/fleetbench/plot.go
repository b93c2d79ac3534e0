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

// Plot draws the medians of a report over the number of ranks, both logarithmic, as SVG. All panels
// have the same scale.
func Plot(r *Report) []byte {
	var panels []panel
	all := panel{}
	for _, kind := range []string{Goroutines, Processes} {
		one := panel{title: "Ranks that are processes of one host", unit: duration}
		if kind == Goroutines {
			one.title = fmt.Sprintf("Ranks that are goroutines, %.0f µs away", r.LatencyUS)
		}
		for _, figure := range Figures() {
			c := curve{name: figure, colour: colours[figure]}
			for i := range r.Groups {
				if g := &r.Groups[i]; g.Kind == kind {
					c.points = append(c.points,
						point{float64(g.Ranks), max(g.Figure(figure).P50, 0.1)})
				}
			}
			if len(c.points) > 0 {
				one.curves = append(one.curves, c)
			}
		}
		if len(one.curves) > 0 {
			panels = append(panels, one)
			all.curves = append(all.curves, one.curves...)
		}
	}
	for i := range panels {
		panels[i].scale = &all
	}
	return draw(panels)
}

// panel is curves over the number of ranks. Its axes hold all curves of scale, if that is set, else
// its own.
type panel struct {
	title  string
	curves []curve
	unit   func(float64) string // spells a power of ten
	scale  *panel
}

type curve struct {
	name, colour string
	points       []point
}

type point struct{ ranks, value float64 }

// draw draws panels, one above the other.
func draw(panels []panel) []byte {
	p := plot.New(plotWidth, panelHeight*len(panels))
	for i := range panels {
		one := &panels[i]
		panelTop := float64(i * panelHeight)
		p.Text(plot.Text{At: plot.Point{X: leftMargin, Y: panelTop + 26}, Size: 15, Bold: true,
			Text: one.title})
		scale := one
		if one.scale != nil {
			scale = one.scale
		}
		x, y := scale.axes(panelTop)
		grid(p, scale, one.unit, x, y)
		names(p, one, x, y)
	}
	return p.SVG()
}

// axes are those that hold all curves, to the next power of ten, of a panel that begins at top.
func (s *panel) axes(top float64) (x, y axis) {
	x = axis{lo: math.Inf(1), from: leftMargin, to: plotWidth - rightMargin}
	y = axis{lo: math.Inf(1), from: top + panelHeight - bottomMargin,
		to: top + topMargin}
	for _, c := range s.curves {
		for _, p := range c.points {
			x.lo, x.hi = min(x.lo, p.ranks), max(x.hi, p.ranks)
			y.lo, y.hi = min(y.lo, p.value), max(y.hi, p.value)
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

func grid(p *plot.Picture, s *panel, unit func(float64) string, x, y axis) {
	line := plot.Stroke{Colour: plot.Grid}
	for v := y.lo; v < y.hi*1.01; v *= 10 {
		p.Line(line, plot.Point{X: x.from, Y: y.at(v)}, plot.Point{X: x.to, Y: y.at(v)})
		p.Text(plot.Text{At: plot.Point{X: x.from - 8, Y: y.at(v) + 4}, Anchor: "end",
			Colour: plot.Muted, Text: unit(v)})
	}
	drawn := map[float64]bool{}
	for _, c := range s.curves {
		for _, at := range c.points {
			if drawn[at.ranks] {
				continue
			}
			drawn[at.ranks] = true
			tick := x.at(at.ranks)
			p.Line(line, plot.Point{X: tick, Y: y.from}, plot.Point{X: tick, Y: y.to})
			p.Text(plot.Text{At: plot.Point{X: tick, Y: y.from + 18}, Anchor: "middle",
				Colour: plot.Muted, Text: fmt.Sprint(at.ranks)})
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

// names draws a line for each curve, with its name at its end. Names that would overlap move apart.
func names(p *plot.Picture, s *panel, x, y axis) {
	const nameHeight = 14
	type name struct {
		*curve
		x, y float64
	}
	var names []name
	for i := range s.curves {
		c := &s.curves[i]
		var line []plot.Point
		for _, at := range c.points {
			line = append(line, plot.Point{X: x.at(at.ranks), Y: y.at(at.value)})
		}
		p.Line(plot.Stroke{Colour: c.colour, Width: 2}, line...)
		for _, at := range line {
			p.Dot(at, c.colour)
		}
		last := line[len(line)-1]
		n := name{c, last.X + 10, last.Y + 4}
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
		p.Text(plot.Text{At: plot.Point{X: n.x, Y: n.y}, Colour: n.colour, Bold: true,
			Text: n.name})
	}
}
