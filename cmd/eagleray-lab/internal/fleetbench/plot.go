package fleetbench

import (
	"bytes"
	"fmt"
	"math"
)

// The measures of a picture, in pixels: a panel for each kind of ranks, one above the other.
const (
	plotWidth, panelHeight       = 760, 380
	leftMargin, rightMargin      = 74, 100
	topMargin, bottomMargin      = 46, 44
	panelBottom                  = panelHeight - bottomMargin
	plotFont                     = "system-ui, Segoe UI, Helvetica, Arial, sans-serif"
	textColour, mutedColour      = "#1f2328", "#656d76"
	gridColour, backgroundColour = "#d8dee4", "#ffffff"
)

// colours are those of the figures: Okabe and Ito's, which colour-blind readers can tell apart.
var colours = map[string]string{"start": "#0072b2", "broadcast": "#e69f00", "collect": "#009e73",
	"rpc": "#cc79a7", "step": "#56b4e9", "death": "#d55e00"}

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
	x, y := scales(r)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" `,
		plotWidth, panelHeight*len(kinds))
	fmt.Fprintf(&b, `viewBox="0 0 %d %d" font-family="%s" font-size="12">`+"\n",
		plotWidth, panelHeight*len(kinds), plotFont)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="%s"/>`+"\n", backgroundColour)
	for i, kind := range kinds {
		fmt.Fprintf(&b, `<g transform="translate(0 %d)">`+"\n", i*panelHeight)
		title := "Ranks that are processes of one host"
		if kind == Goroutines {
			title = fmt.Sprintf("Ranks that are goroutines, %.0f µs away", r.LatencyUS)
		}
		label(&b, leftMargin, 26, "start", textColour, `font-size="15" font-weight="600"`, title)
		grid(&b, r, x, y)
		curves(&b, r, kind, x, y)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
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

// scales are the axes that hold all figures, to the next power of ten.
func scales(r *Report) (x, y axis) {
	x = axis{lo: math.Inf(1), from: leftMargin, to: plotWidth - rightMargin}
	y = axis{lo: math.Inf(1), from: panelBottom, to: topMargin}
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

func label(b *bytes.Buffer, x, y float64, anchor, colour, more, text string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" %s>%s</text>`+"\n",
		x, y, anchor, colour, more, text)
}

func segment(b *bytes.Buffer, x1, y1, x2, y2 float64) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n",
		x1, y1, x2, y2, gridColour)
}

func grid(b *bytes.Buffer, r *Report, x, y axis) {
	for v := y.lo; v < y.hi*1.01; v *= 10 {
		segment(b, x.from, y.at(v), x.to, y.at(v))
		label(b, x.from-8, y.at(v)+4, "end", mutedColour, "", duration(v))
	}
	drawn := map[int]bool{}
	for i := range r.Groups {
		if n := r.Groups[i].Ranks; !drawn[n] {
			drawn[n] = true
			segment(b, x.at(float64(n)), y.from, x.at(float64(n)), y.to)
			label(b, x.at(float64(n)), y.from+18, "middle", mutedColour, "", fmt.Sprint(n))
		}
	}
	label(b, (x.from+x.to)/2, y.from+36, "middle", mutedColour, "", "ranks")
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
func curves(b *bytes.Buffer, r *Report, kind string, x, y axis) {
	const nameHeight = 14
	type name struct {
		figure string
		x, y   float64
	}
	var names []name
	for _, figure := range Figures() {
		points := curve(r, kind, figure)
		var path, dots bytes.Buffer
		for i, p := range points {
			px, py := x.at(p.ranks), y.at(p.us)
			command := "L"
			if i == 0 {
				command = "M"
			}
			fmt.Fprintf(&path, "%s%.1f %.1f ", command, px, py)
			fmt.Fprintf(&dots, `<circle cx="%.1f" cy="%.1f" r="3"/>`, px, py)
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", &path,
			colours[figure])
		fmt.Fprintf(b, `<g fill="%s">%s</g>`+"\n", colours[figure], &dots)
		last := points[len(points)-1]
		n := name{figure, x.at(last.ranks) + 10, y.at(last.us) + 4}
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
		label(b, n.x, n.y, "start", colours[n.figure], `font-weight="600"`, n.figure)
	}
}
