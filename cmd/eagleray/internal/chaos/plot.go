package chaos

import (
	"fmt"
	"image/color"
	"slices"
)

// The measures of the picture, in pixels.
const (
	plotWidth, plotHeight   = 960, 300
	leftMargin, rightMargin = 64, 16
	topMargin, bottomMargin = 44, 36
	fontSize, smallFontSize = 12, 10
)

// The colours of the picture.
var (
	textColour  = color.RGBA{0x1f, 0x23, 0x28, 0xff}
	mutedColour = color.RGBA{0x65, 0x6d, 0x76, 0xff}
	gridColour  = color.RGBA{0xd8, 0xde, 0xe4, 0xff}
	tokenColour = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	faultColour = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	paperColour = color.RGBA{0xff, 0xff, 0xff, 0xff}
)

// point is a place in the picture, in pixels from its left and top.
type point struct{ x, y float64 }

// stroke is how a line is drawn.
type stroke struct {
	colour color.RGBA
	width  float64
	dashed bool
}

// label is a text: where it is anchored, by its start, its middle or its end ("" is the start), and
// whether it is read from the bottom to the top.
type label struct {
	at      point
	anchor  string
	colour  color.RGBA
	size    float64
	upwards bool
	text    string
}

// canvas is what the picture is drawn on. Its background is paperColour.
type canvas interface {
	line(points []point, s stroke)
	label(l label)
	encode() ([]byte, error)
}

// SVG and PNG draw the tokens a second over time, with the faults marked. Of a long run they show
// the first seconds.
func SVG(r *Report, seconds float64) ([]byte, error) {
	return plot(newVector(plotWidth, plotHeight), r, seconds)
}

// PNG is SVG's picture in pixels, two for one.
func PNG(r *Report, seconds float64) ([]byte, error) {
	c, err := newRaster(plotWidth, plotHeight, 2)
	if err != nil {
		return nil, err
	}
	return plot(c, r, seconds)
}

func plot(c canvas, r *Report, seconds float64) ([]byte, error) {
	slots := min(len(r.Timeline), max(1, int(10*seconds)))
	most := max(1, slices.Max(append([]int{1}, r.Timeline[:slots]...)))
	x := func(slot float64) float64 {
		return leftMargin + slot/float64(slots)*(plotWidth-leftMargin-rightMargin)
	}
	y := func(tokens float64) float64 {
		const bottom = plotHeight - bottomMargin
		return bottom - tokens/float64(most)*(bottom-topMargin)
	}
	c.label(label{at: point{leftMargin, 20}, colour: textColour, size: fontSize,
		text: fmt.Sprintf("Tokens a second of all streams; %d faults, %d of %d requests lost, %d different",
			len(r.Marks), r.Lost, r.Asked, r.Different)})
	for i := range 5 {
		tokens := float64(most) * float64(i) / 4
		c.line([]point{{leftMargin, y(tokens)}, {plotWidth - rightMargin, y(tokens)}},
			stroke{colour: gridColour, width: 1})
		c.label(label{at: point{leftMargin - 6, y(tokens) + 4}, anchor: "end", colour: mutedColour,
			size: fontSize, text: fmt.Sprintf("%.0f", 10*tokens)})
	}
	every := max(1, slots/100)
	for s := 0; s <= slots/10; s += every {
		c.label(label{at: point{x(float64(10 * s)), plotHeight - bottomMargin + 16}, anchor: "middle",
			colour: mutedColour, size: fontSize, text: fmt.Sprintf("%d s", s)})
	}
	var tokens []point
	for i, n := range r.Timeline[:slots] {
		tokens = append(tokens, point{x(float64(i) + 0.5), y(float64(n))})
	}
	c.line(tokens, stroke{colour: tokenColour, width: 1.5})
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
		c.line([]point{{x(at), topMargin - 8}, {x(at), plotHeight - bottomMargin}},
			stroke{colour: faultColour, width: 1, dashed: true})
		c.label(label{at: point{x(at) - 3, topMargin - 6 + float64(row*rowHeight)}, anchor: "end",
			colour: faultColour, size: smallFontSize, upwards: true, text: m.Name})
	}
	return c.encode()
}
