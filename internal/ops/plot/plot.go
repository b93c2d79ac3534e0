// Package plot draws figures of benchmarks as SVG. Lengths are pixels, from the left and the top.
package plot

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
)

// Colours that all pictures share.
const (
	Ink   = "#1f2328"
	Muted = "#656d76"
	Grid  = "#d8dee4"
)

// Colours of curves and bars are Okabe and Ito's, which colour-blind readers can tell apart.
const (
	Blue       = "#0072b2"
	Orange     = "#e69f00"
	Green      = "#009e73"
	Pink       = "#cc79a7"
	Sky        = "#56b4e9"
	Vermillion = "#d55e00"
)

// Size of text where Text.Size is 0.
const textSize = 12

// Picture is an SVG document that is being drawn, on white.
type Picture struct{ b bytes.Buffer }

// New makes an empty picture.
func New(width, height int) *Picture {
	p := &Picture{}
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif">`, width, height)
	p.Rect(0, 0, float64(width), float64(height), "#ffffff")
	return p
}

func (p *Picture) printf(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

// Point is a place in a picture.
type Point struct{ X, Y float64 }

// Stroke is how a line is drawn; a width of 0 is 1.
type Stroke struct {
	Colour string
	Width  float64
	Dashed bool
}

// Line draws a line through points.
func (p *Picture) Line(s Stroke, points ...Point) {
	p.b.WriteString(`<polyline fill="none" points="`)
	for _, at := range points {
		fmt.Fprintf(&p.b, "%.1f,%.1f ", at.X, at.Y)
	}
	dashes := ""
	if s.Dashed {
		dashes = ` stroke-dasharray="3 3"`
	}
	p.printf(`" stroke="%s" stroke-width="%g"%s/>`, s.Colour, cmp.Or(s.Width, 1), dashes)
}

// Rect fills a rectangle.
func (p *Picture) Rect(x, y, width, height float64, colour string) {
	p.printf(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, x, y, width, height,
		colour)
}

// Dot marks a point of a curve.
func (p *Picture) Dot(at Point, colour string) {
	p.printf(`<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, at.X, at.Y, colour)
}

// Arrow draws a line with a head at its end, which points up or down.
func (p *Picture) Arrow(from, to Point, colour string) {
	back := -6
	if to.Y < from.Y {
		back = 6
	}
	p.printf(`<path d="M%.1f %.1f L%.1f %.1f" stroke="%s" fill="none"/>`, from.X, from.Y, to.X, to.Y,
		colour)
	p.printf(`<path d="M%.1f %.1f l-3 %d l6 0 z" fill="%s"/>`, to.X, to.Y, back, colour)
}

// Text is a label. Anchor says what of it stands at the point: "start" (also ""), "middle" or
// "end". Upwards is text that is read from the bottom to the top. Size and Colour default to 12 and
// Ink.
type Text struct {
	At      Point
	Anchor  string
	Colour  string
	Size    float64
	Bold    bool
	Upwards bool
	Text    string
}

// Text draws a label.
func (p *Picture) Text(t Text) {
	turn, weight := "", ""
	if t.Upwards {
		turn = " rotate(-90)"
	}
	if t.Bold {
		weight = ` font-weight="600"`
	}
	p.printf(`<text transform="translate(%.1f %.1f)%s" font-size="%g" text-anchor="%s" fill="%s"%s>%s</text>`,
		t.At.X, t.At.Y, turn, cmp.Or(t.Size, textSize), cmp.Or(t.Anchor, "start"),
		cmp.Or(t.Colour, Ink), weight, html.EscapeString(t.Text))
}

// SVG ends the picture and returns the document.
func (p *Picture) SVG() []byte {
	p.b.WriteString("</svg>\n")
	return p.b.Bytes()
}
