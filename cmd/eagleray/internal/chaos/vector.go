package chaos

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"image/color"
)

const vectorFont = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"

// svg is a canvas that becomes an SVG document.
type svg struct{ b bytes.Buffer }

func newVector(width, height int) *svg {
	c := &svg{}
	fmt.Fprintf(&c.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="%s"><rect width="100%%" height="100%%" fill="%s"/>`+"\n",
		width, height, vectorFont, hex(paperColour))
	return c
}

func hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

func (c *svg) line(points []point, s stroke) {
	c.b.WriteString(`<polyline fill="none" points="`)
	for _, p := range points {
		fmt.Fprintf(&c.b, "%.1f,%.1f ", p.x, p.y)
	}
	fmt.Fprintf(&c.b, `" stroke="%s" stroke-width="%g"`, hex(s.colour), s.width)
	if s.dashed {
		c.b.WriteString(` stroke-dasharray="3 3"`)
	}
	c.b.WriteString("/>\n")
}

func (c *svg) label(l label) {
	turn := ""
	if l.upwards {
		turn = " rotate(-90)"
	}
	fmt.Fprintf(&c.b, `<text transform="translate(%.1f %.1f)%s" font-size="%g" text-anchor="%s" fill="%s">%s</text>`+
		"\n", l.at.x, l.at.y, turn, l.size, cmp.Or(l.anchor, "start"), hex(l.colour),
		html.EscapeString(l.text))
}

func (c *svg) encode() ([]byte, error) {
	c.b.WriteString("</svg>\n")
	return c.b.Bytes(), nil
}
