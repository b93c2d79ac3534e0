package chaos

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/ops/plot"
)

// The measures of the picture, in pixels.
const (
	plotWidth, plotHeight   = 960, 300
	leftMargin, rightMargin = 64, 16
	topMargin, bottomMargin = 44, 36
	smallFontSize           = 10
)

// SVG draws the tokens a second over time, with the faults marked. Of a long run it shows the first
// seconds.
func SVG(r *Report, seconds float64) []byte {
	c := plot.New(plotWidth, plotHeight)
	slots := min(len(r.Timeline), max(1, int(10*seconds)))
	most := max(1, slices.Max(append([]int{1}, r.Timeline[:slots]...)))
	x := func(slot float64) float64 {
		return leftMargin + slot/float64(slots)*(plotWidth-leftMargin-rightMargin)
	}
	y := func(tokens float64) float64 {
		const bottom = plotHeight - bottomMargin
		return bottom - tokens/float64(most)*(bottom-topMargin)
	}
	c.Text(plot.Text{At: plot.Point{X: leftMargin, Y: 20},
		Text: fmt.Sprintf("Tokens a second of all streams; %d faults, %d of %d requests lost, %d "+
			"different", len(r.Marks), r.Lost, r.Asked, r.Different)})
	for i := range 5 {
		tokens := float64(most) * float64(i) / 4
		c.Line(plot.Stroke{Colour: plot.Grid}, plot.Point{X: leftMargin, Y: y(tokens)},
			plot.Point{X: plotWidth - rightMargin, Y: y(tokens)})
		c.Text(plot.Text{At: plot.Point{X: leftMargin - 6, Y: y(tokens) + 4}, Anchor: "end",
			Colour: plot.Muted,
			Text:   fmt.Sprintf("%.0f", 10*tokens)})
	}
	every := max(1, slots/100)
	for s := 0; s <= slots/10; s += every {
		c.Text(plot.Text{At: plot.Point{X: x(float64(10 * s)), Y: plotHeight - bottomMargin + 16},
			Anchor: "middle",
			Colour: plot.Muted, Text: fmt.Sprintf("%d s", s)})
	}
	var tokens []plot.Point
	for i, n := range r.Timeline[:slots] {
		tokens = append(tokens, plot.Point{X: x(float64(i) + 0.5), Y: y(float64(n))})
	}
	c.Line(plot.Stroke{Colour: plot.Blue, Width: 1.5}, tokens...)
	// Names of faults that are close stand one below the other.
	const rows, rowHeight, letterHeight = 4, 54, 11
	var taken [rows]float64
	for _, m := range r.Marks {
		at := 10 * m.Seconds
		if at > float64(slots) {
			break
		}
		row := 0
		for row < rows-1 && x(at)-taken[row] < letterHeight {
			row++
		}
		taken[row] = x(at)
		c.Line(plot.Stroke{Colour: plot.Vermillion, Dashed: true}, plot.Point{X: x(at),
			Y: topMargin - 8}, plot.Point{X: x(at), Y: plotHeight - bottomMargin})
		c.Text(plot.Text{At: plot.Point{X: x(at) - 3, Y: topMargin - 6 + float64(row*rowHeight)},
			Anchor: "end",
			Colour: plot.Vermillion, Size: smallFontSize, Upwards: true, Text: m.Name})
	}
	return c.SVG()
}
