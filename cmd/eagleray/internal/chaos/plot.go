package chaos

import (
	"bytes"
	"fmt"
	"slices"
)

// The measures of the picture, in pixels.
const (
	plotWidth, plotHeight                 = 960, 300
	leftMargin, rightMargin               = 64, 16
	topMargin, bottomMargin               = 44, 36
	plotFont                              = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
	textColour, mutedColour, gridColour   = "#1f2328", "#656d76", "#d8dee4"
	tokenColour, faultColour, paperColour = "#0072b2", "#d55e00", "#ffffff"
)

// Plot draws the tokens a second over time, with the faults marked, as SVG. Of a long run it shows
// the first seconds.
func Plot(r *Report, seconds float64) []byte {
	slots := min(len(r.Timeline), max(1, int(10*seconds)))
	most := max(1, slices.Max(append([]int{1}, r.Timeline[:slots]...)))
	x := func(slot float64) float64 {
		return leftMargin + slot/float64(slots)*(plotWidth-leftMargin-rightMargin)
	}
	y := func(tokens float64) float64 {
		const bottom = plotHeight - bottomMargin
		return bottom - tokens/float64(most)*(bottom-topMargin)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="%s" font-size="12"><rect width="100%%" height="100%%" fill="%s"/>`+"\n",
		plotWidth, plotHeight, plotFont, paperColour)
	label := func(x, y float64, anchor, colour, text string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, anchor,
			colour, text)
	}
	label(leftMargin, 20, "start", textColour, fmt.Sprintf("Tokens a second of all streams; %d faults, "+
		"%d of %d requests lost, %d different", len(r.Marks), r.Lost, r.Asked, r.Different))
	for i := range 5 {
		tokens := float64(most) * float64(i) / 4
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="%s"/>`+"\n", leftMargin,
			plotWidth-rightMargin, y(tokens), y(tokens), gridColour)
		label(leftMargin-6, y(tokens)+4, "end", mutedColour, fmt.Sprintf("%.0f", 10*tokens))
	}
	every := max(1, slots/100)
	for s := 0; s <= slots/10; s += every {
		label(x(float64(10*s)), plotHeight-bottomMargin+16, "middle", mutedColour, fmt.Sprintf("%d s", s))
	}
	b.WriteString(`<polyline fill="none" stroke="` + tokenColour + `" stroke-width="1.5" points="`)
	for i, tokens := range r.Timeline[:slots] {
		fmt.Fprintf(&b, "%.1f,%.1f ", x(float64(i)+0.5), y(float64(tokens)))
	}
	b.WriteString(`"/>` + "\n")
	// Names of faults that are close stand one below the other.
	const rows, rowHeight, letterHeight = 4, 48, 11
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
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s" stroke-dasharray="3 3"/>`+
			`<text transform="translate(%.1f %d) rotate(-90)" font-size="10" text-anchor="end" fill="%s">%s</text>`+"\n",
			x(at), x(at), topMargin-8, plotHeight-bottomMargin, faultColour, x(at)-3,
			topMargin-6+row*rowHeight, faultColour, m.Name)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
